package link

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func healthIs(id muster.NodeID, h muster.NodeHealth) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool { return s.Node(id).Health == h }
}

// gaps are the times between probes.
func gaps(n *linktest.Node) (out []time.Duration) {
	at := n.Probed()
	for i := 1; i < len(at); i++ {
		out = append(out, at[i].Sub(at[i-1]).Round(100*time.Millisecond))
	}
	return out
}

// Not ready three times, then ready: it serves after the first yes, asked when it wanted to be.
func TestUnreadyNodeIsProbedWhenItAsks(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		n.Answer(wire.ProbeAnswer{Why: "loading", AgainMillis: 7000}, wire.ProbeAnswer{Why: "loading", AgainMillis: 20000}, wire.ProbeAnswer{Why: "nearly", AgainMillis: 500})
		r.start()
		for range 27 {
			time.Sleep(time.Second)
			if row := r.log.Latest().Node("n1"); row.Schedulable() || row.Health != muster.NodeUnready || row.HealthReason == "" {
				t.Fatalf("%s %s: %s", row.Stage, row.Health, row.HealthReason)
			}
		}
		r.until("good", 2*time.Second, serving("n1"))
		if got := fmt.Sprint(gaps(n)); got != "[7s 20s 500ms]" {
			t.Errorf("probed with %s between", got)
		}
	})
}

// A node that serves is probed after a failure of its own, and after a spell on the sideline, again with the
// back-off that it asks for. Meanwhile it gets nothing, and nothing else waits.
func TestProvedAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.boot("n2", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		first := len(n.Probed())
		n.Answer(wire.ProbeAnswer{Why: "gpu is gone", AgainMillis: 30000}, wire.ProbeAnswer{Why: "gpu is gone"}, wire.ProbeAnswer{Why: "gpu is gone"})
		r.must(&state.NodeFailed{ID: "n1", Reason: "no gpu", Prove: true})
		r.until("not ready", time.Second, func(s *state.Snapshot) bool { return s.Node("n1").HealthReason == "not ready: gpu is gone" })
		r.until("good", time.Minute, healthIs("n1", muster.NodeGood))
		if got := fmt.Sprint(gaps(n)[first:]); got != "[30s 1s 2s]" && got != "[30s 2s 4s]" {
			t.Errorf("probed with %s between", got)
		}
		r.must(&state.NodeFailed{ID: "n1", Reason: "no gpu", Prove: true})
		r.until("good", time.Second, healthIs("n1", muster.NodeGood))
		r.must(&state.NodeFailed{ID: "n1", Reason: "no gpu", Prove: true})
		r.until("flaky", time.Second, healthIs("n1", muster.NodeFlaky))
	})
}

// Sidelined for its time, contact or not, then probed afresh.
func TestSidelinedNodeIsProbedAfterItsTime(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		for range state.FlakyFailures {
			r.must(&state.NodeFailed{ID: "n1", Reason: "mount"})
		}
		r.until("flaky", time.Second, healthIs("n1", muster.NodeFlaky))
		began, probes := time.Now(), len(n.Probed())
		time.Sleep(time.Minute)
		n.Cut(true)
		r.until("lost", 10*time.Second, healthIs("n1", muster.NodeLost))
		n.Cut(false)
		r.until("flaky again", 10*time.Second, healthIs("n1", muster.NodeFlaky))
		r.until("good", 15*time.Minute, healthIs("n1", muster.NodeGood))
		if d := time.Since(began); d < 15*time.Minute || d > 15*time.Minute+time.Second || len(n.Probed()) != probes+1 {
			t.Errorf("good after %s and %d probes", d, len(n.Probed())-probes)
		}
	})
}

// A probe that hangs is ended by its deadline. Meanwhile what runs there goes on and is
// heard, other nodes are served, and when the node goes nothing of the probe is left: the bubble would not end.
func TestProbeHangs(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.must(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10, Grace: 60e6, Ready: []string{"true"}, ReadyTimeout: 5e6}}})
		n := r.boot("n1", 4)
		r.boot("n2", 4)
		r.start()
		r.until("serving", time.Second, func(s *state.Snapshot) bool { return serving("n1")(s) && serving("n2")(s) })
		r.submit("a", spec("sleep 20s"))
		id := r.place("a", "n1")[0]
		r.until("running", time.Second, allocIs(id, muster.AllocRunning))
		hang := wire.ProbeAnswer{Why: "hang"}
		n.Answer(hang, hang, hang)
		r.must(&state.NodeFailed{ID: "n1", Reason: "r", Prove: true})
		r.submit("b", spec("exit 0"))
		r.place("b", "n2")
		r.until("the other node works on", time.Second, jobEnded("b"))
		r.until("its work ends", 25*time.Second, jobEnded("a"))
		if row := r.log.Latest().Node("n1"); row.Health != muster.NodeUnready {
			t.Errorf("%s: %s", row.Health, row.HealthReason)
		}
		r.until("the deadline ends the probe", wire.ChecksTimeout+20*time.Second, func(s *state.Snapshot) bool {
			return s.Node("n1").HealthReason != "to be probed after a node failure: r"
		})
		time.Sleep(2 * time.Second) // the next one hangs
		r.must(&state.NodeTerminating{ID: "n1"})
		gone := make(chan struct{})
		go func() { n.Destroy(); close(gone) }()
		<-gone
		r.must(&state.NodeGone{ID: "n1"})
		synctest.Wait()
	})
}

// What its own checks find makes it unready, and once they find nothing it proves itself and goes on.
func TestOwnChecksMakeANodeUnready(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		n.Says(wire.Condition{Unready: "its disk is nearly full"})
		r.until("unready", time.Second, func(s *state.Snapshot) bool {
			return s.Node("n1").Health == muster.NodeUnready && s.Node("n1").HealthReason == "its disk is nearly full"
		})
		n.Says(wire.Condition{})
		r.until("good", 5*time.Second, healthIs("n1", muster.NodeGood))
		n.Says(wire.Condition{Broken: "/run/muster/broken says: ecc"})
		r.until("broken", time.Second, func(s *state.Snapshot) bool {
			return s.Node("n1").Health == muster.NodeBroken && s.Node("n1").HealthReason == "/run/muster/broken says: ecc"
		})
		n.Says(wire.Condition{})
		time.Sleep(time.Hour)
		if h := r.log.Latest().Node("n1").Health; h != muster.NodeBroken {
			t.Error(h)
		}
	})
}

// A notice of the cloud is passed on once, again in a new contact, and as none when it is withdrawn.
func TestNoticeIsPassedOn(t *testing.T) {
	inBubble(t, func(r *rig) {
		var told []wire.Notice // in the bubble, only read while all else waits
		r.config.Noticed = func(id muster.NodeID, n wire.Notice) {
			if id != "n1" {
				t.Error(id)
			}
			told = append(told, n)
		}
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		taken := wire.Notice{Kind: wire.NoticeTaken, At: 1}
		time.Sleep(time.Second) // the first contact is whole by then
		n.Says(wire.Condition{Notice: taken})
		time.Sleep(time.Minute) // of heartbeats that say the same
		n.Says(wire.Condition{Notice: taken, Unready: "its disk is nearly full"})
		time.Sleep(time.Second)
		r.restart()
		time.Sleep(time.Minute)
		n.Says(wire.Condition{})
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []wire.Notice{{}, taken, taken, {}}; !slices.Equal(told, want) {
			t.Errorf("told %+v, want %+v", told, want)
		}
	})
}

// One that says before its first service that it is broken never serves.
func TestBrokenAtBoot(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		n.Says(wire.Condition{Broken: "ecc"})
		r.start()
		r.until("broken", time.Second, func(s *state.Snapshot) bool {
			row := s.Node("n1")
			return row.Health == muster.NodeBroken && row.Stage == muster.NodeBooting && row.HealthReason == "ecc"
		})
	})
}

// Within the grace it is good at once, unasked; after it, as where an operator holds it, it has to prove itself.
func TestContactReturns(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		for _, c := range []struct {
			away   time.Duration
			probes int
		}{{50 * time.Second, 0}, {5 * time.Minute, 1}} {
			before := len(n.Probed())
			n.Cut(true)
			time.Sleep(c.away)
			n.Cut(false)
			r.until("good", 10*time.Second, healthIs("n1", muster.NodeGood))
			if got := len(n.Probed()) - before; got != c.probes {
				t.Errorf("probed %d times after %s", got, c.away)
			}
		}
	})
}

// What the agent has of images is what the state remembers.
func TestImagesAtHand(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		warm := func(want int) func(*state.Snapshot) bool {
			return func(s *state.Snapshot) bool {
				k := 0
				s.WarmNodes(muster.ImageKey("busybox:1"), func(muster.NodeID) bool { k++; return true })
				return k == want
			}
		}
		n.Cache("docker.io/library/busybox:1")
		r.until("warm", 10*time.Second, warm(1))
		index := r.log.Latest().Index()
		time.Sleep(time.Minute)
		if now := r.log.Latest().Index(); now != index {
			t.Errorf("%d facts although nothing changed", now-index)
		}
		n.Cache()
		r.until("evicted", 10*time.Second, warm(0))
	})
}
