package link

import (
	"slices"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// The guard of a terminating node is never renewed again: its exclusive work ends, and it costs no more sets than other work.
func TestExclusiveWorkOnTerminatingNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("hang", func(s *api.JobSpec) { s.Exclusive = true }))
		r.submit("b", spec("hang"))
		a := r.place("a", "n1")[0]
		b := r.place("b", "n1")[0]
		r.until("running", time.Second, allAre([]muster.AllocID{a, b}, muster.AllocRunning))
		time.Sleep(5 * time.Minute)
		if live := n.Live(); !slices.Equal(live, []muster.AllocID{a, b}) {
			t.Fatalf("running on a serving node: %v", live)
		}
		r.must(&state.NodeTerminating{ID: "n1"})
		before := len(n.Sets())
		time.Sleep(5 * time.Minute)
		if live := n.Live(); !slices.Equal(live, []muster.AllocID{b}) {
			t.Errorf("running on a terminating node: %v", live)
		}
		if got, most := len(n.Sets())-before, int(5*time.Minute/beatEvery)+3; got > most {
			t.Errorf("%d sets in five minutes, want at most %d", got, most)
		}
	})
}
