// Package fittest makes a state out of a few lines of text, for tests of
// decisions and loops: a cluster that a person can check by eye.
//
// Only tests use it. It must never make a row by itself: every line is a fact that
// the state applies, so that no test lives in a state that cannot be.
package fittest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Cluster is a state that is built line by line.
//
//	node n1 cpu=4 memory=8GiB pool=a offering=small zone=z market=spot provider=p stage=booting os=linux says.pool=b
//	health n1 lost | intent n1 hold | drain n1 | rejoin n1 cpu=.. os=..  | gone n1
//	node g1 cpu=8 memory=64GiB gpu=A:2:shared gpu=B:4 meta.rack=r1    of its offering
//	pool a spread
//	job web count=3 cpu=1 memory=1GiB priority=50 pool=a attempts=3 backoff=1s needs os = linux; zone in z1, z2
//	job train cores=2 gpu=2:A|B gpu=0.5 port=80 distinct affinity=data likes zone = z1 +100; arch = arm -50 spread zone weight=100 z1=80; meta.rack
//	replace web ...        as job
//	job web type=service image=b max_parallel=2 min_healthy=10s deadline=1m auto_revert      type=system as well
//	run web 0 1 2          their newest attempts run
//	rollout web done | failed
//	size web 3             how many members a system job shall ever have had
//	place web 0 1 2 n1     members' next attempts
//	end web 0 succeeded | failed | node-fault | outside | stopped
//	stop web | park web reason... | unpark web
//	limit default allocs=2 jobs=9 cpu=1 | limit *
//	shares team-a=3 team-*=1
//	wait 10s
type Cluster struct {
	State *state.State

	t     testing.TB
	index uint64
	now   muster.Time
	pools []state.Pool
}

// New makes an empty cluster whose clock stands at now.
func New(t testing.TB, now muster.Time) *Cluster {
	t.Helper()
	s, err := state.New(1 << 12)
	if err != nil {
		t.Fatal(err)
	}
	return On(t, s, now)
}

// On is a cluster that goes on with a state.
func On(t testing.TB, s *state.State, now muster.Time) *Cluster {
	return &Cluster{State: s, t: t, now: now}
}

// Read makes a cluster of text; # begins a comment. It begins at one second past zero.
func Read(t testing.TB, text string) *Cluster {
	t.Helper()
	c := New(t, muster.Time(time.Second/time.Microsecond))
	c.Do(text)
	return c
}

// Now is the cluster's clock: one millisecond per fact, and what was waited.
func (c *Cluster) Now() muster.Time { return c.now }

// Snapshot is the newest.
func (c *Cluster) Snapshot() *state.Snapshot { return c.State.Latest() }

// Apply applies a fact and returns its value, or its error.
func (c *Cluster) Apply(f state.Fact) any {
	c.t.Helper()
	b, err := c.State.Encode(f)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	c.now += 1000
	return c.State.Apply(c.index, 1, int64(c.now), [][]byte{b})[0]
}

// Do carries out lines of text.
func (c *Cluster) Do(text string) {
	c.t.Helper()
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		facts, err := c.Facts(line)
		if err != nil {
			c.t.Fatalf("%s: %v", line, err)
		}
		for _, f := range facts {
			switch v := c.Apply(f).(type) {
			case error:
				c.t.Fatalf("%s: %v", line, v)
			case *state.PlanResult:
				if len(v.Refused) > 0 {
					c.t.Fatalf("%s: %s", line, v.Refused[0].Reason)
				}
			}
		}
	}
}

// Facts are what a line means in the cluster as it is. The line wait moves the clock.
func (c *Cluster) Facts(line string) ([]state.Fact, error) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return nil, fmt.Errorf("want a verb and a name")
	}
	name, rest := words[1], words[2:]
	switch words[0] {
	case "pool":
		p := state.Pool{Name: muster.PoolName(name), Provider: "p", Max: 100, Spread: slices.Contains(rest, "spread")}
		c.pools = append(slices.DeleteFunc(c.pools, func(o state.Pool) bool { return o.Name == p.Name }), p)
		return []state.Fact{&state.PoolsSet{Pools: slices.Clone(c.pools)}}, nil
	case "node":
		return nodeFacts(muster.NodeID(name), rest)
	case "leader":
		term, err := strconv.ParseUint(name, 10, 64)
		return []state.Fact{&state.TermBegan{Term: term, Cluster: "c"}}, err
	case "rejoin":
		_, joined, err := node(muster.NodeID(name), rest)
		return []state.Fact{joined}, err
	case "health":
		return []state.Fact{&state.NodeHealthChanged{ID: muster.NodeID(name), Health: muster.NodeHealth(rest[0])}}, nil
	case "intent":
		return []state.Fact{&state.NodeIntentSet{ID: muster.NodeID(name), Intent: muster.NodeIntent(rest[0])}}, nil
	case "drain":
		return []state.Fact{&state.NodeDraining{ID: muster.NodeID(name)}}, nil
	case "gone":
		return []state.Fact{&state.NodeGone{ID: muster.NodeID(name)}}, nil
	case "job", "replace":
		f, err := Job(name, rest...)
		if err == nil {
			f.Replace = words[0] == "replace"
		}
		return []state.Fact{f}, err
	case "stop":
		return []state.Fact{&state.JobStopped{Key: Key(name)}}, nil
	case "park":
		return []state.Fact{&state.JobParked{UID: UID(name), Reason: strings.Join(rest, " ")}}, nil
	case "unpark":
		return []state.Fact{&state.JobParked{UID: UID(name)}}, nil
	case "place":
		return c.placed(name, rest)
	case "end":
		return c.ended(name, rest)
	case "run":
		return c.running(name, rest)
	case "rollout":
		j := c.Snapshot().JobByUID(UID(name))
		return []state.Fact{&state.RolloutMoved{UID: j.UID, Version: j.Version, Stage: muster.RolloutStage(rest[0]), Reason: "as the test says"}}, nil
	case "size":
		j := c.Snapshot().JobByUID(UID(name))
		n, err := strconv.Atoi(rest[0])
		return []state.Fact{&state.SystemSized{UID: j.UID, Version: j.Version, Count: n}}, err
	case "limit":
		return limit(name, rest)
	case "shares":
		f := &state.SharesSet{}
		for _, w := range words[1:] {
			match, weight, _ := strings.Cut(w, "=")
			n, err := strconv.Atoi(weight)
			if err != nil {
				return nil, err
			}
			f.Rules = append(f.Rules, state.ShareRule{Match: match, Weight: n})
		}
		return []state.Fact{f}, nil
	case "wait":
		d, err := time.ParseDuration(name)
		c.now = c.now.Add(d)
		return nil, err
	}
	return nil, fmt.Errorf("verb %s is unknown", words[0])
}

// limit reads what a namespace may have; nothing lifts its limits.
func limit(name string, words []string) ([]state.Fact, error) {
	l := state.NamespaceLimits{Name: muster.Namespace(name)}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(v)
		if err != nil {
			return nil, err
		}
		switch k {
		case "jobs":
			l.Jobs = n
		case "allocs":
			l.Allocs = n
		case "cpu":
			l.CPU = muster.MilliCPU(n) * 1000
		default:
			return nil, fmt.Errorf("limit %s is unknown", k)
		}
	}
	return []state.Fact{&state.NamespaceLimited{Limits: l}}, nil
}

// Key of a job by its name in text.
func Key(name string) muster.JobKey {
	if ns, n, ok := strings.Cut(name, "/"); ok {
		return muster.JobKey{Namespace: muster.Namespace(ns), Name: n}
	}
	return muster.JobKey{Namespace: muster.DefaultNamespace, Name: name}
}

// UID of a job by its name in text: uids must not have dashes.
func UID(name string) muster.JobUID {
	return muster.JobUID(strings.NewReplacer("-", "", "/", ".").Replace(name))
}

func nodeFacts(id muster.NodeID, words []string) ([]state.Fact, error) {
	stage := muster.NodeServing
	for i, w := range words {
		if s, ok := strings.CutPrefix(w, "stage="); ok {
			stage = muster.NodeStage(s)
			words = slices.Delete(slices.Clone(words), i, i+1)
			break
		}
	}
	launching, joined, err := node(id, words)
	facts := []state.Fact{launching}
	if stage != muster.NodeLaunching {
		facts = append(facts, &state.NodeLaunched{ID: id, Instance: muster.InstanceID("i." + id)})
	}
	if stage == muster.NodeServing {
		facts = append(facts, joined)
	}
	return facts, err
}

func node(id muster.NodeID, words []string) (*state.NodeLaunching, *state.NodeJoined, error) {
	o := muster.Offering{Provider: "p", Name: "any", Market: muster.OnDemand}
	pool := muster.PoolName("default")
	attributes := map[string]string{}
	var err error
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "pool":
			pool = muster.PoolName(v)
		case "offering":
			o.Name = muster.OfferingName(v)
		case "zone":
			o.Zone = v
		case "market":
			o.Market = muster.Market(v)
		case "provider":
			o.Provider = muster.ProviderName(v)
		case "gpu":
			model, rest, _ := strings.Cut(v, ":")
			count, shared, _ := strings.Cut(rest, ":")
			d := muster.Device{Kind: "gpu", Model: model, Shared: shared != ""}
			d.Count, err = strconv.Atoi(count)
			o.Devices = append(o.Devices, d)
		default:
			var known bool
			if known, err = amount(&o.Capacity, k, v); !known && strings.HasPrefix(k, muster.MetaPrefix) {
				if o.Attributes == nil {
					o.Attributes = map[string]string{}
				}
				o.Attributes[k] = v
			} else if !known {
				attributes[strings.TrimPrefix(k, "says.")] = v
			}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", w, err)
		}
	}
	return &state.NodeLaunching{ID: id, Token: muster.Token("t." + id), Pool: pool, Offering: o},
		&state.NodeJoined{ID: id, Capacity: o.Capacity, Attributes: attributes}, nil
}

func amount(r *muster.Resources, k, v string) (known bool, err error) {
	var size api.Size
	switch k {
	case "cpu":
		f, err := strconv.ParseFloat(v, 64)
		r.CPU = muster.MilliCPU(f * 1000)
		return true, err
	case "memory":
		size, err = api.ParseSize(v)
		r.Memory = size.Bytes()
		return true, err
	case "disk":
		size, err = api.ParseSize(v)
		r.Disk = size.Bytes()
		return true, err
	}
	return false, nil
}

// Job makes a submission of words as "count=3"; the defaults are 1 member of 1
// core and 1 GiB at priority 50.
func Job(name string, words ...string) (*state.JobSubmitted, error) {
	priority := muster.DefaultPriority
	s := &api.JobSpec{Count: 1, Template: api.Template{Priority: &priority, Command: []string{"true"}},
		Restart: api.RestartSpec{Attempts: 1, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)}}
	s.Name, s.Namespace = Key(name).Name, string(Key(name).Namespace)
	ask := muster.Resources{CPU: 1000, Memory: muster.GiB}
	var err error
	var names api.ResourcesSpec
	words, err = sections(s, words)
	if err != nil {
		return nil, err
	}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "count":
			s.Count, err = strconv.Atoi(v)
		case "priority":
			priority, err = strconv.Atoi(v)
		case "attempts":
			s.Restart.Attempts, err = strconv.Atoi(v)
			s.Restart.On = []string{"any"}
		case "backoff":
			var d time.Duration
			d, err = time.ParseDuration(v)
			s.Restart.Backoff = api.Duration(d)
		case "pool":
			s.Pool = v
		case "cores":
			names.Cores, err = strconv.Atoi(v)
			ask.CPU = muster.MilliCPU(names.Cores) * 1000
		case "gpu":
			amount, models, some := strings.Cut(v, ":")
			d := api.DeviceAskSpec{Kind: "gpu"}
			if d.Part, err = strconv.ParseFloat(amount, 64); d.Part == float64(int(d.Part)) {
				d.Count, d.Part = int(d.Part), 0
			}
			if some {
				d.Models = strings.Split(models, "|")
			}
			names.Devices = append(names.Devices, d)
		case "port":
			var p int
			p, err = strconv.Atoi(v)
			names.Ports = append(names.Ports, p)
		case "distinct":
			s.DistinctHosts = true
		case "type":
			s.Type = v
		case "image":
			s.Image = v
		case "max_parallel", "min_healthy", "deadline", "auto_revert":
			err = updates(s, k, v)
		case "affinity":
			s.Affinity = v
		default:
			var known bool
			if known, err = amount(&ask, k, v); !known {
				err = fmt.Errorf("unknown")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
	}
	s.Resources = names
	if muster.JobType(s.Type).Standing() {
		s.Restart = api.RestartSpec{}
		s.Defaults()
	}
	s.Resources.CPU, s.Resources.Memory, s.Resources.Disk = float64(ask.CPU)/1000, api.Size(ask.Memory), api.Size(ask.Disk)
	return &state.JobSubmitted{Key: Key(name), UID: UID(name), Spec: s}, err
}

// updates reads how a service is updated.
func updates(s *api.JobSpec, k, v string) (err error) {
	if s.Update == nil {
		s.Update = &api.UpdateSpec{}
	}
	var d time.Duration
	switch k {
	case "max_parallel":
		s.Update.MaxParallel, err = strconv.Atoi(v)
	case "min_healthy":
		d, err = time.ParseDuration(v)
		s.Update.MinHealthyTime = api.Duration(d)
	case "deadline":
		d, err = time.ParseDuration(v)
		s.Update.HealthyDeadline = api.Duration(d)
	default:
		s.Update.AutoRevert = true
	}
	return err
}

// running reports that the newest attempts of members run.
func (c *Cluster) running(name string, words []string) (facts []state.Fact, err error) {
	for _, w := range words {
		i, err := strconv.Atoi(w)
		if err != nil {
			return nil, err
		}
		m := c.Snapshot().Member(UID(name), i)
		if m == nil {
			return nil, fmt.Errorf("member %d was never placed", i)
		}
		a := c.Snapshot().Alloc(m.Alloc())
		facts = append(facts, &state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{{ID: a.ID, Status: muster.AllocRunning, Started: c.now}}})
	}
	return facts, nil
}

// sections reads what follows needs, likes and spread, each up to the next of them, and returns the words before.
func sections(s *api.JobSpec, words []string) ([]string, error) {
	for i := len(words) - 1; i >= 0; i-- {
		text := strings.Join(words[i+1:], " ")
		var err error
		switch words[i] {
		case "needs":
			s.Constraints, err = constraints(text)
		case "likes":
			s.Affinities, err = affinities(text)
		case "spread":
			s.Spread, err = spreads(text)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		words = words[:i]
	}
	return words, nil
}

func constraints(text string) ([]api.ConstraintSpec, error) {
	var out []api.ConstraintSpec
	for part := range strings.SplitSeq(text, ";") {
		w := strings.Fields(part)
		if len(w) < 2 || !slices.Contains(muster.Operators(), w[1]) {
			return nil, fmt.Errorf("condition %q is not one", part)
		}
		c := api.ConstraintSpec{Attribute: w[0], Op: w[1]}
		switch w[1] {
		case muster.OpIn, muster.OpNotIn:
			c.Values = strings.Split(strings.Join(w[2:], ""), ",")
		default:
			c.Value = strings.Join(w[2:], " ")
		}
		out = append(out, c)
	}
	return out, nil
}

func affinities(text string) ([]api.AffinitySpec, error) {
	var out []api.AffinitySpec
	for part := range strings.SplitSeq(text, ";") {
		w := strings.Fields(part)
		weight, err := strconv.Atoi(w[len(w)-1])
		if err != nil {
			return nil, fmt.Errorf("affinity %q has no weight", part)
		}
		c, err := constraints(strings.Join(w[:len(w)-1], " "))
		if err != nil {
			return nil, err
		}
		out = append(out, api.AffinitySpec{Attribute: c[0].Attribute, Op: c[0].Op, Value: c[0].Value, Values: c[0].Values, Weight: weight})
	}
	return out, nil
}

func spreads(text string) ([]api.SpreadSpec, error) {
	var out []api.SpreadSpec
	for part := range strings.SplitSeq(text, ";") {
		w := strings.Fields(part)
		s := api.SpreadSpec{Attribute: w[0], Weight: api.DefaultWeight}
		for _, t := range w[1:] {
			k, v, _ := strings.Cut(t, "=")
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t, err)
			}
			if k == "weight" {
				s.Weight = n
			} else {
				s.Targets = append(s.Targets, api.SpreadTarget{Value: k, Percent: n})
			}
		}
		out = append(out, s)
	}
	return out, nil
}

func (c *Cluster) placed(name string, words []string) ([]state.Fact, error) {
	j := c.Snapshot().JobByUID(UID(name))
	if j == nil || len(words) < 2 {
		return nil, fmt.Errorf("want a job, its members and a node")
	}
	f := &state.PlanCommitted{}
	last := len(words) - 1
	n := c.Snapshot().Node(muster.NodeID(words[last]))
	var taken muster.Taken
	if n != nil {
		taken = n.Taken
	}
	for _, w := range words[:last] {
		i, err := strconv.Atoi(w)
		if err != nil {
			return nil, err
		}
		attempt := j.AttemptBase + 1
		if m := c.Snapshot().Member(j.UID, i); m != nil {
			attempt = m.Attempt + 1
		}
		p := state.Placement{UID: j.UID, Version: j.Version, Index: i, Attempt: attempt, Node: muster.NodeID(words[last])}
		if n != nil {
			p.Grant, _ = taken.Give(j.Run.Names, n.Cores(), n.Devices())
			taken, _ = taken.Take(j.Run.Names, p.Grant, n.Cores(), n.Devices())
		}
		f.Placements = append(f.Placements, p)
	}
	return []state.Fact{f}, nil
}

func (c *Cluster) ended(name string, words []string) ([]state.Fact, error) {
	i, err := strconv.Atoi(words[0])
	if err != nil {
		return nil, err
	}
	m := c.Snapshot().Member(UID(name), i)
	if m == nil {
		return nil, fmt.Errorf("member %d was never placed", i)
	}
	a := c.Snapshot().Alloc(m.Alloc())
	u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed}
	fail := func(class muster.FailureClass, reason muster.Reason) {
		u.Failure = &muster.Failure{Class: class, Reason: reason, Message: string(reason)}
	}
	switch words[1] {
	case "succeeded":
		u.Outcome = muster.OutcomeSucceeded
	case "stopped":
		u.Outcome = muster.OutcomeStopped
	case "failed":
		u.ExitCode = 1
		fail(muster.FailureUser, muster.ReasonExit)
	case "node-fault":
		fail(muster.FailureNode, muster.ReasonNodeFault)
	case "outside":
		fail(muster.FailureOutside, muster.ReasonInput)
	default:
		return nil, fmt.Errorf("end %s is unknown", words[1])
	}
	facts := []state.Fact{&state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{u}}}
	if n := c.Snapshot().Node(a.Node); words[1] == "node-fault" && n.Health == muster.NodeGood && len(n.Recent(c.Snapshot().Meta().Time)) < state.FlakyFailures-1 {
		// It is probed, and proves to be ready.
		facts = append(facts, &state.NodeHealthChanged{ID: n.ID, Health: muster.NodeGood})
	}
	return facts, nil
}

// Placements is a plan as text: a line per node, with the members it gets as
// job[index], and #attempt from the second on.
func Placements(snap *state.Snapshot, placements []state.Placement) string {
	lines := map[muster.NodeID][]string{}
	for _, p := range placements {
		name := string(p.UID)
		base := 0
		if j := snap.JobByUID(p.UID); j != nil {
			name, base = j.Key.String(), j.AttemptBase
		}
		s := fmt.Sprintf("%s[%d]", name, p.Index)
		if p.Attempt > base+1 {
			s += fmt.Sprintf("#%d", p.Attempt)
		}
		if len(p.Grant.Cores) > 0 {
			s += fmt.Sprintf(" on cores %v", p.Grant.Cores)
		}
		if len(p.Grant.Devices) > 0 {
			s += fmt.Sprintf(" with gpu %v", p.Grant.Devices)
		}
		lines[p.Node] = append(lines[p.Node], s)
	}
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "%s: %s\n", id, strings.Join(lines[id], " "))
	}
	return b.String()
}

// Overfull says which node is over capacity, or holds what its allocations do
// not add up to; empty if none.
func Overfull(snap *state.Snapshot) string {
	var out string
	snap.Nodes("", func(n *state.Node) bool {
		var sum muster.Resources
		snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			sum = sum.Add(a.Run.Ask)
			return true
		})
		switch {
		case sum != n.Used:
			out = fmt.Sprintf("node %s says %s used, its allocations hold %s", n.ID, n.Used, sum)
		case !n.Used.Fits(n.Capacity):
			out = fmt.Sprintf("node %s has %s, used are %s", n.ID, n.Capacity, n.Used)
		}
		return out == ""
	})
	return out
}
