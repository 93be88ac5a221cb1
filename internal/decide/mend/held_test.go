package mend

import (
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// F-H4: an instance whose tags say that an operator holds it is taken in again when it comes back after its node was taken
// for gone; one without such tags is destroyed. What was taken in is not taken in once more.
func TestHeldInstanceComesBack(t *testing.T) {
	c := newCluster(t)
	c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
	for _, id := range []muster.NodeID{"n1", "n2"} {
		c.node(id, muster.NodeServing)
		c.do(&state.NodeGone{ID: id, Reason: "a list lacked it"})
	}
	list := &List{Asked: c.now, Complete: true, Instances: []Instance{
		{ID: "in1", Token: "tn1", Node: "n1", Pool: "p", Offering: "o", Intent: muster.NodeHold},
		{ID: "in2", Token: "tn2", Node: "n2", Pool: "p", Offering: "o"},
	}}
	strays, adopt := Reconcile(c.s.Latest(), "fake", list)
	if len(strays) != 1 || strays[0].Instance != "in2" {
		t.Errorf("strays: %+v", strays)
	}
	if len(adopt) != 1 || adopt[0].Instance != "in1" || adopt[0].Intent != muster.NodeHold || adopt[0].Node != "" {
		t.Fatalf("adopted: %+v", adopt)
	}
	// "a1" is before and "z1" behind the row that is gone.
	for _, id := range []muster.NodeID{"a1", "z1"} {
		c := newCluster(t)
		c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
		c.node("n1", muster.NodeServing)
		c.do(&state.NodeGone{ID: "n1"})
		c.do(&state.NodeAdopted{ID: id, Token: "tn1", Pool: "p", Offering: adopt[0].Offering, Instance: "in1", Intent: muster.NodeHold})
		if strays, adopt := Reconcile(c.s.Latest(), "fake", &List{Asked: c.now, Complete: true, Instances: list.Instances[:1]}); len(strays)+len(adopt) > 0 {
			t.Errorf("%s: strays %+v, adopted %+v", id, strays, adopt)
		}
	}
}

// D3: what lists say does not pass a hold that came while it was on its way.
func TestGoneIsRefusedOfHeldNodes(t *testing.T) {
	c := newCluster(t)
	c.do(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10}}})
	c.node("n1", muster.NodeServing)
	c.do(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
	b, err := c.s.Encode(&state.NodeGone{ID: "n1", UnlessHeld: true})
	if err != nil {
		t.Fatal(err)
	}
	c.index++
	if err, refused := c.s.Apply(c.index, c.term, int64(c.now), [][]byte{b})[0].(error); !refused || !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("%v", err)
	}
	if n := c.s.Latest().Node("n1"); n.Stage != muster.NodeServing {
		t.Errorf("%s", n.Stage)
	}
}
