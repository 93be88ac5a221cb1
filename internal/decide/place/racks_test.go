package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// Ten thousand nodes in 500 racks, even and uneven: 500 members spread evenly are one in each rack.
func TestPlaceOnFiveHundredRacks(t *testing.T) {
	for _, even := range []bool{true, false} {
		c := fittest.New(t, 1000)
		for i := range 10_000 {
			rack := i % 500
			if !even && i >= 500 {
				rack = i * i % 500
			}
			c.Do(fmt.Sprintf("node n%05d cpu=8 memory=32GiB meta.rack=r%03d", i, rack))
		}
		c.Do("job web count=500 spread meta.rack\njob urgent count=300 spread meta.rack")
		snap := c.Snapshot()
		v := NewView(snap)
		for _, job := range []string{"web", "urgent"} {
			began := time.Now()
			d := v.Plan(snap, []muster.JobUID{muster.JobUID(job)}, c.Now(), Limits{1000, 1 << 20})
			t.Logf("even %v, job %s: %d members in %s", even, job, len(d.Placements), time.Since(began))
			racks := map[string]int{}
			for _, p := range d.Placements {
				racks[snap.Node(p.Node).Attributes["meta.rack"]]++
			}
			for rack, n := range racks {
				if n != 1 {
					t.Errorf("%s has %d members of %s", rack, n, job)
				}
			}
			if len(d.Placements) != len(racks) || len(racks) < 300 {
				t.Errorf("%d members of %s in %d racks", len(d.Placements), job, len(racks))
			}
		}
	}
}

// A pass over full nodes of which one changed costs what changed.
func BenchmarkLittleChanged(b *testing.B) {
	c := fittest.New(b, 1000)
	for i := range 5000 {
		c.Do(fmt.Sprintf("node n%04d cpu=1 memory=4GiB", i))
	}
	c.Do("job fill count=5000 cpu=1 memory=1GiB")
	d := Plan(c.Snapshot(), everyJob(c.Snapshot()), c.Now(), Limits{5000, 1 << 20})
	apply(b, c, d)
	for i := range 1000 {
		c.Do(fmt.Sprintf("job w%04d cpu=1 memory=1GiB", i))
	}
	snap := c.Snapshot()
	v := NewView(snap)
	jobs := everyJob(snap)
	b.ResetTimer()
	for b.Loop() {
		v.Plan(snap, jobs, c.Now(), Limits{1000, 1 << 20})
	}
}

func apply(t testing.TB, c *fittest.Cluster, d Decision) {
	t.Helper()
	if err, bad := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(error); bad {
		t.Fatal(err)
	}
}
