package place

import (
	"fmt"
	"slices"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// Room is never kept where a job on distinct hosts has a member already, and what is kept there by mistake is not used:
// the plan would be refused again and again.
func TestNoReservationBesideAMemberOnDistinctHosts(t *testing.T) {
	for _, kind := range []string{"count=2 distinct", "type=system"} {
		c := fittest.Read(t, `
node n1 cpu=4 memory=4GiB
node n2 cpu=2 memory=4GiB
job work count=2 cpu=1
job large cpu=2
place work 0 n1
place large 0 n2
job one `+kind)
		if kind == "type=system" {
			c.Do("size one 2")
		}
		c.Do("place one 0 n1\nrun one 0")
		snap := c.Snapshot()
		j := snap.JobByUID("one")
		shape := fit.ShapeOf(j.Run)
		if got := Reserve(snap, shape, Occupied(snap, shape, j.UID, nil)); got != "n2" {
			t.Errorf("%s: room is kept on %q, want n2: n1 has a member", kind, got)
		}
		c.Apply(&state.RoomReserved{Node: "n1", UID: j.UID, Version: 1})
		snap = c.Snapshot()
		d := Plan(snap, []muster.JobUID{"one"}, c.Now(), Limits{Placements: 10, Looks: 100})
		d.Reserved(snap, c.Now())
		if len(d.Placements) > 0 || !slices.ContainsFunc(d.Blocked, func(b Blocked) bool { return b.UID == "one" }) {
			t.Errorf("%s: planned %+v", kind, d.Placements)
		}
	}
}

// D10: room that is reserved for a job is no leave to pass the limit of its namespace, which what is planned in the same
// pass may have used up.
func TestReservedRoomKeepsToLimits(t *testing.T) {
	for limit, want := range map[int]bool{2: false, 3: true} {
		c := fittest.Read(t, `
node n1 cpu=4 memory=4GiB
node n2 cpu=4 memory=4GiB
job fill count=1 cpu=1
place fill 0 n2
job large cpu=4
job small cpu=1`)
		c.Do(fmt.Sprintf("limit default allocs=%d", limit))
		c.Apply(&state.RoomReserved{Node: "n1", UID: "large", Version: 1})
		snap := c.Snapshot()
		d := Plan(snap, []muster.JobUID{"small", "large"}, c.Now(), Limits{Placements: 10, Looks: 100})
		d.Reserved(snap, c.Now())
		got := slices.ContainsFunc(d.Placements, func(p state.Placement) bool { return p.UID == "large" })
		if got != want || len(d.Placements) != limit-1 {
			t.Errorf("limit %d: large is placed: %v; all: %+v", limit, got, d.Placements)
		}
		if err, bad := c.Apply(&state.PlanCommitted{Placements: d.Placements}).(error); bad {
			t.Error(err)
		}
	}
}
