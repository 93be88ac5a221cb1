package link

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A found node is held while its agent refuses, and used once it was released. What an operator holds stays held.
func TestHoldIsTakenBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := linktest.NewNode(linktest.Config{ID: "n1", Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}})
		r.mu.Lock()
		r.nodes["n1"] = n
		r.mu.Unlock()
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		n.Obeyed(wire.Fence{Cluster: "c9", Epoch: 1, Term: 9, Index: 1})
		r.start()
		r.must(&state.NodeAdopted{ID: "n1", Token: "t", Pool: "p", Instance: "i", Offering: muster.Offering{Provider: "fake", Name: "o"}})
		r.until("held", time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Intent == muster.NodeHold })
		time.Sleep(time.Minute)
		n.Obeyed(wire.Fence{})
		r.until("serving", time.Minute, serving("n1"))
		if row := r.log.Latest().Node("n1"); row.IntentReason != "" {
			t.Errorf("reason: %s", row.IntentReason)
		}
		r.must(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Reason: "looked at by an operator"})
		n.Kill()
		r.restart()
		time.Sleep(time.Minute)
		if row := r.log.Latest().Node("n1"); row.Intent != muster.NodeHold || row.Health != muster.NodeGood {
			t.Errorf("intent %s, health %s", row.Intent, row.Health)
		}
	})
}
