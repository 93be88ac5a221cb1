package link

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// An instance that an operator holds is found again after its node was taken for gone, and gets a node with another id. The
// agent on it runs on under the old id, until it is started for the new one.
func TestAgentOfAFormerNodeIsStartedForTheNewOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		old := r.boot("n1", 4)
		room := muster.Resources{CPU: 4000, Memory: 64 * muster.GiB}
		r.config.StartAgent = func(_ context.Context, row *state.Node) error {
			if row.ID == "n1" {
				return r.node("n1").Start()
			}
			old.Destroy()
			n := linktest.NewNode(linktest.Config{ID: row.ID, Capacity: room, Attributes: map[string]string{"os": "linux"}})
			r.mu.Lock()
			r.nodes[row.ID] = n
			r.mu.Unlock()
			return n.Start()
		}
		r.start()
		r.until("n1 serves", time.Minute, serving("n1"))
		r.must(&state.NodeTerminating{ID: "n1", Reason: "lost"})
		r.must(&state.NodeGone{ID: "n1", Reason: "not in two lists"})
		r.mu.Lock()
		r.nodes["n2"] = old
		r.mu.Unlock()
		r.must(&state.NodeAdopted{ID: "n2", Token: "t-n1", Pool: "p", Instance: "i-n1", Intent: muster.NodeHold,
			Offering: muster.Offering{Provider: "fake", Name: "o", Market: muster.OnDemand, Capacity: room}})
		r.until("n2 is in contact", time.Minute, func(s *state.Snapshot) bool { return s.Node("n2").Health == muster.NodeGood })
		if row := r.log.Latest().Node("n2"); row.Intent != muster.NodeHold {
			t.Errorf("intent %s (%s)", row.Intent, row.IntentReason)
		}
	})
}

// An agent of a node that is not gone is left alone, whatever leads to it.
func TestAgentOfAnotherNodeIsLeftAlone(t *testing.T) {
	inBubble(t, func(r *rig) {
		var asked atomic.Int32
		r.config.StartAgent = func(context.Context, *state.Node) error {
			asked.Add(1)
			return nil
		}
		other := r.boot("n1", 4)
		r.boot("n2", 4).Destroy()
		r.mu.Lock()
		r.nodes["n2"] = other
		r.mu.Unlock()
		r.start()
		r.until("n1 serves", time.Minute, serving("n1"))
		time.Sleep(2 * time.Minute)
		row := r.log.Latest().Node("n2")
		if row.Stage != muster.NodeBooting || !strings.Contains(row.HealthReason+row.BootError, "of node n1") {
			t.Errorf("%+v", row)
		}
		if asked.Load() != 0 {
			t.Errorf("its agent was started %d times", asked.Load())
		}
	})
}
