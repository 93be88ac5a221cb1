package runners

import (
	"context"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkClaims is what the loop does for each claim, with its use and without the disk: the log is
// in memory. Each claim takes a runner that is warm already.
func BenchmarkClaims(b *testing.B) {
	const atOnce = 1000
	l := memlog.New(b, 1<<16)
	room := muster.Resources{CPU: 1 << 40, Memory: 1 << 50}
	spec := api.EnvironmentSpec{Name: "e", Warm: api.WarmSpec{Max: atOnce}}
	least := 0
	spec.Warm.Min = &least
	spec.Defaults()
	for _, f := range []state.Fact{
		&state.NodeLaunching{ID: "n", Token: "t", Offering: muster.Offering{Capacity: room}},
		&state.NodeLaunched{ID: "n", Instance: "i"}, &state.NodeJoined{ID: "n", Capacity: room},
		&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: &spec},
	} {
		l.Must(b, f)
	}
	made := 0
	stock := func() {
		plan, report := &state.PlanCommitted{}, &state.AllocsReported{Node: "n"}
		for range atOnce {
			plan.Placements = append(plan.Placements, state.Placement{UID: "u", Version: 1, Index: made, Attempt: 1, Node: "n"})
			report.Allocs = append(report.Allocs, state.AllocUpdate{ID: muster.NewAllocID("u", made, 1), Status: muster.AllocRunning})
			made++
		}
		l.Must(b, &state.RunnersWanted{UID: "u", Count: made, Stock: atOnce})
		l.Must(b, plan)
		l.Must(b, report)
	}
	r, err := New(Config{State: l, Proposer: l})
	if err != nil {
		b.Fatal(err)
	}
	r.up = true
	for i := 0; b.Loop(); i++ {
		if i%atOnce == 0 {
			b.StopTimer()
			stock()
			r.pools = map[muster.JobUID]*pool{}
			b.StartTimer()
		}
		c, err := r.Claim(context.Background(), Request{UID: "u", Idle: 60e9})
		if err != nil {
			b.Fatal(i, err)
		}
		r.Use(c.ID)()
	}
}
