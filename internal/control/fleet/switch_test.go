package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// in counts the nodes of a stage.
func in(stage muster.NodeStage, k int) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool {
		n := 0
		s.LiveNodes(func(row *state.Node) bool {
			if row.Stage == stage {
				n++
			}
			return true
		})
		return n == k
	}
}

// stopping has the pool stop idle nodes instead of destroying them.
func (w *world) stopping(most int, stopped time.Duration) {
	w.pool.StopMost, w.pool.StopTime = most, muster.Time(stopped.Microseconds())
}

// An idle node is switched off, costs nothing, is switched on for the next work, and is destroyed when nobody
// has wanted it for long. There is one instance all the time.
func TestIdleNodeIsStoppedAndStarted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.stopping(1, time.Hour)
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
		w.until("the node is stopped", 15*time.Second, in(muster.NodeStopped, 1))
		time.Sleep(5 * time.Second)
		if got := w.turned(); !slices.Equal(got, []bool{true}) {
			t.Errorf("switched off: %v", got)
		}
		_, before := w.only()
		spent := w.log.Latest().Spent("p", muster.At(time.Now()))
		// A minute before its time is over. Nothing is dialled meanwhile, and nothing is taken for lost.
		time.Sleep(58 * time.Minute)
		if _, n := w.only(); n.Stage != muster.NodeStopped || n.Health != muster.NodeUnready {
			t.Errorf("after a while it is %s and %s: %s", n.Stage, n.Health, n.HealthReason)
		}
		if now := w.log.Latest().Spent("p", muster.At(time.Now())); now != spent {
			t.Errorf("while it was off it cost %s", muster.Price(now-spent))
		}
		w.submit("b", 1, 2, "sleep 1s ; true")
		w.until("b's end", 5*time.Second, ended("b", muster.JobSucceeded))
		if _, n := w.only(); n.ID != before.ID || n.Instance != before.Instance || n.Joined != before.Joined {
			t.Errorf("b ran on %s, instance %s", n.ID, n.Instance)
		}
		if got := w.turned(); !slices.Equal(got, []bool{true, false}) {
			t.Errorf("switched off and on: %v", got)
		}
		w.until("it is destroyed in the end", 2*time.Hour, noNodes)
		if why := w.goneNodes(); len(why) != 1 || why[0] != "stopped for 1h0m0s" {
			t.Errorf("its end: %q", why)
		}
		if n := w.cloud.Calls().Intents; n != 1 || len(w.cloud.Instances()) != 0 {
			t.Errorf("%d instances were made, %d are left", n, len(w.cloud.Instances()))
		}
		w.startedOnce()
	})
}

// While a leader is killed in between, a machine is switched off or on all the same.
func TestSwitchesGoOnAfterARestart(t *testing.T) {
	inBubble(t, func(w *world) {
		w.stopping(1, time.Hour)
		fails := true
		w.cloud.SetFaults(fake.Faults{Switch: func(muster.InstanceID, bool) error {
			if fails {
				return muster.Faultf(muster.FaultTransient, "not now")
			}
			return nil
		}})
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("the node is to be stopped", 20*time.Second, in(muster.NodeStopped, 1))
		time.Sleep(3 * time.Second)
		if got := w.turned(); len(got) != 0 {
			t.Errorf("switched although the cloud refused: %v", got)
		}
		w.stop()
		fails = false
		w.restart()
		time.Sleep(5 * time.Second)
		if got := w.turned(); !slices.Equal(got, []bool{true}) {
			t.Errorf("switched by the next leader: %v", got)
		}
		fails = true
		w.submit("b", 1, 2, "sleep 1s ; true")
		w.until("it is to be started", 5*time.Second, in(muster.NodeStarting, 1))
		w.stop()
		fails = false
		w.restart()
		w.until("b's end", 10*time.Second, ended("b", muster.JobSucceeded))
		if n := w.cloud.Calls().Intents; n != 1 {
			t.Errorf("%d instances were made", n)
		}
	})
}

// A cloud without capacity to start a machine leaves it stopped, and the work gets another node. One that
// refuses to stop or start it for good has it destroyed.
func TestRefusedSwitches(t *testing.T) {
	for name, row := range map[string]struct {
		refuse      func(off bool) error
		gone, stays string
	}{
		"no capacity to start": {func(off bool) error {
			if off {
				return nil
			}
			return &muster.Fault{Kind: muster.FaultCapacity, Scope: muster.Scope{Provider: "fake", Offering: "small"}, Message: "out of capacity"}
		}, "", "not started: out of capacity"},
		"cannot start": {func(off bool) error {
			if off {
				return nil
			}
			return muster.Faultf(muster.FaultInvalid, "it is broken")
		}, "its provider does not start it: it is broken", ""},
		"cannot stop": {func(bool) error { return muster.Faultf(muster.FaultInvalid, "spot machines cannot be stopped") },
			"its provider does not stop it: spot machines cannot be stopped", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.stopping(1, time.Hour)
				// Without a limit the large offering is too dear.
				w.pool.PriceFactor = 0
				w.cloud.SetFaults(fake.Faults{Switch: func(_ muster.InstanceID, off bool) error { return row.refuse(off) }})
				w.start()
				w.submit("a", 1, 2, "sleep 1s ; true")
				w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
				time.Sleep(15 * time.Second)
				w.submit("b", 1, 2, "sleep 1s ; true")
				w.until("b's end", 10*time.Second, ended("b", muster.JobSucceeded))
				if n := w.cloud.Calls().Intents; n != 2 {
					t.Errorf("%d instances were made", n)
				}
				if row.gone != "" {
					time.Sleep(5 * time.Second)
					if why := w.goneNodes(); !slices.Contains(why, row.gone) {
						t.Errorf("ends: %q, want %q", why, row.gone)
					}
				}
				stays := ""
				w.log.Latest().LiveNodes(func(n *state.Node) bool {
					if n.Stage == muster.NodeStopped && strings.HasPrefix(n.StageReason, "not") {
						stays = n.StageReason
					}
					return true
				})
				if stays != row.stays {
					t.Errorf("stopped because %q, want %q", stays, row.stays)
				}
			})
		})
	}
}

// A stopped machine that somebody has destroyed is gone, without counting as lost contact, and one that does
// not come back in time is replaced.
func TestStoppedMachineGoesOrStays(t *testing.T) {
	inBubble(t, func(w *world) {
		w.stopping(1, 24*time.Hour)
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("the node is stopped", 20*time.Second, in(muster.NodeStopped, 1))
		_, n := w.only()
		w.cloud.Owner(w.owner).Destroy(t.Context(), []muster.InstanceID{n.Instance})
		w.until("it is gone", 5*time.Minute, noNodes)

		w.submit("b", 1, 2, "sleep 1s ; true")
		w.until("the next one is stopped", 20*time.Second, in(muster.NodeStopped, 1))
		_, n = w.only()
		w.mu.Lock()
		w.mute[n.ID] = true
		w.mu.Unlock()
		lists := w.cloud.Calls().List
		w.submit("c", 1, 2, "sleep 1s ; true")
		w.until("c's end", 3*time.Minute, ended("c", muster.JobSucceeded))
		// Each shows the address that a machine has after it was switched on; a minute has 30.
		if k := w.cloud.Calls().List - lists; k < 20 || k > 50 {
			t.Errorf("%d lists while it did not come back", k)
		}
		if row := w.log.Latest().Node(n.ID); row.Stage != muster.NodeGone && row.Stage != muster.NodeTerminating {
			t.Errorf("the one that did not come back is %s", row.Stage)
		}
	})
}

// A provider that cannot stop instances, as after a change of the configuration, has what is to be stopped
// destroyed.
func TestProviderThatCannotStop(t *testing.T) {
	inBubble(t, func(w *world) {
		w.stopping(1, time.Hour)
		w.wrap = func(p cloud.Provider) cloud.Provider { return onlyProvider{p} }
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
		w.until("it is destroyed", 30*time.Second, noNodes)
	})
}

// onlyProvider hides what else a provider can do.
type onlyProvider struct{ cloud.Provider }
