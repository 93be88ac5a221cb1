package fleet_test

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// D8, F-H1: one answer that lacks an offering ends nothing of it; one that lacks it for long does, and a pool does not come
// to an end with an answer that has nothing in it.
func TestOfferingsThatAreLeftOut(t *testing.T) {
	const offerGone = 10 * time.Minute // as the fleet has it
	large := offering("large", 16, 12)
	for name, c := range map[string]struct {
		answer []muster.Offering
		lasts  time.Duration
		ends   bool
	}{
		"one answer":       {[]muster.Offering{large}, 90 * time.Second, false},
		"for long":         {[]muster.Offering{large}, offerGone + 3*time.Minute, true},
		"nothing for long": {nil, 3 * offerGone, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				usual := []muster.Offering{offering("small", 2, 1), large}
				w.offers, w.pool.Min = usual, 2
				w.start()
				w.submit("a", 1, 2, "sleep 10h ; true")
				w.until("running", 3*time.Second, running("a", 1))
				w.until("the other node is kept", time.Minute, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 2 })
				w.cloud.SetOffers(c.answer)
				began := time.Now()
				time.Sleep(offerGone - 10*time.Second)
				if c.lasts < offerGone {
					w.cloud.SetOffers(usual)
				}
				small := func() (n int) {
					w.log.Latest().LiveNodes(func(n0 *state.Node) bool {
						if n0.Offering.Name == "small" && n0.Stage == muster.NodeServing {
							n++
						}
						return true
					})
					return n
				}
				if n := small(); n != 2 || len(w.goneNodes()) > 0 {
					t.Errorf("%d of 2 nodes serve after %v; gone: %v", n, time.Since(began), w.goneNodes())
				}
				sold := false
				w.log.Latest().Offerings(func(o *muster.Offering) bool { sold = sold || o.Name == "small" && o.Available; return true })
				if sold {
					t.Error("it is offered still, though no answer has it")
				}
				time.Sleep(c.lasts)
				if n := small(); (n == 2) == c.ends {
					t.Errorf("%d of 2 nodes serve after %v; gone: %v", n, time.Since(began), w.goneNodes())
				}
			})
		})
	}
}
