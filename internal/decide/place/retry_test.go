package place

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/growthtest"
	"github.com/musterhq/muster/internal/state"
)

// A pass looks at retry sets and not at members; what it plans is the same as if it looked at each.
func TestRetriesPlannedAsIfOneByOne(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := fittest.New(t, 1000)
		nodes := rapid.IntRange(2, 5).Draw(rt, "nodes")
		for i := range nodes {
			c.Do(fmt.Sprintf("node n%d cpu=8 memory=64GiB zone=z%d", i, i%2))
		}
		count := rapid.IntRange(1, 8).Draw(rt, "count")
		c.Do(fmt.Sprintf("job a count=%d cpu=1 memory=1GiB attempts=3 %s", count, rapid.SampledFrom([]string{"", "distinct", "spread zone weight=100", "likes zone = z1 +10"}).Draw(rt, "kind")))
		for range rapid.IntRange(0, 20).Draw(rt, "steps") {
			j := c.Snapshot().Job(muster.JobKey{Namespace: muster.DefaultNamespace, Name: "a"})
			i := rapid.IntRange(0, count-1).Draw(rt, "member")
			m := c.Snapshot().Member(j.UID, i)
			var line string
			switch {
			case m == nil && i == j.NextIndex, m != nil && m.Status == muster.MemberWaiting:
				line = fmt.Sprintf("place a %d n%d", i, rapid.IntRange(0, nodes-1).Draw(rt, "on"))
			case m != nil && m.Status == muster.MemberPlaced:
				line = fmt.Sprintf("end a %d %s", i, rapid.SampledFrom([]string{"node-fault", "node-fault", "failed", "outside"}).Draw(rt, "end"))
			default:
				continue
			}
			facts, err := c.Facts(line)
			if err != nil {
				continue
			}
			for _, f := range facts {
				c.Apply(f)
			}
		}
		for i := range nodes { // what is full, what has room for a few
			if k := rapid.IntRange(0, 8).Draw(rt, "filled"); k > 0 {
				c.Do(fmt.Sprintf("job f%d cpu=%d memory=1GiB", i, k))
				facts, _ := c.Facts(fmt.Sprintf("place f%d 0 n%d", i, i))
				for _, f := range facts {
					c.Apply(f)
				}
			}
		}
		c.Do("wait 90s")
		snap, now := c.Snapshot(), c.Now()
		uid := snap.Job(muster.JobKey{Namespace: muster.DefaultNamespace, Name: "a"}).UID
		if snap.JobByUID(uid).Stage != muster.JobLive {
			return
		}
		d := NewView(snap).Plan(snap, []muster.JobUID{uid}, now, Limits{1000, 1000})
		want, waiting, avoid := oneByOne(snap, uid, now)
		if got := fittest.Placements(snap, d.Placements); got != fittest.Placements(snap, want) {
			rt.Fatalf("planned:\n%sone by one:\n%s", got, fittest.Placements(snap, want))
		}
		if waiting == 0 && len(d.Blocked) == 0 {
			return
		}
		if len(d.Blocked) != 1 || d.Blocked[0].Waiting != waiting || !slices.Equal(d.Blocked[0].Avoid, avoid) {
			rt.Fatalf("blocked %+v, one by one %d wait that all avoid %v", d.Blocked, waiting, avoid)
		}
	})
}

// oneByOne plans a job's members by looking at each: what is placed, how many are left, and what all of these avoid.
func oneByOne(snap *state.Snapshot, uid muster.JobUID, now muster.Time) ([]state.Placement, int, []muster.NodeID) {
	p := &pass{view: NewView(snap), snap: snap, now: now, limits: Limits{1000, 1000}, allow: fit.NewAllowance(snap)}
	s := p.begin(snap.JobByUID(uid))
	p.hide(s)
	s.allowed = 1000
	waiting := 0
	var avoid []muster.NodeID
	snap.Retries(uid).Due(now, func(m *state.Member) bool {
		o := s.field.best(m.FailedNodes, s.spread)
		switch {
		case o.seat != nil:
			p.give(s, &o, gift{s.job, m, 1})
		case waiting == 0:
			waiting, avoid = 1, m.FailedNodes
		default:
			waiting, avoid = waiting+1, both(avoid, m.FailedNodes)
		}
		return true
	})
	p.untried(s)
	if s.untried > 0 {
		avoid = nil
	}
	p.show(s)
	p.number()
	return p.decision.Placements, waiting + s.untried, avoid
}

// D14: a pass over members that are due for another attempt, of which ten find room: at two sizes, for the ratio.
func BenchmarkGrowthDueRetries(b *testing.B) {
	growthtest.Run(b, "members", 250_000, func(b *testing.B, members int) (before, pass func()) {
		c := dueRetries(b, members, 1000)
		snap := c.Snapshot()
		v := NewView(snap)
		var d Decision
		before = func() { v.Return(d.Placements) }
		return before, func() {
			d = v.Plan(snap, []muster.JobUID{"a"}, c.Now(), Limits{2048, 1 << 20})
			if len(d.Placements) != 10 || len(d.Blocked) != 1 || d.Blocked[0].Waiting != members-10 {
				b.Fatalf("%d placed, blocked %+v", len(d.Placements), d.Blocked)
			}
		}
	})
}

// dueRetries is a cluster in which members of job a have failed once, one of them by the fault of each node, and only one
// node has room: for ten.
func dueRetries(t testing.TB, members, nodes int) *fittest.Cluster {
	c := fittest.New(t, 1000)
	ids := make([]muster.NodeID, nodes)
	for i := range ids {
		ids[i] = muster.NodeID(fmt.Sprintf("n%04d", i))
		c.Do(fmt.Sprintf("node %s cpu=100 memory=40GiB", ids[i]))
	}
	c.FailOnce("a", members, ids)
	c.Do(fmt.Sprintf("job filler priority=70 count=%d cpu=100 memory=1GiB", nodes-1))
	f := &state.PlanCommitted{}
	for i, id := range ids[1:] {
		f.Placements = append(f.Placements, state.Placement{UID: "filler", Version: 1, Index: i, Attempt: 1, Node: id})
	}
	c.Do("job rest priority=70 cpu=90 memory=1GiB")
	f.Placements = append(f.Placements, state.Placement{UID: "rest", Version: 1, Index: 0, Attempt: 1, Node: ids[0]})
	if r, ok := c.Apply(f).(*state.PlanResult); !ok || len(r.Refused) > 0 {
		t.Fatalf("%+v", r)
	}
	return c
}
