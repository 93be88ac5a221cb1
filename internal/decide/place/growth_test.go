package place

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/growthtest"
	"github.com/musterhq/muster/internal/state"
)

// fullOfLow is a cluster of nodes that ten members of low priority fill each, and a job for all of their room.
func fullOfLow(t testing.TB, nodes int) *fittest.Cluster {
	c := fittest.New(t, 1000)
	for i := range nodes {
		c.Do(fmt.Sprintf("node n%05d cpu=10 memory=40GiB", i))
	}
	c.Do(fmt.Sprintf("job low priority=20 count=%d cpu=1 memory=1GiB", 10*nodes))
	for left := 10 * nodes; left > 0; left -= 5000 {
		d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{5000, 1 << 20})
		apply(t, c, d)
	}
	c.Do(fmt.Sprintf("job high priority=60 count=%d cpu=10 memory=10GiB", nodes))
	return c
}

// D5: whatever a job of high priority could stop, a plan stops a bounded number, and those after it the rest: it is one
// fact, and the log takes facts up to a size.
func TestStopsOfAPlanAreBounded(t *testing.T) {
	const nodes = 1000
	c := fullOfLow(t, nodes)
	stopped := 0
	for plans := 1; stopped < 10*nodes; plans++ {
		d := Plan(c.Snapshot(), []muster.JobUID{"high"}, c.Now(), Limits{5000, 1 << 20})
		if n := len(d.Stops); n == 0 || n > maxStops || n%10 != 0 {
			t.Fatalf("plan %d stops %d, after %d", plans, n, stopped)
		}
		f := &state.PlanCommitted{Placements: d.Placements, Stops: d.Stops}
		b, err := c.State.Encode(f)
		if err != nil || len(b) > 2<<20 {
			t.Fatalf("the fact has %d bytes, %v", len(b), err)
		}
		stopped += len(d.Stops)
		if err, bad := c.Apply(f).(error); bad {
			t.Fatal(err)
		}
	}
}

// One plan for a job that needs all nodes, which are full of work of lower priority.
func BenchmarkGrowthPreempt(b *testing.B) {
	growthtest.Run(b, "nodes", 2000, func(b *testing.B, nodes int) (before, pass func()) {
		c := fullOfLow(b, nodes)
		snap := c.Snapshot()
		v := NewView(snap)
		return nil, func() { v.Plan(snap, []muster.JobUID{"high"}, c.Now(), Limits{5000, 1 << 20}) }
	})
}
