package fleet_test

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// F-H3: a node that can take no work is given up when it has none, also where the pool may have only this one.
func TestUnreadyNodeWithoutWorkMakesRoomForAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		w.pool.Max = 1
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("the first job's end", time.Minute, ended("a", muster.JobSucceeded))
		var first muster.NodeID
		w.log.Latest().LiveNodes(func(n *state.Node) bool { first = n.ID; return true })
		for _, n := range w.all() {
			n.Says(wire.Condition{Unready: "its disk is full"})
		}
		w.until("the node is unready", 5*time.Second, func(s *state.Snapshot) bool { return s.Node(first).Health == muster.NodeUnready })
		w.submit("b", 1, 2, "sleep 1s ; true")
		w.until("the second job's end", 2*time.Minute, ended("b", muster.JobSucceeded))
		if n := w.log.Latest().Node(first); n.Stage != muster.NodeGone && n.Stage != muster.NodeTerminating {
			t.Errorf("node %s is %s", n.ID, n.Stage)
		}
	})
}
