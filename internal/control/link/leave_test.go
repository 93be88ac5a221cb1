package link

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// The loop of a reload goes on over the connections that there are; what became of its nodes meanwhile is not forgotten.
func TestConnectionsOutliveTheLoop(t *testing.T) {
	inBubble(t, func(r *rig) {
		open := map[muster.NodeID]bool{}
		var left []muster.NodeID
		leave := func(id muster.NodeID) {
			r.mu.Lock()
			defer r.mu.Unlock()
			left = append(left, id)
			delete(open, id)
		}
		r.config.Enter = func(id muster.NodeID) {
			r.mu.Lock()
			defer r.mu.Unlock()
			open[id] = true
		}
		r.config.Leave = leave
		r.config.LeaveAllBut = func(linked func(muster.NodeID) bool) {
			for id := range open {
				if !linked(id) {
					leave(id)
				}
			}
		}
		r.boot("n1", 8)
		r.boot("n2", 8)
		r.boot("n3", 8)
		r.start()
		r.until("serving", time.Second, func(s *state.Snapshot) bool { return serving("n1")(s) && serving("n2")(s) && serving("n3")(s) })
		r.stop()
		if len(left) > 0 {
			t.Errorf("left %v at the end of the loop", left)
		}
		r.must(&state.NodeTerminating{ID: "n2"})
		r.must(&state.NodeGone{ID: "n2"})
		r.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.Equal(left, []muster.NodeID{"n2"}) {
			t.Errorf("left %v", left)
		}
		r.must(&state.NodeTerminating{ID: "n3"})
		synctest.Wait()
		if !slices.Equal(left, []muster.NodeID{"n2", "n3"}) || !open["n1"] {
			t.Errorf("left %v", left)
		}
	})
}
