package fleet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// What is out of contact is destroyed up to the limit; then the breaker trips, and neither a new leader
// nor time lets more pass, until an operator resumes the pool: then all of it goes. What is explained goes on.
func TestBreakerTripsAndResumes(t *testing.T) {
	all := 30
	if testing.Short() {
		all = 15
	}
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", all, 2, "sleep 1h ; true")
		w.until("running", 3*time.Second, running("a", all))
		for _, n := range w.all() {
			n.Cut(true)
		}
		w.until("tripped", 2*time.Minute, func(s *state.Snapshot) bool { return s.Breaker("p").IsTripped() })
		time.Sleep(2 * time.Minute)
		w.restart()
		time.Sleep(20 * time.Minute)
		lost := 0
		for _, why := range w.goneNodes() {
			if strings.Contains(why, "no contact") {
				lost++ // others were launched in place of the first, and have done their work
			}
		}
		if lost != all/5 {
			t.Errorf("%d of %d nodes were destroyed, want a fifth: %v", lost, all, w.goneNodes())
		}
		var one muster.NodeID
		w.log.Latest().LiveNodes(func(n *state.Node) bool {
			if n.Health == muster.NodeLost {
				one = n.ID
			}
			return one == ""
		})
		w.must(&state.NodeTerminating{ID: one, Reason: "destroyed by an operator", Who: "ada"})
		w.until("an operator's goes on", 10*time.Second, func(s *state.Snapshot) bool { return s.Node(one).Stage == muster.NodeGone })
		w.must(&state.PoolResumed{Pool: "p", Who: "ada"})
		// F-H2: one resume is enough for all that was lost before it.
		w.until("all that was out of contact is destroyed", 10*time.Second, func(s *state.Snapshot) bool {
			lost := 0
			s.LiveNodes(func(n *state.Node) bool {
				if n.Health == muster.NodeLost {
					lost++
				}
				return true
			})
			return lost == 0
		})
		if w.log.Latest().Breaker("p").IsTripped() {
			t.Error("the breaker has tripped again")
		}
	})
}

func TestIdleNodesDoNotTripTheBreaker(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 2, 2, "sleep 1s ; true")
		w.until("the job's end", 5*time.Second, ended("a", muster.JobSucceeded))
		w.until("both end as usual", time.Minute, noNodes)
		if w.log.Latest().Breaker("p").IsTripped() {
			t.Error("the breaker has tripped")
		}
	})
}

// A pool whose list suddenly lacks most nodes, of which contact is lost as well.
func TestListThatLacksManyTripsTheBreaker(t *testing.T) {
	all, lacks := 50, 30
	if testing.Short() {
		all, lacks = 15, 9
	}
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", all, 2, "sleep 30m ; true")
		w.until("running", 5*time.Second, running("a", all))
		time.Sleep(time.Minute)
		k := 0
		hidden := map[muster.InstanceID]bool{}
		w.log.Latest().LiveNodes(func(n *state.Node) bool {
			if k++; k <= lacks {
				w.node(n.ID).Cut(true)
				hidden[n.Instance] = true
			}
			return true
		})
		w.hide(func(id muster.InstanceID) bool { return hidden[id] })
		w.until("tripped", time.Minute, func(s *state.Snapshot) bool { return s.Breaker("p").IsTripped() })
		if why := w.log.Latest().Breaker("p").Reason; !strings.Contains(why, fmt.Sprintf("lacks %d of %d nodes at once", lacks, all)) {
			t.Errorf("reason: %s", why)
		}
		time.Sleep(15 * time.Minute)
		if gone := w.goneNodes(); len(gone) > 0 {
			t.Errorf("declared gone: %v", gone)
		}
		// It was the provider's fault: everything comes back, and nothing has been lost.
		w.hide(nil)
		for _, n := range w.all() {
			n.Cut(false)
		}
		w.until("all run", time.Minute, func(s *state.Snapshot) bool {
			good := 0
			s.LiveNodes(func(n *state.Node) bool {
				if n.Health == muster.NodeGood {
					good++
				}
				return true
			})
			return good == all
		})
		w.must(&state.PoolResumed{Pool: "p", Who: "ada"})
		w.until("the job's end", time.Hour, ended("a", muster.JobSucceeded))
		w.startedOnce()
	})
}

// Nothing automatic ends a held node, nor gives it work; the end of its hold does what had been waiting.
func TestHold(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world, id muster.NodeID)
	}{
		{"idle time-out", func(*world, muster.NodeID) {}},
		{"broken", func(w *world, id muster.NodeID) {
			w.must(&state.NodeHealthChanged{ID: id, Health: muster.NodeBroken, Reason: "disk"})
		}},
		{"lost", func(w *world, id muster.NodeID) { w.node(id).Cut(true) }},
		{"the pool is full and others wait", func(w *world, _ muster.NodeID) {
			w.pool.Max = 1
			w.must(&state.PoolsSet{Pools: []state.Pool{w.pool}})
			w.submit("large", 1, 16, "true")
		}},
		{"its offering is not sold any more", func(w *world, _ muster.NodeID) { w.cloud.SetOffers([]muster.Offering{offering("large", 16, 12)}) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.start()
				w.submit("a", 1, 2, "true")
				w.until("the job's end", 5*time.Second, ended("a", muster.JobSucceeded))
				_, row := w.only()
				w.must(&state.NodeIntentSet{ID: row.ID, Intent: muster.NodeHold, Reason: "look", Who: "ada", Until: muster.At(time.Now().Add(2 * time.Hour))})
				c.then(w, row.ID)
				time.Sleep(time.Hour)
				w.restart()
				time.Sleep(59 * time.Minute)
				if n := w.log.Latest().Node(row.ID); n.Stage != muster.NodeServing || n.Intent != muster.NodeHold || n.Served != 1 {
					t.Errorf("held node: %s %s, served %d", n.Stage, n.Intent, n.Served)
				}
				w.until("its end after the hold", 5*time.Minute, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
				var verbs []string
				for _, e := range w.log.Latest().Node(row.ID).History {
					if strings.Contains(string(e.Verb), "intent") {
						verbs = append(verbs, string(e.Verb)+" "+e.Reason)
					}
				}
				if got := fmt.Sprint(verbs); got != "[node.intent-hold look node.intent-run the time of its hold is over]" {
					t.Errorf("history: %s", got)
				}
			})
		})
	}
}

// What its boot was short of is told while it boots, and stays to be read when it is gone.
func TestBootErrorIsKept(t *testing.T) {
	inBubble(t, func(w *world) {
		w.boots = false
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("told while it boots", 30*time.Second, func(s *state.Snapshot) bool {
			told := false
			s.LiveNodes(func(n *state.Node) bool {
				told = n.Stage == muster.NodeBooting && strings.Contains(n.BootError, "no agent there")
				return true
			})
			return told
		})
		w.until("gone", 70*time.Second, func(s *state.Snapshot) bool { return len(w.goneNodes()) == 1 })
		if why := w.goneNodes()[0]; !strings.Contains(why, "within 1m0s: its agent could not be started: no agent there") {
			t.Errorf("reason: %s", why)
		}
		w.mu.Lock()
		w.boots = true
		w.mu.Unlock()
		w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
	})
}

// The instance of a check is left alone for as long as it is sheltered, and no longer.
func TestShelteredInstanceIsLeftAlone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		end, err := w.fleet.Shelter(context.Background(), "tcheck", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		w.cloud.Add(cloud.Tags{Owner: "c1", Token: "tcheck", Node: "check-1"}, "small")
		time.Sleep(10 * time.Minute)
		if n := w.log.Latest().LiveNodeCount(); n != 0 || len(w.cloud.Instances()) != 1 {
			t.Errorf("%d nodes, instances %v", n, w.cloud.Instances())
		}
		end(false) // it could not be destroyed: the fleet's turn
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if left := w.cloud.Instances(); len(left) > 0 {
			t.Errorf("left: %v\n%s", left, w.dump())
		}
	})
}

// hide keeps instances out of the lists that the provider calls complete; nil: none.
func (w *world) hide(hidden func(muster.InstanceID) bool) {
	f := fake.Faults{}
	if hidden != nil {
		f.Cut = func(page []cloud.Instance) ([]cloud.Instance, bool) {
			return slices.DeleteFunc(slices.Clone(page), func(in cloud.Instance) bool { return hidden(in.ID) }), true
		}
	}
	w.cloud.SetFaults(f)
}
