package link

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// F-L1: a node whose `ready` command takes a while is good from its first moment of service.
func TestSlowReadyCommandDoesNotMakeNodeLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		n.Answer(wire.ProbeAnswer{Why: "slow 5s"})
		r.start()
		r.until("serving", 10*time.Second, serving("n1"))
		time.Sleep(time.Minute)
		r.log.Latest().Nodes("", func(n *state.Node) bool {
			for _, e := range n.History {
				if e.Verb == "node.lost" {
					t.Errorf("it was lost at %v: %s", e.At, e.Reason)
				}
			}
			if n.Health != muster.NodeGood {
				t.Errorf("it is %s", n.Health)
			}
			return true
		})
	})
}
