package roll_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// TestRolloutProperty: whatever happens to nodes and members meanwhile, a rollout never takes more members away than
// max_parallel allows, there is never more than one allocation of a member, it stops when the new version does not
// run, having touched no more than max_parallel healthy members, and comes to its end when it does.
func TestRolloutProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{t: rt, c: fittest.Read(t, ""), nodes: 3, closed: map[muster.NodeID]bool{}}
		w.count, w.k = rapid.IntRange(1, 8).Draw(rt, "count"), rapid.IntRange(1, 4).Draw(rt, "k")
		kind := rapid.SampledFrom([]string{"service", "service", "system"}).Draw(rt, "type")
		revert := ""
		if rapid.Bool().Draw(rt, "auto revert") {
			revert = " auto_revert"
		}
		w.submit = func(version string) {
			line := fmt.Sprintf("job web type=%s cpu=0.1 memory=1MiB affinity=%s max_parallel=%d min_healthy=10s deadline=1m%s", kind, version, w.k, revert)
			if kind == "service" {
				line += fmt.Sprintf(" count=%d", w.count)
			}
			w.c.Do(line)
		}
		for i := range w.nodes {
			w.c.Do(fmt.Sprintf("node n%d cpu=4 memory=4GiB", i+1))
		}
		w.submit("good1")
		w.quiet("done")
		bad := rapid.Bool().Draw(rt, "bad")
		if bad {
			w.submit("bad")
		} else {
			w.submit("good2")
		}
		w.taken = 0
		for range rapid.IntRange(0, 40).Draw(rt, "steps") {
			w.disturb()
			w.step(time.Duration(rapid.IntRange(1, 9).Draw(rt, "seconds")) * time.Second)
		}
		if !bad {
			w.quiet("done")
			return
		}
		if revert != "" {
			w.quiet("done")
			if j := w.job(); j.Standing.Reverts == 0 && !w.allGood() {
				rt.Fatalf("it did not go back: %+v", j.Standing)
			}
		} else {
			w.quiet("failed")
			most := w.k
			if kind == "system" {
				// A member that is given the version goes with its node, or finds it closed, and another takes its turn.
				most += w.gone + len(w.closed)
			}
			if w.taken > most {
				rt.Fatalf("%d healthy members were taken for a version that does not run; %d are allowed", w.taken, most)
			}
		}
	})
}

// world is a cluster in which what is placed starts within a second, and ends soon after if its version is bad.
type world struct {
	t        *rapid.T
	c        *fittest.Cluster
	nodes    int
	count, k int
	submit   func(version string)
	taken    int // healthy members that were ended for another version
	gone     int // nodes
	// closed are nodes that were drained, or out of contact while a member waited to come back to them: for that long a
	// system job wants none there.
	closed map[muster.NodeID]bool
}

func (w *world) job() *state.Job { return w.c.Snapshot().JobByUID("web") }

func (w *world) allGood() bool {
	good := true
	w.live(func(a *state.Alloc) { good = good && strings.HasPrefix(a.Run.Spec.Affinity, "good") })
	return good
}

// settled: nobody is on the way.
func (w *world) settled() bool {
	p := roll.ProgressOf(w.c.Snapshot(), w.job(), w.c.Now())
	return w.job().Standing.Rollout == muster.RolloutFailed || p.Healthy == p.Wanted && p.Wanted == w.c.Snapshot().LiveAllocCount()
}

func (w *world) live(fn func(*state.Alloc)) {
	var all []*state.Alloc
	w.c.Snapshot().LiveAllocs(func(a *state.Alloc) bool { all = append(all, a); return true })
	for _, a := range all {
		fn(a)
	}
}

// disturb has something happen that is nobody's wish.
func (w *world) disturb() {
	n := fmt.Sprintf("n%d", rapid.IntRange(1, w.nodes).Draw(w.t, "node"))
	row := w.c.Snapshot().Node(muster.NodeID(n))
	switch rapid.IntRange(0, 9).Draw(w.t, "what") {
	case 0:
		if row.Stage == muster.NodeServing && w.c.Snapshot().LiveNodeCount() > 1 {
			w.c.Do("gone " + n)
			w.gone++
		}
	case 1:
		if w.nodes < 6 {
			w.nodes++
			w.c.Do(fmt.Sprintf("node n%d cpu=4 memory=4GiB", w.nodes))
		}
	case 2:
		if row.Stage == muster.NodeServing && row.Health == muster.NodeGood {
			w.c.Do("health " + n + " lost")
			if row.LiveAllocs == 0 {
				w.closed[row.ID] = true
			}
		} else if row.Health == muster.NodeLost {
			w.c.Do("health " + n + " good")
		}
	case 3:
		w.live(func(a *state.Alloc) {
			if a.Desired == muster.AllocRun && a.Status == muster.AllocRunning && rapid.IntRange(0, 5).Draw(w.t, "crashes") == 0 && strings.HasPrefix(a.Run.Spec.Affinity, "good") && !w.young(a) {
				w.c.Do(fmt.Sprintf("end web %d failed", a.Index))
			}
		})
	case 4:
		if row.Stage == muster.NodeServing {
			intent := rapid.SampledFrom([]string{"run", "drain"}).Draw(w.t, "intent")
			w.c.Do("intent " + n + " " + intent)
			if intent == "drain" {
				w.closed[muster.NodeID(n)] = true
			}
		}
	}
}

// young: it was not healthy yet, and its end would count against its version.
func (w *world) young(a *state.Alloc) bool {
	at, ok := a.HealthyAt(w.job().Run.Spec.Update)
	return !ok || at > w.c.Now()
}

// step lets time go by, and everybody do their part once.
func (w *world) step(d time.Duration) {
	w.c.Do("wait " + d.String())
	// A node whose starts took too long, out of contact for instance, is sidelined; after that its probe passes.
	w.c.Snapshot().LiveNodes(func(n *state.Node) bool {
		if n.Health == muster.NodeFlaky && n.SidelinedUntil <= w.c.Now() {
			w.c.Do("health " + string(n.ID) + " unready")
			w.c.Do("health " + string(n.ID) + " good")
		}
		return true
	})
	w.live(func(a *state.Alloc) {
		if n := w.c.Snapshot().Node(a.Node); n.Health == muster.NodeLost {
			return // nothing is heard of it
		}
		switch {
		case a.Desired == muster.AllocStop:
			w.c.Do(fmt.Sprintf("end web %d stopped", a.Index))
		case a.Status == muster.AllocPlaced:
			w.c.Do(fmt.Sprintf("run web %d", a.Index))
		case a.Run.Spec.Affinity == "bad" && a.Status == muster.AllocRunning:
			w.c.Do(fmt.Sprintf("end web %d failed", a.Index))
		}
	})
	planned(w.t, w.c)
	for range 4 {
		w.roll()
	}
	if err := w.c.Snapshot().Check(); err != nil {
		w.t.Fatal(err)
	}
}

// roll decides once, and holds the bounds.
func (w *world) roll() {
	j := w.job()
	before := roll.ProgressOf(w.c.Snapshot(), j, w.c.Now())
	v := roll.Plan(w.c.Snapshot(), j, w.c.Now())
	healthy := 0
	for _, st := range v.Stops {
		if a := w.c.Snapshot().Alloc(st.Alloc); !w.young(a) {
			healthy++
			if st.Reason == muster.StopUpdated {
				w.taken++
			}
		}
	}
	now := w.c.Now()
	rollOnce(w.t, w.c)
	if len(v.Stops) == 0 {
		return
	}
	after := roll.ProgressOf(w.c.Snapshot(), w.job(), now)
	if healthy > 0 && after.Available < after.Wanted-w.k {
		w.t.Fatalf("%d of %d were available, and %d are after %d were stopped; at most %d may be missing", before.Available, before.Wanted, after.Available, len(v.Stops), w.k)
	}
}

// quiet lets a long time go by without a disturbance, longer than nodes are sidelined: the rollout must have come to this.
func (w *world) quiet(want string) {
	w.c.Snapshot().LiveNodes(func(n *state.Node) bool {
		if n.Health == muster.NodeLost {
			w.c.Do("health " + string(n.ID) + " good")
		}
		w.c.Do("intent " + string(n.ID) + " run")
		return true
	})
	for range 600 {
		w.step(4 * time.Second)
		if j := w.job(); string(j.Standing.Rollout) == want && w.allGood() == (want == "done") && w.settled() {
			break
		}
	}
	j := w.job()
	p := roll.ProgressOf(w.c.Snapshot(), j, w.c.Now())
	if got := string(j.Standing.Rollout); got != want {
		w.t.Fatalf("the rollout is %s (%s), want %s: %s", got, j.Standing.Reason, want, p)
	}
	if want == "done" && (p.Healthy != p.Wanted || p.Wanted == 0) {
		w.t.Fatalf("it is done, and %s", p)
	}
	if live := w.c.Snapshot().LiveAllocCount(); live > p.Wanted {
		w.t.Fatalf("%d allocations live, %d members are wanted", live, p.Wanted)
	}
}
