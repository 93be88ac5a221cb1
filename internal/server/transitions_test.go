package server

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Each turn of a dial is counted once, with its kind of reason; other changes of a node are not.
func TestTransitionsOfDials(t *testing.T) {
	ts := newTransitions()
	r := prometheus.NewRegistry()
	r.MustRegister(ts.counter)
	n := state.Node{ID: "n1", Stage: muster.NodeLaunching, StageReason: "for 1 member of 0.1 cpu", Health: muster.NodeUnready, Intent: muster.NodeRun}
	ts.node(nil, &n)
	turn := func(fn func(n *state.Node)) {
		before := n
		fn(&n)
		ts.node(&before, &n)
	}
	turn(func(n *state.Node) { n.Stage, n.StageReason, n.Health = muster.NodeServing, "", muster.NodeGood })
	turn(func(n *state.Node) { n.Used.CPU = 1000 })
	turn(func(n *state.Node) { n.Health, n.HealthReason = muster.NodeBroken, "/etc/muster/broken says: dimm 7" })
	turn(func(n *state.Node) { n.HealthReason = "said otherwise" })
	turn(func(n *state.Node) { n.Intent, n.IntentWho, n.IntentReason = muster.NodeHold, "ada", "to look at" })
	turn(func(n *state.Node) { n.Stage, n.StageReason = muster.NodeDraining, "no contact for 1m0s" })
	want := map[string]float64{
		"muster_node_transitions_total{condition=stage,reason=for … member of … cpu,to=launching}": 1,
		"muster_node_transitions_total{condition=stage,reason=,to=serving}":                        1,
		"muster_node_transitions_total{condition=health,reason=,to=good}":                          1,
		"muster_node_transitions_total{condition=health,reason=/etc/muster/broken says,to=broken}": 1,
		"muster_node_transitions_total{condition=intent,reason=by an operator,to=hold}":            1,
		"muster_node_transitions_total{condition=stage,reason=no contact for …,to=draining}":       1,
	}
	got := gather(t, r)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %g", name, got[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	// Whatever reasons there are, the series are bounded.
	for i := range 1000 {
		turn(func(n *state.Node) {
			n.Health = []muster.NodeHealth{muster.NodeGood, muster.NodeUnready}[i%2]
			n.HealthReason = fmt.Sprintf("reason %c%c", 'a'+i%26, 'a'+i/26)
		})
	}
	if k := len(gather(t, r)); k > 2*maxTransitionReasons+10 {
		t.Errorf("%d series", k)
	}
}
