package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// F-L7: nodes whose provider is not configured say so.
func TestNodesOfAProviderThatIsNotConfigured(t *testing.T) {
	inBubble(t, func(w *world) {
		w.must(&state.NodeAdopted{ID: "old", Token: "told", Pool: "q", Offering: muster.Offering{Provider: "elsewhere", Name: "o"}, Instance: "i-old"})
		w.start()
		w.submit("a", 1, 2, "sleep 5s ; true")
		w.until("the job runs", 20*time.Second, running("a", 1))
		if why := w.fleet.Unmanaged(w.log.Latest().Node("old")); !strings.Contains(why, "provider elsewhere is not configured") {
			t.Errorf("%q", why)
		}
		w.log.Latest().LiveNodes(func(n *state.Node) bool {
			if why := w.fleet.Unmanaged(n); n.ID != "old" && why != "" {
				t.Errorf("node %s: %s", n.ID, why)
			}
			return true
		})
		w.must(&state.NodeGone{ID: "old"})
	})
}
