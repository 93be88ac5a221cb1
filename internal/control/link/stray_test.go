package link

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// What a restored state does not know keeps its node: it gets no work, and is not idle, until that has ended.
func TestStraysKeepTheirNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.stop()
		image, err := linktest.NewLedger("c1")
		if err != nil {
			t.Fatal(err)
		}
		if err := image.RestoreFrom(r.log); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.submit("unknown", spec("sleep 1m ; true", count(2)))
		r.place("unknown", "n1")
		r.until("running", time.Second, allocIs("uunknown-1-1", muster.AllocRunning))
		r.stop()
		time.Sleep(time.Hour)
		// They did not end in that hour: the backup is restored while they run.
		r.start()
		r.submit("later", spec("sleep 1m ; true", count(3)))
		r.place("later", "n1")
		r.until("running", time.Second, allocIs("ulater-2-1", muster.AllocRunning))
		r.stop()

		r.log, r.config.State, r.config.Proposer = image, image, image
		restored := muster.At(time.Now())
		r.must(&state.EpochBegan{})
		if since := r.log.Latest().Node("n1").IdleSince; since < restored {
			t.Errorf("idle for %s already", restored.Sub(since))
		}
		busy := func(s *state.Snapshot) bool {
			n := s.Node("n1")
			return n.Health == muster.NodeUnready && strings.HasPrefix(n.HealthReason, "it runs 3 allocations")
		}
		for range 2 { // and so it is under the next leader
			r.start()
			r.until("it has no room", 3*time.Second, busy)
			time.Sleep(10 * time.Second)
			if !busy(r.log.Latest()) {
				t.Errorf("%s", r.dump())
			}
			r.restart()
			r.until("it has no room", 3*time.Second, busy)
			r.stop()
		}
		r.start()
		r.until("free again", 2*time.Minute, serving("n1"))
		if live, since := n.Live(), r.log.Latest().Node("n1").IdleSince; len(live) > 0 || time.Since(since.Std()) > time.Second {
			t.Errorf("free with %v; idle since %s", live, since.Std())
		}
		r.check()
	})
}
