package place

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// warmNodes is so many nodes of one place each, of which each has served one of so many keys.
func warmNodes(t testing.TB, nodes, keys int) *fittest.Cluster {
	c := fittest.New(t, 1000)
	for i := range nodes {
		c.Do(fmt.Sprintf("node n%05d cpu=1 memory=4GiB", i))
	}
	for k := range keys {
		name := fmt.Sprintf("was%d", k)
		c.Do(fmt.Sprintf("job %s count=%d affinity=key%d cpu=1 memory=1GiB", name, (nodes+keys-1-k)/keys, k))
	}
	d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{nodes, 1 << 20})
	apply(t, c, d)
	var ends []state.AllocUpdate
	byNode := map[muster.NodeID][]state.AllocUpdate{}
	c.Snapshot().LiveAllocs(func(a *state.Alloc) bool {
		u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Started: a.Placed, Output: &state.Output{Stage: state.OutputComplete}}
		ends = append(ends, u)
		byNode[a.Node] = append(byNode[a.Node], u)
		return true
	})
	if len(ends) != nodes {
		t.Fatalf("%d of %d nodes were given work", len(ends), nodes)
	}
	for id, u := range byNode {
		if err, bad := c.Apply(&state.AllocsReported{Node: id, Allocs: u}).(error); bad {
			t.Fatal(err)
		}
	}
	return c
}

// However many keys there were, the view remembers those that nodes have and those of the shapes that it keeps.
func TestViewBoundsItsKeys(t *testing.T) {
	c := warmNodes(t, 100, 10)
	v := NewView(c.Snapshot())
	for i := range 3 * maxFields {
		v.field(&state.Run{Spec: c.Snapshot().JobByUID("was0").Run.Spec, Shape: state.ShapeID(fmt.Sprint("shape", i)), Keys: []muster.AffinityKey{muster.AffinityKey(fmt.Sprint("k", i))}})
	}
	for k := range 10 {
		v.field(c.Snapshot().JobByUID(muster.JobUID(fmt.Sprintf("was%d", k))).Run)
	}
	if k := len(v.warm); k > maxFields+10 {
		t.Errorf("%d keys are remembered", k)
	}
	checkTrees(t, v)
	// And members go where their key is.
	c.Do("job again count=10 affinity=key3 cpu=1 memory=1GiB")
	d := v.Plan(c.Snapshot(), []muster.JobUID{"again"}, c.Now(), Limits{100, 1 << 20})
	for _, p := range d.Placements {
		if n := c.Snapshot().Node(p.Node); n.WarmFor([]muster.AffinityKey{"key3"}) == 0 {
			t.Errorf("placed on %s, which has %q", n.ID, n.Warm)
		}
	}
	if len(d.Placements) != 10 {
		t.Errorf("%d are placed", len(d.Placements))
	}
}

// BenchmarkWarm is the placement of members with a key on idle nodes that each remember one of a hundred: one on 10,000, one with a key that
// nothing was ever asked for, and as many as there are nodes, ten jobs to a key.
func BenchmarkWarm(b *testing.B) {
	b.Run("one-on-10000", func(b *testing.B) {
		c := warmNodes(b, 10_000, 100)
		c.Do("job one affinity=key7 cpu=1 memory=1GiB")
		snap := c.Snapshot()
		v := NewView(snap)
		v.Plan(snap, []muster.JobUID{"one"}, c.Now(), Limits{1, 1 << 20})
		b.ReportAllocs()
		for b.Loop() {
			if d := v.Plan(snap, []muster.JobUID{"one"}, c.Now(), Limits{1, 1 << 20}); len(d.Placements) != 1 {
				b.Fatal(d)
			}
		}
	})
	b.Run("new-key-on-10000", func(b *testing.B) {
		c := warmNodes(b, 10_000, 100)
		snap := c.Snapshot()
		v := NewView(snap)
		v.field(snap.JobByUID("was0").Run)
		i := 0
		for b.Loop() {
			i++
			v.field(&state.Run{Spec: snap.JobByUID("was0").Run.Spec, Shape: state.ShapeID(fmt.Sprint("shape", i)), Keys: []muster.AffinityKey{muster.AffinityKey(fmt.Sprint("k", i))}})
		}
	})
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("%d-on-%d", n, n), func(b *testing.B) {
			c := warmNodes(b, n, 100)
			var jobs []muster.JobUID
			for k := range 100 {
				for i := range 10 {
					name := fmt.Sprintf("j%dx%d", k, i)
					c.Do(fmt.Sprintf("job %s count=%d affinity=key%d cpu=1 memory=1GiB", name, n/1000, k))
					jobs = append(jobs, muster.JobUID(name))
				}
			}
			snap := c.Snapshot()
			warm := 0
			for b.Loop() {
				b.StopTimer()
				v := NewView(snap)
				b.StartTimer()
				d := v.Plan(snap, jobs, c.Now(), Limits{n, 1 << 20})
				if len(d.Placements) != n {
					b.Fatalf("%d placed", len(d.Placements))
				}
				b.StopTimer()
				warm = 0
				for _, p := range d.Placements {
					warm += snap.Node(p.Node).WarmFor(snap.JobByUID(p.UID).Run.Keys)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(warm)/float64(n)*100, "%warm")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/member")
		})
	}
}
