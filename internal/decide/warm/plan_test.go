package warm

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func env(least, most int) *state.Environment {
	s := &api.EnvironmentSpec{Name: "e", Warm: api.WarmSpec{Min: &least, Max: most}}
	s.Defaults()
	return &state.Environment{Spec: s, LastClaim: 1}
}

func TestStockFollowsWhatWasClaimedWithinAStart(t *testing.T) {
	burst := make([]int, 600)
	burst[100], burst[101], burst[400] = 4, 5, 3
	for name, c := range map[string]struct {
		demand Demand
		idle   time.Duration
		want   int
		why    string
	}{
		"nothing":     {Demand{}, 0, 1, "the minimum"},
		"one second":  {Demand{Arrivals: burst, Starts: []time.Duration{time.Second}}, 0, 5, "within 1s"},
		"two seconds": {Demand{Arrivals: burst, Starts: []time.Duration{1900 * time.Millisecond}}, 0, 9, "within 1.9s"},
		"unknown":     {Demand{Arrivals: burst}, 0, 9, "within 2s"},
		"long starts": {Demand{Arrivals: burst, Starts: []time.Duration{time.Hour}}, 0, 10, "the maximum"},
		"quiet":       {Demand{Arrivals: burst}, 10 * time.Minute, 1, "nothing was claimed for 10m"},
	} {
		e := env(1, 10)
		n, why := Stock(e, c.demand, e.LastClaim.Add(c.idle))
		if n != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %d because %q, want %d because of %q", name, n, why, c.want, c.why)
		}
	}
	e := env(0, 10)
	if n, _ := Stock(e, Demand{Arrivals: burst}, e.LastClaim.Add(time.Hour)); n != 0 {
		t.Errorf("after a quiet time %d are kept, and the minimum is 0", n)
	}
}

// cluster is an environment whose runners come and go as they are wanted.
type cluster struct {
	t     rapid.TB
	s     *state.State
	index uint64
	now   muster.Time
}

func (c *cluster) do(f state.Fact) any {
	b, err := c.s.Encode(f)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	c.now += 1000
	v := c.s.Apply(c.index, 1, int64(c.now), [][]byte{b})[0]
	if err, is := v.(error); is {
		c.t.Fatalf("%T: %v", f, err)
	}
	return v
}

func (c *cluster) job() *state.Job { return c.s.Latest().Environment("default", "e") }

// settle plans and carries out until nothing more is to be done, all that is wanted starting at once. Each says
// what a step did.
func (c *cluster) settle(d Demand, each func(Decision)) {
	for range 100 {
		j := c.job()
		p := Plan(c.s.Latest(), j, d, c.now)
		if p.Count == j.Env.Wanted && len(p.Stop) == 0 && !p.Drop {
			return
		}
		each(p)
		c.do(&state.RunnersWanted{UID: j.UID, Count: p.Count, Priority: p.Priority, Stock: p.Stock, Floor: p.Floor, Drop: p.Drop})
		if len(p.Stop) > 0 {
			c.do(&state.RunnersStopped{UID: j.UID, Runners: p.Stop})
		}
		j = c.job()
		for i := j.NextIndex; i < j.Count(); i++ {
			c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: j.UID, Version: j.Version, Index: i, Attempt: 1, Node: "n"}}})
			c.do(&state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID(j.UID, i, 1), Status: muster.AllocRunning}}})
		}
	}
	c.t.Fatal("what an environment wants never settles")
}

func newCluster(t rapid.TB, least, most int) *cluster {
	s, err := state.New(64)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, s: s, now: 1_000_000}
	room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
	c.do(&state.NodeLaunching{ID: "n", Token: "t", Offering: muster.Offering{Capacity: room}})
	c.do(&state.NodeLaunched{ID: "n", Instance: "i"})
	c.do(&state.NodeJoined{ID: "n", Capacity: room})
	c.set(least, most, "")
	return c
}

func (c *cluster) set(least, most int, image string) {
	s := &api.EnvironmentSpec{Name: "e", Template: api.Template{Image: image}, Warm: api.WarmSpec{Min: &least, Max: most}}
	s.Defaults()
	c.do(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: s})
}

// D2: what nobody has of a node that drains moves: its successors first, as long as there is time, and then without them. On a
// broken node it ends at once. A node in trouble of another kind keeps what it has.
func TestRunnersLeaveANodeThatDrains(t *testing.T) {
	for name, f := range map[string]state.Fact{
		"drains": &state.NodeDraining{ID: "n", Reason: "an operator's"},
		"drain":  &state.NodeIntentSet{ID: "n", Intent: muster.NodeDrain},
		"broken": &state.NodeHealthChanged{ID: "n", Health: muster.NodeBroken, Reason: "its disk"},
		"lost":   &state.NodeHealthChanged{ID: "n", Health: muster.NodeLost},
	} {
		c := newCluster(t, 3, 3)
		c.settle(Demand{}, func(Decision) {})
		c.do(&state.RunnerClaimed{Claim: "c", UID: "u", Runner: "u-0-1"})
		c.settle(Demand{}, func(Decision) {})
		c.do(f)
		at := c.now
		p := Plan(c.s.Latest(), c.job(), Demand{}, c.now)
		switch name {
		case "drains", "drain":
			// A successor is wanted; nothing ends before it is warm, but for a bounded time.
			if len(p.Stop) > 0 || p.Count != c.job().NextIndex+1 || p.Wake > at.Add(moveWithin) {
				t.Errorf("%s: %+v", name, p)
			}
			c.now = at.Add(moveWithin)
			if p := Plan(c.s.Latest(), c.job(), Demand{}, c.now); len(p.Stop) != 3 || p.Count != c.job().NextIndex+3 || p.StopWhy != "its node n drains" {
				t.Errorf("%s, later: %+v", name, p)
			}
		case "broken":
			if len(p.Stop) != 3 || p.Count != c.job().NextIndex+3 {
				t.Errorf("%s: %+v", name, p)
			}
		default:
			if len(p.Stop) > 0 || p.Count != c.job().NextIndex {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
}

// D6: who has counted claims for a moment only, as after a restart, ends no stock for what it has not seen.
func TestStockAfterARestart(t *testing.T) {
	e := env(1, 20)
	e.Stock = 11
	for after, want := range map[time.Duration]int{time.Second: 11, Window - time.Second: 11, Window: 1} {
		e.LastClaim = 2_000_000_000
		now := e.LastClaim.Add(time.Minute)
		if n, why := Stock(e, Demand{Since: now.Add(-after)}, now); n != want {
			t.Errorf("%d warm after %v, want %d: %s", n, after, want, why)
		}
	}
	now := e.LastClaim.Add(time.Hour)
	if n, _ := Stock(e, Demand{Since: now.Add(-time.Second)}, now); n != 1 {
		t.Errorf("%d are kept after a quiet time", n)
	}
	if n, _ := Stock(e, Demand{Since: e.LastClaim, Arrivals: []int{15}}, e.LastClaim.Add(time.Minute)); n != 15 {
		t.Errorf("%d, though 15 were claimed at once", n)
	}
	e.Stock = 50 // of an earlier version, with another maximum
	if n, _ := Stock(e, Demand{Since: e.LastClaim}, e.LastClaim.Add(time.Minute)); n != 20 {
		t.Errorf("%d, and the maximum is 20", n)
	}
}

func TestWarmRunnersAreReplacedOneByOne(t *testing.T) {
	c := newCluster(t, 3, 3)
	c.settle(Demand{}, func(Decision) {})
	c.do(&state.RunnerClaimed{Claim: "c", UID: "u", Runner: "u-0-1"})
	c.settle(Demand{}, func(Decision) {})
	c.set(3, 3, "other")
	steps := 0
	c.settle(Demand{}, func(p Decision) {
		steps++
		if len(p.Stop) > 1 {
			t.Errorf("%d warm runners end at once", len(p.Stop))
		}
		if w := c.job().Env.Warm; w < 3 {
			t.Errorf("only %d are warm on the way", w)
		}
	})
	j := c.job()
	old := 0
	c.s.Latest().Runners(j.UID, muster.RunnerWarm, func(a *state.Alloc) bool {
		if a.Version != j.Version {
			old++
		}
		return true
	})
	if old != 0 || j.Env.Warm != 3 || j.Env.Claimed != 1 || steps < 3 {
		t.Fatalf("after %d steps %d of %d warm ones are outdated, %d are claimed", steps, old, j.Env.Warm, j.Env.Claimed)
	}
}

func TestThePlanSettlesAtWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(0, 4).Draw(t, "min")
		c := newCluster(t, least, 6)
		for i := range 6 {
			d := Demand{Waiting: rapid.IntRange(0, 3).Draw(t, "waiting"), Arrivals: []int{rapid.IntRange(0, 8).Draw(t, "arrivals")}}
			if rapid.Bool().Draw(t, "claim") {
				var warm muster.AllocID
				c.s.Latest().Runners("u", muster.RunnerWarm, func(a *state.Alloc) bool { warm = a.ID; return false })
				if warm != "" {
					c.do(&state.RunnerClaimed{Claim: muster.ClaimID(warm), UID: "u", Runner: warm})
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "change") == 0 {
				c.set(least, 6, []string{"a", "b"}[i%2])
			}
			claimed := c.job().Env.Claimed
			c.settle(d, func(p Decision) {
				if p.Stock < least || p.Stock > 6 || p.Floor > p.Stock+d.Waiting {
					t.Fatalf("stock %d, floor %d", p.Stock, p.Floor)
				}
			})
			j := c.job()
			want, _ := Stock(j.Env, d, c.now)
			if j.Env.Warm != want+d.Waiting || j.Env.Claimed != claimed {
				t.Fatalf("%d are warm and %d wanted; %d were claimed, now %d", j.Env.Warm, want+d.Waiting, claimed, j.Env.Claimed)
			}
			if err := c.s.Latest().Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Who begins a term after a long gap gives runners as long as their readiness may take, since nobody was there to hear of it.
func TestReadinessCountsFromTheTerm(t *testing.T) {
	c := newCluster(t, 1, 1)
	one := 1
	s := &api.EnvironmentSpec{Name: "e", Warm: api.WarmSpec{Min: &one, Max: 1}, Template: api.Template{Ready: &api.ReadySpec{Command: []string{"true"}, GiveUp: api.Duration(time.Minute)}}}
	s.Defaults()
	c.do(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: s})
	c.settle(Demand{}, func(Decision) {})
	c.now = c.now.Add(24 * time.Hour)
	c.do(&state.TermBegan{Term: 2, Cluster: "c"})
	d := Plan(c.s.Latest(), c.job(), Demand{}, c.now)
	if len(d.Unready) != 0 || d.Wake.Sub(c.now) < time.Minute {
		t.Fatalf("as the term begins: %+v", d)
	}
	due := d.Wake
	if d := Plan(c.s.Latest(), c.job(), Demand{}, due-1); len(d.Unready) != 0 {
		t.Errorf("before its time: %+v", d)
	}
	if d := Plan(c.s.Latest(), c.job(), Demand{}, due); len(d.Unready) != 1 {
		t.Errorf("after it: %+v", d)
	}
}

// A start that failed holds new starts up for longer and longer. What is due before that is not held up with them.
func TestBackoffOfStartsDelaysNothingElse(t *testing.T) {
	c := newCluster(t, 3, 3)
	c.settle(Demand{}, func(Decision) {})
	at := c.now
	c.do(&state.NodeDraining{ID: "n", Reason: "flaky"})
	j := *c.job()
	e := *j.Env
	e.Failures, e.FailedAt = 8, c.now
	j.Env = &e
	if due := e.StartAt(); due <= at.Add(2*moveWithin) {
		t.Fatalf("starts are held up until %v only", due)
	}
	// Idle by its own demand, so that nothing else makes the next look come soon.
	e.LastClaim = c.now.Add(-time.Hour)
	if p := Plan(c.s.Latest(), &j, Demand{}, c.now); p.Wake == 0 || p.Wake > at.Add(moveWithin+time.Second) {
		t.Errorf("runners leave the node within %v, and the next look is at %v", moveWithin, p.Wake.Sub(at))
	}
}

// What one leader records, the next decides by: the stock is the same, also after many changes of the
// leader, and falls once the peak is out of the window.
func TestStockIsTheSameAfterAHandOver(t *testing.T) {
	now := muster.Time(1_000_000_000_000)
	e := env(1, 50)
	e.LastClaim, e.Stock = now, 1
	e.Spec.Warm.Quiet = api.Duration(time.Hour)
	arrivals := make([]int, 600)
	arrivals[590], arrivals[591], arrivals[300] = 7, 5, 3
	starts := []time.Duration{1500 * time.Millisecond, 1600 * time.Millisecond}
	first := Demand{Arrivals: arrivals, Starts: starts}
	want, _ := Stock(e, first, now)
	if want != 12 {
		t.Fatalf("the stock is %d, want 12: as many claims came within two seconds", want)
	}
	rec := Record(first, now)
	if len(rec.Peaks) != 2 || rec.Start < 1_600_000 || rec.Start > 2_000_000 {
		t.Fatalf("recorded is %+v", rec)
	}
	e.Stock = want
	for i := range 8 {
		// Each leads for a minute and counts nothing.
		now = now.Add(time.Minute)
		d := Demand{Since: now.Add(-time.Minute), Arrivals: make([]int, 600), Before: rec}
		if n, why := Stock(e, d, now); n != want {
			t.Fatalf("after %d changes of the leader the stock is %d: %s", i+1, n, why)
		}
		rec = Record(d, now)
	}
	now = now.Add(4 * time.Minute)
	d := Demand{Since: now.Add(-time.Minute), Arrivals: make([]int, 600), Before: rec}
	if n, why := Stock(e, d, now); n != 1 {
		t.Errorf("12 minutes after the last claim the stock is %d: %s", n, why)
	}
}

// Nobody led for long: what is wanted now is not known, and the stock stays until it has been
// measured.
func TestStockStaysAfterALongTimeWithoutALeader(t *testing.T) {
	now := muster.Time(1_000_000_000_000)
	e := env(1, 50)
	e.LastClaim, e.Stock, e.Spec.Warm.Quiet = now, 12, api.Duration(time.Hour)
	rec := &state.WarmDemand{Peaks: []state.Peak{{Minute: now.Add(-time.Hour), Claims: 12}}}
	d := Demand{Since: now.Add(-time.Second), Before: rec}
	if n, why := Stock(e, d, now); n != 12 {
		t.Errorf("the stock is %d: %s", n, why)
	}
	if n, _ := Stock(e, d, now.Add(Window)); n != 1 {
		t.Errorf("after the window the stock is %d", n)
	}
}
