package place

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// A preview says where members would go and why, who would give way, and changes nothing.
func TestTry(t *testing.T) {
	c := fittest.Read(t, `
node n1 cpu=4 memory=4GiB arch=arm
node n2 cpu=2 memory=4GiB
node n3 cpu=1 memory=4GiB
job low priority=10 cpu=1 memory=1GiB
place low 0 n3
`)
	before := c.Snapshot()
	f, err := fittest.Job("new", "count=7", "priority=60", "cpu=1", "memory=1GiB", "likes", "arch", "=", "arm", "+40")
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := before.Suppose(f, c.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := Try(after, after.Job(f.Key), c.Now(), 1000)
	if len(p.Choices) != 2 || p.Choices[0].Node != "n1" || p.Choices[0].Members != 4 || p.Choices[0].Terms.String() != "preference +40.0 (arch = arm +40), tightness 0.25" || p.Choices[1].Node != "n2" || p.Choices[1].Members != 2 {
		t.Errorf("%+v", p.Choices)
	}
	if p.Waiting != 1 || len(p.Evictions) != 1 || len(p.Evictions[0].Allocs) != 1 || before.Alloc(p.Evictions[0].Allocs[0]).Run.Key.Name != "low" {
		t.Errorf("%d wait, %+v", p.Waiting, p.Evictions)
	}
	if before != c.Snapshot() {
		t.Error("something has changed")
	}
}

// A system job is previewed on each node that fits, also one that has no room now.
func TestTrySystem(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=4 memory=4GiB\nnode n2 cpu=2 memory=4GiB\nnode n3 cpu=0.5 memory=4GiB\njob low cpu=2\nplace low 0 n2")
	f, err := fittest.Job("agent", "type=system")
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := c.Snapshot().Suppose(f, c.Now())
	if err != nil {
		t.Fatal(err)
	}
	// As its rollout would size it: one member for each node that is large enough.
	if after, _, err = after.Suppose(&state.SystemSized{UID: f.UID, Version: 1, Count: 2}, c.Now()); err != nil {
		t.Fatal(err)
	}
	if p := Try(after, after.Job(f.Key), c.Now(), 1000); len(p.Choices) != 1 || p.Choices[0].Node != "n1" || p.Choices[0].Members != 1 || p.Waiting != 1 {
		t.Errorf("%+v", p)
	}
}

// What is explained is what is planned: each node is in one class; it has room by the explanation exactly if a plan that sees no other node
// takes it; the best is the one that the plan takes, and members go where the plan puts them.
func TestExplainAgreesWithPlan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.New(t, 1000)
		drawRich(rt, c)
		snap, now := c.Snapshot(), c.Now()
		for _, uid := range everyJob(snap) {
			j := snap.JobByUID(uid)
			if j.Stage != muster.JobLive || j.Parked != "" {
				continue
			}
			e := Explain(j, snap, now)
			checkSums(rt, snap, &e)
			d := Plan(snap, []muster.JobUID{uid}, now, Limits{mostExplained, 1 << 30})
			agrees(rt, &e, d.Placements, d.Stops)
			checkTerms(rt, &e)
			for _, v := range e.Evictions {
				if len(v.Allocs) == 0 || e.Member >= 0 && j.Waiting() == 1 && !j.Run.System() && slices.Contains(snap.Member(uid, e.Member).FailedNodes, v.Node) {
					rt.Fatalf("job %s: %+v is of no use", j.Key, v)
				}
			}
			x := newExplainer(j, snap, now, mostExplained)
			if s := x.setting; s.untried == 0 && s.first() != nil {
				x.about(s.first())
			}
			room := 0
			for _, at := range x.pass.view.nodes {
				takes := alone(x, at)
				if fits := x.obstacle(at).Kind == fit.None; fits != takes {
					rt.Fatalf("job %s, node %s: explained as %+v, the plan takes it: %v", j.Key, at.row.ID, x.obstacle(at), takes)
				}
				if takes {
					room++
				}
			}
			if room != e.All.Fitting || (len(e.Ranked) > 0) != (room > 0) {
				rt.Fatalf("job %s: %d nodes would be taken, %d have room as explained, ranked %v", j.Key, room, e.All.Fitting, e.Ranked)
			}
			// Who is placed first is the one that failed first, if any has.
			if wants := x.setting.open(); e.Bound.Namespace == "" && wants > 0 && len(e.Ranked) > 0 && (e.Member >= 0 || x.setting.first() == nil) &&
				(len(e.Choices) == 0 || e.Choices[0].Node != e.Ranked[0].Node || e.Choices[0].Terms.String() != e.Ranked[0].Terms.String()) {
				rt.Fatalf("job %s: first of the ranks is %+v, of the plan %+v", j.Key, e.Ranked[0], e.Choices)
			}
		}
	})
}

// drawRich is draw with all else that a job may ask for.
func drawRich(rt *rapid.T, c *fittest.Cluster) {
	if rapid.Bool().Draw(rt, "spreading pool") {
		c.Do("pool default spread")
	}
	for i := range rapid.IntRange(0, 4).Draw(rt, "rich nodes") {
		c.Do(fmt.Sprintf("node r%d cpu=%d memory=8GiB zone=z%d meta.rack=r%d %s", i, rapid.IntRange(1, 40).Draw(rt, "cpu"), i%2, i%3,
			rapid.SampledFrom([]string{"", "gpu=A:2:shared", "gpu=B:4", "gpu=A:1:shared gpu=B:2", "arch=arm"}).Draw(rt, "kind")))
	}
	for i := range rapid.IntRange(0, 5).Draw(rt, "rich jobs") {
		c.Do(fmt.Sprintf("job m%d count=%d cpu=0.%d memory=256MiB priority=%d attempts=3 %s", i, rapid.IntRange(1, 6).Draw(rt, "count"), rapid.IntRange(1, 9).Draw(rt, "cpu"),
			rapid.IntRange(0, 9).Draw(rt, "priority")*10, rapid.SampledFrom([]string{
				"distinct", "distinct gpu=1", "gpu=0.4:A", "gpu=2:A|B", "port=80", "affinity=k1", "affinity=k2", "type=system", "type=system port=81", "cores=1",
				"likes zone = z1 +40; arch = arm +20; meta.rack is-set -10", "spread zone", "distinct spread meta.rack weight=80; zone z1=70",
				"affinity=k1 likes zone = z0 +1 spread meta.rack", "needs meta.rack is-set likes pool = default +5 spread zone",
			}).Draw(rt, "asks")))
	}
	draw(rt, c)
	// The newest system jobs are as large as there are nodes for them.
	for _, uid := range everyJob(c.Snapshot()) {
		if j := c.Snapshot().JobByUID(uid); j.Run.System() && j.Stage == muster.JobLive {
			nodes := 0
			c.Snapshot().LiveNodes(func(n *state.Node) bool {
				if shape := fit.ShapeOf(j.Run); n.Schedulable() && fit.Feasible(shape, n) == "" && shape.Short(fit.Space{Resources: n.Capacity}, n.Devices()) == "" {
					nodes++
				}
				return true
			})
			c.Do(fmt.Sprintf("size %s %d", uid, max(nodes, j.Count())))
		}
	}
	if rapid.IntRange(0, 4).Draw(rt, "limited") == 0 {
		c.Do("limit default allocs=" + fmt.Sprint(rapid.IntRange(0, 9).Draw(rt, "allocs")))
	}
}

// alone asks the plan's own search about a node as if it were the only one.
func alone(x *explainer, at *seat) bool {
	if x.homing {
		return x.setting.home(x.pass.snap.Member(x.setting.job.UID, x.out.Member)) == at
	}
	var lifted []*seat
	for _, o := range x.pass.view.nodes {
		if o != at && len(o.trees) > 0 {
			x.pass.view.lift(o)
			lifted = append(lifted, o)
		}
	}
	got := x.setting.field.best(x.avoid, x.setting.spread).seat
	for _, o := range lifted {
		x.pass.view.sit(o)
	}
	return got == at
}

func checkSums(rt *rapid.T, snap *state.Snapshot, e *Explanation) {
	sum := func(r *Reason) (n int) {
		n = r.Fitting + r.Avoided
		for _, c := range slices.Concat(r.Closed, r.Filtered) {
			n += c.Nodes
		}
		for _, h := range r.Short {
			n += h.Nodes
			if h.Most >= h.Asked && h.Asked > 0 {
				rt.Fatalf("short of %s, of which %g were asked for and %g are there", h.Dimension, h.Asked, h.Most)
			}
		}
		return n
	}
	nodes, room := 0, 0
	for i := range e.Classes {
		c := &e.Classes[i]
		if sum(&c.Reason) != c.Nodes {
			rt.Fatalf("class %s: %+v", c.Name, c.Reason)
		}
		if i > 0 && e.Classes[i-1].Nodes < c.Nodes {
			rt.Fatalf("class %s is not in order", c.Name)
		}
		nodes += c.Nodes
		room += c.Fitting
	}
	if nodes != snap.LiveNodeCount() || e.All.Nodes != nodes || sum(&e.All) != nodes || room != e.All.Fitting {
		rt.Fatalf("%d nodes, %d in classes, %d with room; of all %+v", snap.LiveNodeCount(), nodes, room, e.All)
	}
}

// checkTerms holds that a preference is the sum of what it is made of.
func checkTerms(rt *rapid.T, e *Explanation) {
	all := []Terms{}
	for _, c := range e.Ranked {
		all = append(all, c.Terms)
	}
	for _, c := range e.Choices {
		all = append(all, c.Terms)
	}
	for _, terms := range all {
		if len(terms) == 0 {
			rt.Fatalf("no terms: %+v", e)
		}
		sum := 0.0
		for _, part := range terms[0].Of {
			sum += part.Value
		}
		if terms[0].Name == "preference" && math.Abs(sum-terms[0].Value) > 1e-9 {
			rt.Fatalf("%s: the parts are %g", terms, sum)
		}
	}
}

// Of a member that has a live allocation it is told where it would go if it had none: where the plan puts it once that has gone.
func TestExplainMemberAgreesWithPlan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.New(t, 1000)
		drawRich(rt, c)
		snap, now := c.Snapshot(), c.Now()
		var live []*state.Alloc
		snap.LiveAllocs(func(a *state.Alloc) bool { live = append(live, a); return true })
		for _, a := range live {
			j := snap.JobByUID(a.UID)
			if j == nil || j.Stage != muster.JobLive {
				continue
			}
			e := ExplainMember(j, a.Index, snap, now)
			checkSums(rt, snap, &e)
			checkTerms(rt, &e)
			p := e.Present
			if e.Member != a.Index || p == nil || p.Node != a.Node || (p.Obstacle.Kind == fit.None) != (len(p.Terms) > 0) {
				rt.Fatalf("%s: %+v", a.ID, e)
			}
			n := snap.Node(a.Node)
			if want := n.Schedulable() && fit.Feasible(fit.ShapeOf(a.Run), n) == ""; want && p.Obstacle.Kind != fit.None && p.Obstacle.Kind != fit.Short && p.Obstacle.Kind != fit.Occupied {
				rt.Fatalf("%s fits where it is: %+v", a.ID, p)
			}
			if a.Run == j.Run && n.Schedulable() && p.Obstacle.Kind != fit.None {
				rt.Fatalf("%s does not fit where it is: %+v", a.ID, p)
			}
			if p.Obstacle.Kind == fit.None && len(e.Ranked) == 0 || e.All.Fitting == 0 && len(e.Ranked) > 0 {
				rt.Fatalf("%s: %+v", a.ID, e)
			}
		}
	})
}
