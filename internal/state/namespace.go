package state

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/musterhq/muster"
)

// NamespaceUse is what a namespace has and wants now: a derived row, of those
// that have a job, be it one that has ended and is not forgotten yet. That of muster.AllNamespaces is the sum of the others.
type NamespaceUse struct {
	Name muster.Namespace
	// Jobs that have not ended, and Waiting members of them that want an allocation; Ended jobs.
	Jobs, Waiting, Ended int
	// Allocs that have not ended, and what they hold.
	Allocs int
	Used   muster.Resources
}

// NamespaceLimits is the most that a namespace may have at once; 0 means no
// limit. Those of muster.AllNamespaces bind all of them together. They never end
// what runs.
type NamespaceLimits struct {
	Name   muster.Namespace `cbor:"1,keyasint"`
	Jobs   int              `cbor:"2,keyasint,omitempty"`
	Allocs int              `cbor:"3,keyasint,omitempty"`
	CPU    muster.MilliCPU  `cbor:"4,keyasint,omitempty"`
	Memory muster.Bytes     `cbor:"5,keyasint,omitempty"`
	// MaxPriority is the highest that its jobs may have, plus one; 0: muster.DefaultMaxPriority.
	MaxPriority int `cbor:"6,keyasint,omitempty"`
	// Set is when, Who by whom, Reason why.
	Set    muster.Time `cbor:"7,keyasint,omitempty"`
	Who    string      `cbor:"8,keyasint,omitempty"`
	Reason string      `cbor:"9,keyasint,omitempty"`
}

// Empty reports whether nothing is limited.
func (l *NamespaceLimits) Empty() bool {
	return l.Jobs == 0 && l.Allocs == 0 && l.CPU == 0 && l.Memory == 0 && l.MaxPriority == 0
}

// Highest is the highest priority that jobs of the namespace may have. A nil row has the default.
func (l *NamespaceLimits) Highest() int {
	if l == nil || l.MaxPriority == 0 {
		return muster.DefaultMaxPriority
	}
	return l.MaxPriority - 1
}

// Room is how many of so many members of the ask may join a use, and which limit one more would pass; "" if all
// may. What a member asks nothing of is no limit to it, even when it is passed already. A nil row limits nothing. Who plans,
// who verifies and the state ask this and nothing else: a plan that one allows and another refuses would come again for ever.
func (l *NamespaceLimits) Room(use *NamespaceUse, ask muster.Resources, want int) (n int, why string) {
	if l == nil {
		return want, ""
	}
	n = want
	binds := func(fits int64) bool {
		if fits >= int64(n) {
			return false
		}
		n = int(max(fits, 0))
		return true
	}
	whose := "namespace " + string(l.Name) + " may have "
	if l.Name == muster.AllNamespaces {
		whose = "all namespaces together may have "
	}
	if l.Allocs > 0 && binds(int64(l.Allocs-use.Allocs)) {
		why = fmt.Sprintf("%s%s and has %d", whose, muster.Counted(l.Allocs, "allocation"), use.Allocs)
	}
	if l.CPU > 0 && ask.CPU > 0 && binds(int64(max(l.CPU-use.Used.CPU, 0)/ask.CPU)) {
		why = fmt.Sprintf("%s%s cores and has %s", whose, l.CPU, use.Used.CPU)
	}
	if l.Memory > 0 && ask.Memory > 0 && binds(int64(max(l.Memory-use.Used.Memory, 0)/ask.Memory)) {
		why = fmt.Sprintf("%s%s of memory and has %s", whose, l.Memory, use.Used.Memory)
	}
	return n, why
}

// ShareRule gives the namespaces whose name matches a weight. The first rule that matches counts.
type ShareRule struct {
	// Match is a pattern as of package path: * is any run of characters, ? one, [a-c] one of a set.
	Match string `cbor:"1,keyasint"`
	// Class names who shares the weight; empty: each namespace that matches has it for itself.
	Class  string `cbor:"2,keyasint,omitempty"`
	Weight int    `cbor:"3,keyasint"`
}

// Shares is how room is divided when there is not enough of it. It never changes once it is in the state.
type Shares struct {
	Rules []ShareRule `cbor:"1,keyasint,omitempty"`
}

// Class is which class a namespace is in and what that weighs. Namespaces that no
// rule matches are each a class of their own, of weight 1. A nil value has no rules.
func (s *Shares) Class(ns muster.Namespace) (class string, weight int) {
	if s != nil {
		for i := range s.Rules {
			r := &s.Rules[i]
			if ok, err := path.Match(r.Match, string(ns)); err != nil || !ok {
				continue
			}
			if r.Class == "" {
				return "namespace " + string(ns), r.Weight
			}
			return r.Class, r.Weight
		}
	}
	return "namespace " + string(ns), 1
}

// SharesSet replaces the rules of shares by those of the configuration.
type SharesSet struct {
	Rules []ShareRule `cbor:"1,keyasint,omitempty"`
}

// NamespaceLimited sets all limits of a namespace; those that are 0 are lifted. Value: nil.
type NamespaceLimited struct {
	Limits NamespaceLimits `cbor:"1,keyasint"`
}

func (f *SharesSet) apply(s *State, _ muster.Time) (any, error) {
	classes := map[string]int{}
	for i := range f.Rules {
		r := &f.Rules[i]
		if _, err := path.Match(r.Match, ""); err != nil || r.Match == "" || r.Weight < 0 {
			return nil, muster.Faultf(muster.FaultInvalid, "share rule %d: match %q, weight %d: a rule has a pattern and a weight of 0 or more", i+1, r.Match, r.Weight)
		}
		if w, seen := classes[r.Class]; seen && r.Class != "" && w != r.Weight {
			return nil, muster.Faultf(muster.FaultInvalid, "share rule %d: class %s weighs %d, and %d in a rule before", i+1, r.Class, r.Weight, w)
		}
		classes[r.Class] = r.Weight
	}
	s.t.shares = &Shares{f.Rules}
	s.changed(Change{Verb: VerbConfigShares, Config: true})
	return nil, nil
}

func (f *NamespaceLimited) apply(s *State, now muster.Time) (any, error) {
	l := f.Limits
	if l.Jobs < 0 || l.Allocs < 0 || l.CPU < 0 || l.Memory < 0 || l.MaxPriority < 0 || l.MaxPriority > muster.MaxPriority+1 {
		return nil, muster.Faultf(muster.FaultInvalid, "limits of namespace %s: none can be negative", l.Name)
	}
	if before, ok := s.t.limits.Get(&l); ok && l.Empty() {
		s.t.limits.Delete(before)
	} else if !l.Empty() {
		l.Set = now
		s.t.limits.Set(&l)
	}
	s.changed(Change{Verb: VerbNamespaceLimited, Limits: &l})
	return nil, nil
}

// use is the row of a namespace that apply may change.
func (s *State) use(ns muster.Namespace) *NamespaceUse {
	u := s.uses[ns]
	if u == nil {
		u = &NamespaceUse{Name: ns}
		s.uses[ns] = u
	}
	s.used[ns] = true
	return u
}

// useJob counts a job's row that takes the place of before; either may be nil.
func (s *State) useJob(before, after *Job) {
	for _, ns := range [2]muster.Namespace{cmp.Or(after, before).Key.Namespace, muster.AllNamespaces} {
		u := s.use(ns)
		u.count(before, -1)
		u.count(after, 1)
	}
}

// count adds n times what a job has and wants.
func (u *NamespaceUse) count(j *Job, n int) {
	switch {
	case j == nil:
		return
	case j.Stage == muster.JobEnded:
		u.Ended += n
	default:
		u.Jobs += n
	}
	u.Waiting += n * j.Waiting()
}

// useAlloc counts an allocation that has begun (1) or ended (-1) to hold room.
func (s *State) useAlloc(r *Run, n int) {
	for _, ns := range [2]muster.Namespace{r.Key.Namespace, muster.AllNamespaces} {
		u := s.use(ns)
		u.Allocs += n
		if n > 0 {
			u.Used = u.Used.Add(r.Ask)
		} else {
			u.Used = u.Used.Sub(r.Ask)
		}
	}
}

// publishUses puts what changed within an entry into the tree that readers see.
func (s *State) publishUses() {
	for ns := range s.used {
		u := s.uses[ns]
		if u.Jobs == 0 && u.Ended == 0 && u.Allocs == 0 {
			delete(s.uses, ns)
			s.t.uses.Delete(u)
		} else {
			row := *u
			s.t.uses.Set(&row)
		}
	}
	clear(s.used)
}

// rereadUses goes back to what the tree says.
func (s *State) rereadUses() {
	for ns := range s.used {
		if u, ok := s.t.uses.Get(&NamespaceUse{Name: ns}); ok {
			row := *u
			s.uses[ns] = &row
		} else {
			delete(s.uses, ns)
		}
	}
	clear(s.used)
}

// overLimit says which limit keeps one more member of a run from being placed, or "".
func (s *State) overLimit(r *Run) string {
	if s.t.limits.Len() == 0 {
		return ""
	}
	for _, ns := range [2]muster.Namespace{r.Key.Namespace, muster.AllNamespaces} {
		limits := get(s.t.limits, &NamespaceLimits{Name: ns})
		if _, why := limits.Room(cmp.Or(s.uses[ns], &NamespaceUse{}), r.Ask, 1); why != "" {
			return why
		}
	}
	return ""
}

// mayHave refuses a job that its namespace's limits, or those of all, can never or not now have.
func (s *State) mayHave(r *Run) error {
	for _, ns := range [2]muster.Namespace{r.Key.Namespace, muster.AllNamespaces} {
		l, ok := s.t.limits.Get(&NamespaceLimits{Name: ns})
		if !ok {
			continue
		}
		if jobs := s.uses[ns]; jobs != nil && l.Jobs > 0 && jobs.Jobs >= l.Jobs {
			return muster.Faultf(muster.FaultQuota, "job %s: %s; wait for one to end, or stop one", r.Key, moreJobs(l, jobs))
		}
		if _, why := l.Room(&NamespaceUse{}, r.Ask, 1); why != "" {
			return muster.Faultf(muster.FaultQuota, "job %s: one member needs %s; %s", r.Key, r.Ask, strings.TrimSuffix(why, " and has 0"))
		}
	}
	return nil
}

func moreJobs(l *NamespaceLimits, use *NamespaceUse) string {
	if l.Name == muster.AllNamespaces {
		return fmt.Sprintf("all namespaces together may have %s unfinished, and have %d", muster.Counted(l.Jobs, "job"), use.Jobs)
	}
	return fmt.Sprintf("namespace %s may have %s unfinished, and has %d", l.Name, muster.Counted(l.Jobs, "job"), use.Jobs)
}

// Use of a namespace; one without anything has a row of zeros.
func (s *Snapshot) Use(ns muster.Namespace) *NamespaceUse {
	if u := get(s.t.uses, &NamespaceUse{Name: ns}); u != nil {
		return u
	}
	return &NamespaceUse{Name: ns}
}

// Uses iterates by name over namespaces that have a job, muster.AllNamespaces first.
func (s *Snapshot) Uses(fn func(*NamespaceUse) bool) { s.t.uses.Scan(fn) }

// Limits of a namespace; nil if it has none.
func (s *Snapshot) Limits(ns muster.Namespace) *NamespaceLimits {
	return get(s.t.limits, &NamespaceLimits{Name: ns})
}

// EachLimits iterates by name over namespaces that have limits.
func (s *Snapshot) EachLimits(fn func(*NamespaceLimits) bool) { s.t.limits.Scan(fn) }

// LimitCount is how many namespaces have limits.
func (s *Snapshot) LimitCount() int { return s.t.limits.Len() }

// Shares is how room is divided; never nil.
func (s *Snapshot) Shares() *Shares {
	if s.t.shares == nil {
		return &Shares{}
	}
	return s.t.shares
}

// namespaces checks the derived rows against what they are derived from.
func (c *checker) namespaces() {
	want := map[muster.Namespace]*NamespaceUse{}
	each := func(ns muster.Namespace, fn func(*NamespaceUse)) {
		for _, ns := range [2]muster.Namespace{ns, muster.AllNamespaces} {
			if want[ns] == nil {
				want[ns] = &NamespaceUse{Name: ns}
			}
			fn(want[ns])
		}
	}
	c.snap.t.jobsUID.Scan(func(j *Job) bool {
		each(j.Key.Namespace, func(u *NamespaceUse) { u.count(j, 1) })
		return true
	})
	c.snap.LiveAllocs(func(a *Alloc) bool {
		each(a.Run.Key.Namespace, func(u *NamespaceUse) { u.Allocs++; u.Used = u.Used.Add(a.Run.Ask) })
		return true
	})
	rows := 0
	for ns, w := range want {
		if *c.snap.Use(ns) != *w {
			c.bad("namespace %s says %+v, counted are %+v", ns, *c.snap.Use(ns), *w)
		}
		if w.Jobs != 0 || w.Ended != 0 || w.Allocs != 0 {
			rows++
		}
	}
	if c.snap.t.uses.Len() != rows {
		c.bad("%d namespaces have or want something, %d are in the index", rows, c.snap.t.uses.Len())
	}
}

func compareUses(a, b *NamespaceUse) int { return cmp.Compare(a.Name, b.Name) }

func compareLimits(a, b *NamespaceLimits) int { return cmp.Compare(a.Name, b.Name) }
