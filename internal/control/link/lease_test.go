package link

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A node hears of its lease with every set, and often enough to keep it; a held one has none, and hears that at once.
func TestLeaseIsSent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.config.Lease = func(*state.Node) time.Duration { return time.Hour }
		n := r.boot("n1", 2)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		time.Sleep(10 * time.Minute)
		sets := n.Sets()
		if most := 10*time.Minute/beatEvery + 3; len(sets) < int(10*time.Minute/(wire.SetEveryMillis*time.Millisecond)) || len(sets) > int(most) {
			t.Errorf("%d sets in ten minutes", len(sets))
		}
		for _, s := range sets {
			if s.LeaseMillis != time.Hour.Milliseconds() {
				t.Fatalf("%+v", s)
			}
		}
		last := func() int64 { all := n.Sets(); return all[len(all)-1].LeaseMillis }
		r.must(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
		time.Sleep(time.Second)
		if last() != 0 {
			t.Error("a held node has a lease")
		}
		r.must(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeRun})
		time.Sleep(time.Second)
		if last() == 0 {
			t.Error("a node that is not held any more has no lease")
		}
	})
}
