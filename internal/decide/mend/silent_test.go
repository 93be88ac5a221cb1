package mend

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// A broken node drains until its work has ended. When contact is lost as well, nobody hears of that end: it is given up after
// the grace of its pool, unless an operator holds it.
func TestBrokenNodeOutOfContact(t *testing.T) {
	const grace = 60e6
	c := newCluster(t)
	c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10, Grace: grace}}})
	c.node("n1", muster.NodeServing)
	c.busy("n1")
	c.do(&state.NodeHealthChanged{ID: "n1", Health: muster.NodeBroken, Reason: "the disk is broken"})
	c.do(&state.NodeDraining{ID: "n1", Reason: "broken"})
	broken := c.now
	heard := broken
	mem := &Memory{}
	at := func(now muster.Time) *Decisions {
		mem.Heard = map[muster.NodeID]muster.Time{"n1": heard}
		return Plan(c.s.Latest(), map[muster.ProviderName]*Sight{"fake": c.sight}, mem, now)
	}

	heard = broken + 30e6
	if d := at(broken + grace + 1); len(d.Terminate) > 0 {
		t.Errorf("heard 30 s ago: %+v", d.Terminate)
	}
	if d := at(heard + grace - 1); len(d.Terminate) > 0 || d.Wake == 0 || d.Wake > heard+grace {
		t.Errorf("before its grace is over: %+v, wake %d", d.Terminate, d.Wake)
	}
	if d := at(heard + grace); len(d.Terminate) != 1 || d.Terminate[0].Node != "n1" || !d.Terminate[0].Unexplained || !d.Terminate[0].Silent || d.Terminate[0].SilentSince != heard {
		t.Errorf("after its grace: %+v", d.Terminate)
	}
	mem.Heard = nil
	if d := Plan(c.s.Latest(), map[muster.ProviderName]*Sight{"fake": c.sight}, mem, heard+10*grace); len(d.Terminate) > 0 {
		t.Errorf("nothing is known of its contact: %+v", d.Terminate)
	}
	c.do(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
	if d := at(heard + 10*grace); len(d.Terminate) > 0 {
		t.Errorf("held: %+v", d.Terminate)
	}
}
