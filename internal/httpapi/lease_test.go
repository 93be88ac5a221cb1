package httpapi

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// F-U7: pools and nodes show their lease; a node that is held has none.
func TestLeaseIsShown(t *testing.T) {
	lease := api.Duration(time.Hour)
	b := newBench(t, 1000, func(c *parts) {
		c.Running = func() *api.ServerConfig {
			return &api.ServerConfig{Pools: []api.PoolSpec{{Name: "p", Lease: lease}}}
		}
	})
	withPool(b)
	b.node("n1")
	if p := get[api.Pool](b, "/v1/pools/p"); p.Lease != lease {
		t.Errorf("pool: %s", p.Lease)
	}
	if n := get[api.Node](b, "/v1/nodes/n1"); n.Lease != lease {
		t.Errorf("node: %s", n.Lease)
	}
	b.propose(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
	if n := get[api.Node](b, "/v1/nodes/n1"); n.Lease != 0 {
		t.Errorf("held node: %s", n.Lease)
	}
}
