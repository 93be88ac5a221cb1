package place

import (
	"fmt"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// What a runner is worth is what its environment has of them: a claimed one gives way to nobody, stock up to the floor has the
// environment's priority, stock above it none. Whoever else may give way is planned for by that, and each plan holds.
func TestRunnersArePreemptedByTheirPriority(t *testing.T) {
	const env = muster.JobUID("ue")
	for _, tc := range []struct {
		name             string
		priority         int // of the environment
		runners, claimed int // on n1, which has room for four
		floor            int
		job              int // priority of the job that comes
		gone             int // how many runners give way to its one member
	}{
		{"surplus gives way to the lowest", 50, 4, 0, 0, 1, 1},
		{"nothing gives way to what is worth nothing", 50, 4, 0, 0, 0, 0},
		{"the floor stays against equals", 50, 4, 0, 4, 50, 0},
		{"the floor gives way to what is higher", 50, 4, 0, 4, 51, 1},
		{"an environment's own priority counts, not a job's default", 70, 4, 0, 4, 60, 0},
		{"claimed ones stay whoever comes", 50, 4, 4, 0, 100, 0},
		{"who is not claimed goes before who is", 50, 4, 3, 1, 60, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fittest.Read(t, "node n1 cpu=4 memory=4GiB")
			priority, least := tc.priority, 0
			spec := &api.EnvironmentSpec{Name: "e", Template: api.Template{Priority: &priority, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}, Warm: api.WarmSpec{Min: &least, Max: 10}}
			spec.Defaults()
			c.Apply(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: env, Spec: spec})
			c.Apply(&state.RunnersWanted{UID: env, Count: tc.runners, Stock: tc.runners, Floor: tc.floor, Priority: priority})
			plan, report := &state.PlanCommitted{}, &state.AllocsReported{Node: "n1"}
			for i := range tc.runners {
				plan.Placements = append(plan.Placements, state.Placement{UID: env, Version: 1, Index: i, Attempt: 1, Node: "n1"})
				report.Allocs = append(report.Allocs, state.AllocUpdate{ID: muster.NewAllocID(env, i, 1), Status: muster.AllocRunning, Started: 1})
			}
			if r := c.Apply(plan).(*state.PlanResult); r.Placed != tc.runners {
				t.Fatalf("%+v", r)
			}
			c.Apply(report)
			for i := range tc.claimed {
				c.Apply(&state.RunnerClaimed{Claim: muster.ClaimID(fmt.Sprint("c", i)), UID: env, Runner: muster.NewAllocID(env, i, 1)})
			}
			f, err := fittest.Job("new", fmt.Sprint("priority=", tc.job), "cpu=1", "memory=1MiB")
			if err != nil {
				t.Fatal(err)
			}
			c.Apply(f)
			snap := c.Snapshot()
			d := NewView(snap).Plan(snap, []muster.JobUID{f.UID}, c.Now(), Limits{Placements: 10, Looks: 1000})
			if len(d.Stops) != tc.gone {
				t.Fatalf("%+v", d.Stops)
			}
			for _, st := range d.Stops {
				if snap.Alloc(st.Alloc).Runner == muster.RunnerClaimed {
					t.Errorf("%s is claimed", st.Alloc)
				}
			}
			v := verify.On(snap).Submission(&verify.Submission{Index: d.Index, Placements: d.Placements, Stops: d.Stops})
			if len(v.RefusedStops)+len(v.Refused) > 0 {
				t.Errorf("refused: %+v", v)
			}
		})
	}
}

// The stock of an environment that is worth nothing has nobody stopped, though a job's default priority is more than others have.
func TestStockAboveTheFloorStopsNobody(t *testing.T) {
	c := fittest.Read(t, "node n1 cpu=4 memory=4GiB\njob low priority=30 cpu=4 memory=1MiB\nplace low 0 n1")
	priority, least := 50, 0
	spec := &api.EnvironmentSpec{Name: "e", Template: api.Template{Priority: &priority, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}, Warm: api.WarmSpec{Min: &least, Max: 10}}
	spec.Defaults()
	c.Apply(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue", Spec: spec})
	for _, wanted := range []struct{ priority, gone int }{{0, 0}, {50, 1}} {
		c.Apply(&state.RunnersWanted{UID: "ue", Count: 1, Stock: 1, Priority: wanted.priority})
		snap := c.Snapshot()
		d := NewView(snap).Plan(snap, []muster.JobUID{"ue"}, c.Now(), Limits{Placements: 10, Looks: 1000})
		if len(d.Stops) != wanted.gone || len(d.Blocked) != 1 {
			t.Errorf("at priority %d: %+v, %+v", wanted.priority, d.Stops, d.Blocked)
		}
	}
}
