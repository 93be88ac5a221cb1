package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Explanation is where a member would go now, and what stands between it and each node.
type Explanation struct {
	// Member that it is about: the one that waits for another attempt the longest, or the one that was asked for; below 0:
	// any of those that were never placed, who are equal.
	Member int
	// All is of all nodes, Classes the same by class, the largest first: each node is in one.
	All     Reason
	Classes []Class
	// Ranked is the best node of each class with one that has room, at most mostRanked, in the order in which they are taken.
	Ranked []Candidate
	// Choices are the nodes that members who wait would go to, were nobody ahead of the job in the queue, in the order in which they are chosen.
	Choices []Choice
	// More says that not all of them were looked at: others may be placed as well.
	More bool
	// Waiting is how many would find no room, Evictions who would give way to them, and Bound the limit that keeps
	// them from being placed, if it names a namespace.
	Waiting int
	// Rest is All as those would see it once the others are placed; empty if nobody would be placed, or all.
	Rest      Reason
	Evictions []Eviction
	Bound     fit.Bound
	// Present is how the node of a member that has a live allocation compares. All else is told as if it had none.
	Present *Present
}

// Class is nodes that are alike to the job but for what is free on them.
type Class struct {
	// Name of it, as "p/small, zone a, spot, 4 cpu, 8GiB, arch=arm": the pool, the offering, how large they are, and of their
	// attributes those that the job asks for.
	Name string
	Reason
}

// Candidate is a node with the terms by which it is the best of its class.
type Candidate struct {
	Node  muster.NodeID
	Class string
	Terms Terms
}

// Choice is a node, how many members would go to it, and the terms by which it was the best when the first of them did.
type Choice struct {
	Node    muster.NodeID
	Members int
	Terms   Terms
}

// Eviction is allocations of one node that would give way to a member, and why it is these: by the terms of the least harm.
type Eviction struct {
	Node   muster.NodeID
	Allocs []muster.AllocID
	Terms  Terms
}

// Present is the node that a member is on, as it would be looked at were the member not there.
type Present struct {
	Node muster.NodeID
	// Obstacle is what would keep the member from it now; else Terms are by what it would be taken.
	Obstacle fit.Obstacle
	Terms    Terms
}

const (
	// mostRanked is how many classes are ranked.
	mostRanked = 10
	// mostExplained is how many members an explanation places.
	mostExplained = 1000
)

// Explain tells what stands between a member of the job and each node now, and where those that wait would go, were
// nobody ahead of the job. It asks the view that plans are made on.
func Explain(j *state.Job, snap *state.Snapshot, now muster.Time) Explanation {
	return Try(snap, j, now, mostExplained)
}

// Try is Explain with at most so many members placed.
func Try(snap *state.Snapshot, j *state.Job, now muster.Time, limit int) Explanation {
	x := newExplainer(j, snap, now, limit)
	if s := x.setting; s.untried == 0 && s.first() != nil {
		x.about(s.first())
	}
	x.nodes()
	x.rank()
	x.pass.chosen, x.pass.evicted = x.chosen, x.evicted
	x.pass.serve(x.setting, j.Waiting())
	x.pass.finish(x.setting)
	x.out.More = len(x.pass.decision.Left) > 0
	for _, b := range x.pass.decision.Blocked {
		x.out.Waiting, x.out.Bound = b.Waiting, b.Bound
	}
	if x.out.Waiting > 0 && len(x.out.Choices) > 0 {
		x.pass.hide(x.setting)
		for _, seat := range x.pass.view.nodes {
			x.out.Rest.add(x.setting.field.shape, x.obstacle(seat), seat.row, seat.space)
		}
		x.out.Rest.sort()
	}
	return x.out
}

// Why says what the members that find no room wait for: a limit, else what keeps them from the nodes once the others are placed.
func (e *Explanation) Why() string {
	switch {
	case e.Bound.Namespace != "":
		return e.Bound.Why
	case len(e.Choices) > 0:
		return e.Rest.String()
	}
	return e.All.String()
}

// ExplainMember is Explain of one member. One that has a live allocation is explained as if it had none: where it would
// go now. Past placement decisions are not recorded.
func ExplainMember(j *state.Job, index int, snap *state.Snapshot, now muster.Time) Explanation {
	x := newExplainer(j, snap, now, 0)
	x.out.Member = index
	m := snap.Member(j.UID, index)
	if m == nil {
		x.nodes()
		x.rank()
		return x.out
	}
	a := snap.Alloc(m.Alloc())
	if a == nil || !a.Live() {
		x.about(m)
		x.nodes()
		x.rank()
		return x.out
	}
	at := x.pass.view.nodes[a.Node]
	if at != nil {
		x.without(a, at)
	}
	x.nodes()
	x.rank()
	if at != nil {
		x.present(at)
	}
	return x.out
}

// explainer is a pass over one job that tells what it sees.
type explainer struct {
	pass    *pass
	setting *setting
	out     Explanation
	// Of the member that it is about: the nodes that it avoids, and whether it goes to its home alone, which may be gone.
	avoid  []muster.NodeID
	homing bool
	home   *seat
	names  map[*class]string
}

func newExplainer(j *state.Job, snap *state.Snapshot, now muster.Time, limit int) *explainer {
	p := &pass{view: viewFor(snap, j.Run), snap: snap, now: now, limits: Limits{Placements: limit, Looks: 1 << 30}, allow: fit.NewAllowance(snap)}
	return &explainer{pass: p, setting: p.begin(j), out: Explanation{Member: -1}, names: map[*class]string{}}
}

// viewFor is a view that tells nodes apart by what the run asks for from the start.
func viewFor(snap *state.Snapshot, run *state.Run) *View {
	v := &View{out: map[muster.AllocID]promise{}, names: namesOf(fit.ShapeOf(run))}
	v.build(snap)
	return v
}

// about makes it one about a member that was placed before.
func (x *explainer) about(m *state.Member) {
	x.out.Member, x.avoid = m.Index, m.FailedNodes
	if x.setting.homes != nil {
		x.avoid, x.homing, x.home = nil, true, x.setting.homes[m.Index]
	}
}

// without takes an allocation off its node, and its member out of what the job has.
func (x *explainer) without(a *state.Alloc, at *seat) {
	s, v := x.setting, x.pass.view
	if s.job.Run.System() {
		x.homing, x.home = true, at
	}
	others := false
	x.pass.snap.JobAllocs(s.job.UID, 0, func(o *state.Alloc) bool {
		others = others || o.Node == a.Node && o.ID != a.ID && o.Live()
		return !others
	})
	v.lift(at)
	at.space = without(at.space, a)
	if at.lifted && !others {
		at.lifted = false
		s.lifted = slices.DeleteFunc(s.lifted, func(o *seat) bool { return o == at })
	}
	v.sit(at)
	if s.spread != nil && a.Version == s.job.Version {
		s.spread.add(s.field.valuesOf(at.row), -1)
	}
}

// nodes tells what becomes of each node.
func (x *explainer) nodes() {
	of := map[string]*Class{}
	for _, seat := range x.pass.view.nodes {
		name := x.name(seat.class)
		c := of[name]
		if c == nil {
			c = &Class{Name: name}
			of[name] = c
		}
		o := x.obstacle(seat)
		c.add(x.setting.field.shape, o, seat.row, seat.space)
		x.out.All.add(x.setting.field.shape, o, seat.row, seat.space)
	}
	x.out.All.sort()
	for _, c := range of {
		c.sort()
		x.out.Classes = append(x.out.Classes, *c)
	}
	slices.SortFunc(x.out.Classes, func(a, b Class) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), strings.Compare(a.Name, b.Name))
	})
}

// obstacle is what keeps the member from a node. Nodes that are out of the plan's sight have a member of the job.
func (x *explainer) obstacle(at *seat) fit.Obstacle {
	o := fit.CheckSpace(x.setting.field.shape, at.row, at.space, x.avoid)
	switch {
	case o.Kind != fit.None && o.Kind != fit.Short:
	case x.homing && at != x.home:
		o = fit.Obstacle{Kind: fit.Filtered, What: "its home, which is another node"}
	case at.lifted && !x.homing:
		o = fit.Obstacle{Kind: fit.Occupied}
	}
	return o
}

// rank finds the best of each class, and then the best of the classes that are left, in the way in which a plan finds the best of all.
func (x *explainer) rank() {
	if x.homing {
		if x.home != nil && x.obstacle(x.home).Kind == fit.None {
			x.out.Ranked = []Candidate{{x.home.row.ID, x.name(x.home.class), homeTerms()}}
		}
		return
	}
	f := x.setting.field.apart()
	for len(x.out.Ranked) < mostRanked {
		o := f.best(x.avoid, x.setting.spread)
		if o.seat == nil {
			return
		}
		x.out.Ranked = append(x.out.Ranked, Candidate{o.seat.row.ID, x.name(o.seat.class), o.terms(f, x.setting.spread)})
		f.drop(func(c *class) bool { return c == o.seat.class })
	}
}

// present tells of the node that the member is on. It is the last that is asked of the view.
func (x *explainer) present(at *seat) {
	x.out.Present = &Present{Node: at.row.ID, Obstacle: x.obstacle(at)}
	switch {
	case x.out.Present.Obstacle.Kind != fit.None:
		return
	case x.homing:
		x.out.Present.Terms = homeTerms()
		return
	}
	for _, o := range x.pass.view.nodes {
		if o != at && o.class == at.class {
			x.pass.view.lift(o)
		}
	}
	f := x.setting.field.apart()
	f.drop(func(c *class) bool { return c != at.class })
	if o := f.best(nil, x.setting.spread); o.seat == at {
		x.out.Present.Terms = o.terms(f, x.setting.spread)
	}
}

func (x *explainer) chosen(s *setting, o *option, n int) {
	if last := len(x.out.Choices) - 1; last >= 0 && x.out.Choices[last].Node == o.seat.row.ID {
		x.out.Choices[last].Members += n
		return
	}
	terms := homeTerms()
	if s.homes == nil || !slices.ContainsFunc(s.due, func(m *state.Member) bool { return s.homes[m.Index] == o.seat }) {
		terms = o.terms(s.field, s.spread)
	}
	x.out.Choices = append(x.out.Choices, Choice{o.seat.row.ID, n, terms})
}

func (x *explainer) evicted(e *eviction) {
	out := Eviction{Node: e.seat.row.ID, Terms: e.terms()}
	for _, a := range e.victims {
		out.Allocs = append(out.Allocs, a.ID)
	}
	x.out.Evictions = append(x.out.Evictions, out)
}

// name of a class.
func (x *explainer) name(c *class) string {
	if name, ok := x.names[c]; ok {
		return name
	}
	n := c.sample
	parts := []string{string(n.Pool) + "/" + string(n.Offering.Name)}
	if n.Offering.Zone != "" {
		parts = append(parts, "zone "+n.Offering.Zone)
	}
	if n.Offering.Market != muster.OnDemand {
		parts = append(parts, string(n.Offering.Market))
	}
	parts = append(parts, n.Capacity.CPU.String()+" cpu", n.Capacity.Memory.String())
	if n.Capacity.Disk > 0 {
		parts = append(parts, n.Capacity.Disk.String()+" disk")
	}
	for _, d := range n.Devices() {
		text := d.String()
		if d.Shared {
			text += " shared"
		}
		parts = append(parts, text)
	}
	for i, name := range x.pass.view.names {
		switch {
		case fit.SetByServer(name): // said already, but for the provider, which is the pool's
		case c.set[i]:
			parts = append(parts, name+"="+c.values[i])
		default:
			parts = append(parts, "no "+name)
		}
	}
	x.names[c] = strings.Join(parts, ", ")
	return x.names[c]
}

// apart is the field as it is now, to be asked without some of its classes.
func (f *field) apart() *field {
	f.refresh()
	g := &field{view: f.view, shape: f.shape, epoch: f.epoch, read: f.read, stocks: f.stocks, of: make(map[*group]*entry, len(f.of))}
	for _, b := range f.buckets {
		c := &bucket{affinity: b.affinity, values: b.values}
		for _, e := range b.entries {
			copied := *e
			copied.bucket, copied.seen = c, 0
			c.entries = append(c.entries, &copied)
			g.of[e.group] = &copied
		}
		g.buckets = append(g.buckets, c)
	}
	return g
}

// drop takes classes out of sight.
func (f *field) drop(gone func(*class) bool) {
	for _, b := range f.buckets {
		b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
			if gone(e.class) {
				delete(f.of, e.group)
			}
			return gone(e.class)
		})
	}
}

// Term is one of the things by which a node is taken, or an eviction chosen.
type Term struct {
	Name  string // preference, devices, warmth, tightness, …
	Value float64
	Text  string // as "tightness 0.62"
	Of    []Term // what it is the sum of, if that is of interest
}

// Terms are in the order in which they count: the first that differs decides.
type Terms []Term

// String is the terms in one line.
func (t Terms) String() string {
	var out []string
	for _, term := range t {
		text := term.Text
		if len(term.Of) > 0 {
			text += " (" + Terms(term.Of).String() + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func homeTerms() Terms {
	return Terms{{Name: "home", Text: "the node that the member belongs to"}}
}

// terms are what an option was taken by. The spread is as it was when it was.
func (o *option) terms(f *field, spread *tally) (out Terms) {
	e := f.of[o.seat.group]
	if len(f.shape.Affinities)+len(f.shape.Spread) > 0 {
		t := Term{Name: "preference", Value: o.preference, Text: fmt.Sprintf("preference %+.1f", o.preference)}
		liking(f.shape, o.seat.row, func(a *fit.Affinity) {
			t.Of = append(t.Of, Term{Name: a.String(), Value: float64(a.Weight), Text: fmt.Sprintf("%s %+d", a.Constraint.String(), a.Weight)})
		})
		for i := range f.shape.Spread {
			sp, v := &f.shape.Spread[i], e.bucket.values[i]
			term, have, share := spread.part(sp, i, v)
			name := "spread " + sp.Attribute
			if v == "" {
				v = "not set"
			}
			t.Of = append(t.Of, Term{Name: name, Value: term, Text: fmt.Sprintf("%s: %s has %g of %.3g, %+.1f", name, v, have, share, term)})
		}
		out = append(out, t)
	}
	if e.asks {
		stranded := e.strands(o.seat, f.shape.Ask.CPU) / 100
		out = append(out, Term{Name: "devices", Value: o.rank, Text: fmt.Sprintf("devices stranded %+.2f, then free %.3g", stranded, e.after)})
	} else if e.class.devices > 0 {
		out = append(out, Term{Name: "devices", Value: o.rank, Text: fmt.Sprintf("%.3g devices free", e.rank-1)})
	}
	if len(f.shape.Keys) > 0 && !e.asks {
		out = append(out, Term{Name: "locality", Value: float64(o.warmth), Text: [...]string{"cached", "empty cache", "cached for others"}[o.warmth]})
	}
	name := "tightness"
	if o.seat.class.loose {
		name = "emptiness"
	}
	return append(out, Term{Name: name, Value: o.value, Text: fmt.Sprintf("%s %.2f", name, o.value)})
}

// terms are the harm of an eviction.
func (e *eviction) terms() Terms {
	var priorities []string
	for _, a := range e.victims {
		priorities = append(priorities, fmt.Sprint(a.worth))
	}
	return Terms{
		{Name: "allocations", Value: float64(len(e.victims)), Text: muster.Counted(len(e.victims), "allocation")},
		{Name: "priority", Value: float64(e.victims[0].worth), Text: "of priority " + strings.Join(priorities, ", ")},
		{Name: "surplus", Value: e.surplus, Text: fmt.Sprintf("%.0f %% of the node more than is needed", 100*e.surplus)},
	}
}
