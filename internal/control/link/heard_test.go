package link

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
)

// Silence counts from the last report, or from the time when the link began. Where there is no link nothing is known, and
// nothing is silent.
func TestSilenceCountsFromTheBeginOfTheLink(t *testing.T) {
	inBubble(t, func(r *rig) {
		now := func() muster.Time { return muster.At(time.Now()) }
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", 5*time.Second, serving("n1"))
		r.stop()
		if got := r.link.Heard("n1"); got != now() {
			t.Errorf("after Run: %s ago", now().Sub(got))
		}

		n.Cut(true)
		time.Sleep(time.Hour)
		began := now()
		r.start()
		time.Sleep(10 * time.Second)
		if got := r.link.Heard("n1"); got != began {
			t.Errorf("never reached: %s ago, want %s", now().Sub(got), now().Sub(began))
		}
		if got := r.link.Heard("n2"); got != now() {
			t.Errorf("a node that has no link: %s ago", now().Sub(got))
		}

		n.Cut(false)
		r.until("serving", 2*time.Minute, serving("n1"))
		time.Sleep(time.Minute)
		if got := r.link.Heard("n1"); now().Sub(got) > 10*time.Second {
			t.Errorf("in contact: %s ago", now().Sub(got))
		}
	})
}
