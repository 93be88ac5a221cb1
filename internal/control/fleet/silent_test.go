package fleet_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// breakBusy starts the loops, and returns a node that runs a job for half an hour, is broken and drains.
func (w *world) breakBusy() (*linktest.Node, muster.NodeID) {
	w.t.Helper()
	w.start()
	w.submit("a", 1, 2, "sleep 1800s ; true")
	w.until("running", time.Second, running("a", 1))
	n, row := w.only()
	w.must(&state.NodeHealthChanged{ID: row.ID, Health: muster.NodeBroken, Reason: "the disk is broken"})
	w.until("drained", time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeDraining })
	return n, row.ID
}

// drains reports an error if the node does not drain any more, or its work was touched.
func (w *world) drains(id muster.NodeID, when string) {
	w.t.Helper()
	snap := w.log.Latest()
	if n := snap.Node(id); n.Stage != muster.NodeDraining || n.LiveAllocs != 1 {
		w.t.Errorf("%s, node %s is %s (%s) with %d live allocations", when, id, n.Stage, n.StageReason, n.LiveAllocs)
	}
}

// A reload ends the loops and starts new ones in the same term. The new link has heard nothing yet, and the first pass of the new
// fleet does not wait for it: this must not be taken for a node that is silent.
func TestReloadSparesBrokenNodeWithWork(t *testing.T) {
	inBubble(t, func(w *world) {
		_, id := w.breakBusy()
		time.Sleep(5 * time.Minute)
		w.drains(id, "while its work runs")

		w.stop()
		w.dial = func(ctx context.Context) {
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
		}
		w.start()
		time.Sleep(2 * time.Second)
		w.drains(id, "after the reload and before the first report")
		time.Sleep(2 * time.Minute)
		w.drains(id, "after the first report")
	})
}

// A broken node that falls silent is destroyed after the grace of its pool, and no sooner.
func TestBrokenNodeFallsSilent(t *testing.T) {
	inBubble(t, func(w *world) {
		n, id := w.breakBusy()
		time.Sleep(5 * time.Minute)
		n.Cut(true)
		time.Sleep(50 * time.Second)
		w.drains(id, "before the grace is over")
		w.until("destroyed", 20*time.Second, func(s *state.Snapshot) bool {
			stage := s.Node(id).Stage
			return stage == muster.NodeTerminating || stage == muster.NodeGone
		})
	})
}

// A broken node that reports between the decision to destroy it and the proposal stays. Nothing in the state shows the report:
// the node is broken before and after it.
func TestBrokenNodeReportsAfterTheDecision(t *testing.T) {
	inBubble(t, func(w *world) {
		var asked atomic.Int64
		w.heard = func(id muster.NodeID) muster.Time {
			if n := w.log.Latest().Node(id); n.Health != muster.NodeBroken {
				t.Errorf("node %s is %s: only broken nodes are asked for", id, n.Health)
			}
			if asked.Add(1)%2 == 1 {
				return 0 // silent for ever, and
			}
			return muster.At(time.Now()) // heard when asked again
		}
		_, id := w.breakBusy()
		w.submit("b", 1, 2, "sleep 1800s ; true")
		w.until("another node", time.Minute, running("b", 1))
		time.Sleep(5 * time.Minute)
		w.drains(id, "after its report")
	})
}
