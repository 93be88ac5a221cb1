package place

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// The same snapshot gives the same plan, whatever the order of maps, and
// whatever the order in which the window names its jobs.
func TestSameInputSameOutput(t *testing.T) {
	c := fittest.New(t, 1)
	for i := range 20 {
		c.Do(fmt.Sprintf("node n%02d cpu=%d memory=%dGiB zone=z%d", i, 2+i%5, 4+i%3, i%3))
	}
	for i := range 40 {
		c.Do(fmt.Sprintf("job j%02d count=%d cpu=0.%d priority=%d needs zone in z%d, z2", i, 1+i%4, 1+i%9, i%3, i%2))
	}
	jobs := everyJob(c.Snapshot())
	want := Plan(c.Snapshot(), jobs, c.Now(), Limits{60, 1 << 20})
	for n := range 1000 {
		jobs[n%len(jobs)], jobs[(n*7)%len(jobs)] = jobs[(n*7)%len(jobs)], jobs[n%len(jobs)]
		if got := Plan(c.Snapshot(), jobs, c.Now(), Limits{60, 1 << 20}); !reflect.DeepEqual(got, want) {
			t.Fatalf("pass %d:\n%swant\n%s", n, show(c.Snapshot(), got), show(c.Snapshot(), want))
		}
	}
}

func TestAJobNamedTwiceIsPlannedOnce(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=8 memory=8GiB\njob a count=2")
	d := Plan(c.Snapshot(), []muster.JobUID{"a", "a", "nobody"}, c.Now(), Limits{10, 10})
	if got := show(c.Snapshot(), Decision{Placements: d.Placements}); got != "n1: a[0] a[1]\n" {
		t.Errorf("got %s", got)
	}
}

// draw makes a random cluster, in which members have failed, stopped and
// ended before.
func draw(rt *rapid.T, c *fittest.Cluster) {
	nodes := rapid.IntRange(0, 8).Draw(rt, "nodes")
	for i := range nodes {
		c.Do(fmt.Sprintf("node n%d cpu=%d memory=%dGiB disk=%dGiB zone=z%d", i, rapid.IntRange(1, 8).Draw(rt, "cpu"),
			rapid.IntRange(1, 16).Draw(rt, "memory"), rapid.IntRange(0, 4).Draw(rt, "disk"), i%3))
	}
	if nodes == 0 {
		return
	}
	anyNode := rapid.Custom(func(rt *rapid.T) string { return fmt.Sprintf("n%d", rapid.IntRange(0, nodes-1).Draw(rt, "node")) })
	jobs := rapid.IntRange(0, 8).Draw(rt, "jobs")
	for i := range jobs {
		needs := rapid.SampledFrom([]string{"", "needs zone = z1", "needs zone != z0", "needs zone in z0, z2"}).Draw(rt, "needs")
		c.Do(fmt.Sprintf("job j%d count=%d cpu=0.%d memory=%dMiB disk=%dMiB priority=%d attempts=3 %s", i, rapid.IntRange(1, 12).Draw(rt, "count"),
			rapid.IntRange(1, 9).Draw(rt, "cpu"), rapid.IntRange(0, 2048).Draw(rt, "memory"), rapid.SampledFrom([]int{0, 0, 512}).Draw(rt, "disk"),
			rapid.IntRange(0, 2).Draw(rt, "priority")*10, needs))
	}
	for range rapid.IntRange(0, 12).Draw(rt, "history") {
		d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{rapid.IntRange(1, 9).Draw(rt, "limit"), 1000})
		c.Apply(&state.PlanCommitted{Placements: d.Placements})
		var live []*state.Alloc
		c.Snapshot().LiveAllocs(func(a *state.Alloc) bool {
			live = append(live, a)
			return true
		})
		for _, a := range live {
			if how := rapid.SampledFrom([]string{"", "", "succeeded", "failed", "node-fault", "outside", "stopped"}).Draw(rt, "end"); how != "" {
				c.Do(fmt.Sprintf("end %s %d %s", a.UID, a.Index, how))
			}
		}
		switch n := anyNode.Draw(rt, "node"); rapid.IntRange(0, 8).Draw(rt, "event") {
		case 0:
			c.Apply(&state.NodeHealthChanged{ID: muster.NodeID(n), Health: muster.NodeLost})
		case 1:
			c.Apply(&state.NodeHealthChanged{ID: muster.NodeID(n), Health: muster.NodeGood})
		case 2:
			c.Apply(&state.NodeIntentSet{ID: muster.NodeID(n), Intent: muster.NodeHold})
		case 3:
			c.Do("wait 2s")
		case 4:
			c.Apply(&state.JobStopped{Key: fittest.Key("j0")})
		}
	}
}

// Never over capacity, never where it may not be, nobody forgotten, priority
// kept, verify agrees, and the planned state wants nothing more.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.New(t, 1000)
		draw(rt, c)
		snap, now := c.Snapshot(), c.Now()
		limit := rapid.IntRange(1, 60).Draw(rt, "limit")
		d := Plan(snap, everyJob(snap), now, Limits{limit, 1000})
		if len(d.Placements) > limit {
			rt.Fatalf("%d placements, at most %d", len(d.Placements), limit)
		}
		for _, p := range d.Placements {
			m := snap.Member(p.UID, p.Index)
			var avoid []muster.NodeID
			if m != nil {
				avoid = m.FailedNodes
			}
			n := snap.Node(p.Node)
			if o := fit.Check(fit.ShapeOf(snap.JobByUID(p.UID).Run), n, fit.Room(n), avoid); o.Kind != fit.None {
				rt.Fatalf("%v: %v", p, o)
			}
			if m != nil && (m.RetryAt > now || m.Status != muster.MemberWaiting) {
				rt.Fatalf("%v: member is %s until %d, now is %d", p, m.Status, m.RetryAt, now)
			}
		}
		checkComplete(rt, snap, now, d)
		checkPriority(rt, snap, now)
		v := verify.On(snap).Plan(d.Placements)
		if len(v.Refused) > 0 || len(v.Placements) != len(d.Placements) {
			rt.Fatalf("verify refuses on the same snapshot: %+v", v.Refused)
		}
		res := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(*state.PlanResult)
		if len(res.Refused) > 0 {
			rt.Fatalf("the state refuses: %+v", res.Refused)
		}
		if why := fittest.Overfull(c.Snapshot()); why != "" {
			rt.Fatal(why)
		}
		checkIdle(rt, c.Snapshot(), now, d)
	})
}

// checkPriority: who comes later in the order changes nothing for who comes
// before: the plan of the first k jobs is their part of the plan of all.
func checkPriority(rt *rapid.T, snap *state.Snapshot, now muster.Time) {
	var jobs []*state.Job
	for _, uid := range everyJob(snap) {
		jobs = append(jobs, snap.JobByUID(uid))
	}
	slices.SortFunc(jobs, Order)
	all := Plan(snap, everyJob(snap), now, Limits{1000, 1000}).Placements
	var first []muster.JobUID
	for _, j := range jobs {
		first = append(first, j.UID)
		want := slices.DeleteFunc(slices.Clone(all), func(p state.Placement) bool { return !slices.Contains(first, p.UID) })
		if got := Plan(snap, first, now, Limits{1000, 1000}).Placements; fittest.Placements(snap, got) != fittest.Placements(snap, want) {
			rt.Fatalf("the first %d jobs alone:\n%stheir part of all:\n%s", len(first), fittest.Placements(snap, got), fittest.Placements(snap, want))
		}
	}
}

// checkComplete: each job is in exactly one list, done means done, and who
// is blocked could go nowhere in the planned state.
func checkComplete(rt *rapid.T, snap *state.Snapshot, now muster.Time, d Decision) {
	placed := map[muster.JobUID]int{}
	for _, p := range d.Placements {
		placed[p.UID]++
	}
	wants := func(uid muster.JobUID) int {
		j := snap.JobByUID(uid)
		n := j.Untried()
		snap.Retries(uid).Due(now, func(*state.Member) bool { n++; return true })
		return n
	}
	seen := map[muster.JobUID]bool{}
	see := func(uid muster.JobUID) {
		if seen[uid] {
			rt.Fatalf("job %s is in two lists", uid)
		}
		seen[uid] = true
	}
	for _, uid := range d.Done {
		if see(uid); placed[uid] != wants(uid) {
			rt.Fatalf("job %s is done, %d placed of %d", uid, placed[uid], wants(uid))
		}
	}
	for _, b := range d.Blocked {
		if see(b.UID); b.Waiting == 0 || placed[b.UID]+b.Waiting != wants(b.UID) {
			rt.Fatalf("job %s is blocked with %d, %d placed of %d", b.UID, b.Waiting, placed[b.UID], wants(b.UID))
		}
	}
	for _, uid := range d.Left {
		see(uid)
	}
	for _, uid := range everyJob(snap) {
		if !seen[uid] {
			rt.Fatalf("job %s is in no list", uid)
		}
	}
}

func checkIdle(rt *rapid.T, planned *state.Snapshot, now muster.Time, d Decision) {
	again := Plan(planned, everyJob(planned), now, Limits{1000, 1000})
	if len(d.Left) == 0 && len(again.Placements) > 0 {
		rt.Fatalf("planning again is not idle: %s", show(planned, again))
	}
	// Who is blocked says so of every node.
	for _, b := range again.Blocked {
		if len(again.Placements) > 0 || !b.Full {
			continue
		}
		e := Why(planned.JobByUID(b.UID), planned, now)
		if e.Fitting > 0 {
			rt.Fatalf("job %s is blocked: %s", b.UID, e)
		}
		if e.Nodes != planned.LiveNodeCount() {
			rt.Fatalf("job %s: %d nodes of %d are explained", b.UID, e.Nodes, planned.LiveNodeCount())
		}
	}
}
