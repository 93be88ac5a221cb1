package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/state"
)

func TestCreateFailsUntyped(t *testing.T) {
	inBubble(t, func(w *world) {
		var n atomic.Int64
		w.cloud.SetFaults(fake.Faults{Create: func(cloud.Intent) error {
			if n.Add(1)%3 == 0 { // worse than 10 %
				return errors.New("something went wrong")
			}
			return nil
		}})
		w.start()
		w.submit("a", 40, 2, "sleep 1s ; true")
		w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
		w.log.Latest().Members("ua", 0, func(m *state.Member) bool {
			if m.Attempt != 1 {
				t.Errorf("member %d used %d attempts", m.Index, m.Attempt)
			}
			return true
		})
		w.until("no node", time.Minute, noNodes)
		w.startedOnce()
	})
}

func TestAnswerToCreateIsLost(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud.SetFaults(fake.Faults{Lost: times(3, muster.Faultf(muster.FaultAmbiguous, "the connection broke"))})
		w.start()
		w.submit("a", 3, 2, "sleep 1s ; true")
		w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
		if c := w.cloud.Calls(); len(w.cloud.Instances()) != 3 || c.Intents != 3 {
			t.Errorf("%d instances from %d intents for three nodes", len(w.cloud.Instances()), c.Intents)
		}
		w.until("no node", time.Minute, noNodes)
	})
}

func TestDestroyFails(t *testing.T) {
	inBubble(t, func(w *world) {
		var tries atomic.Int64
		w.cloud.SetFaults(fake.Faults{Destroy: func(muster.InstanceID) error {
			if tries.Add(1) <= 4 {
				return errors.New("not now")
			}
			return nil
		}})
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("terminating", 20*time.Second, func(s *state.Snapshot) bool {
			is := false
			s.LiveNodes(func(n *state.Node) bool { is = n.Stage == muster.NodeTerminating; return true })
			return is
		})
		_, row := w.only()
		w.submit("b", 1, 1, "true")
		w.until("b's end", 10*time.Second, ended("b", muster.JobSucceeded))
		if a := w.log.Latest().Alloc("ub-0-1"); a.Node == row.ID {
			t.Error("a terminating node was given work")
		}
		w.until("no node", time.Minute, noNodes)
		if tries.Load() < 5 || len(w.cloud.Instances()) > 0 {
			t.Errorf("destroyed after %d tries, left %v", tries.Load(), w.cloud.Instances())
		}
	})
}

func TestRateLimitAndQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault *muster.Fault
		wait  time.Duration
	}{
		{"rate-limited until T", &muster.Fault{Kind: muster.FaultRateLimited, Message: "slow down", After: 17 * time.Second}, 17 * time.Second},
		{"rate-limited, no time given", &muster.Fault{Kind: muster.FaultRateLimited, Message: "slow down"}, 5 * time.Second},
		{"quota with no instance of ours", &muster.Fault{Kind: muster.FaultQuota, Message: "quota reached"}, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				open := time.Now().Add(c.wait)
				var early, late atomic.Int64
				w.cloud.SetFaults(fake.Faults{Create: func(cloud.Intent) error {
					if time.Now().Before(open) {
						early.Add(1)
						return c.fault
					}
					late.Add(1)
					return nil
				}})
				w.start()
				w.submit("a", 4, 2, "true")
				time.Sleep(c.wait - time.Millisecond)
				synctest.Wait()
				first := early.Load()
				if first == 0 || first > 4 {
					t.Errorf("%d creates before T, all of the first batch at most", first)
				}
				if lists := w.cloud.Calls().List; lists == 0 {
					t.Error("listing did not go on")
				}
				w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
				if early.Load() != first {
					t.Errorf("%d creates while blocked", early.Load()-first)
				}
			})
		})
	}
}

func TestOneCreateAfterTheQuotaTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		var tries atomic.Int64
		w.cloud.SetFaults(fake.Faults{Create: func(cloud.Intent) error {
			tries.Add(1)
			return muster.Faultf(muster.FaultQuota, "quota reached")
		}})
		w.start()
		w.submit("a", 10, 2, "true")
		time.Sleep(29 * time.Second)
		first := tries.Load()
		time.Sleep(5 * time.Second)
		if more := tries.Load() - first; more != 1 {
			t.Errorf("%d tries after the time-out, want one", more)
		}
		if d := w.fleet.Decisions(); len(d.Waits) != 1 || !strings.Contains(d.Waits[0].Reason, "quota reached") {
			t.Errorf("what waits does not say why: %+v", d.Waits)
		}
	})
}

func TestCapacityOfOneOffering(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud.SetFaults(fake.Faults{Create: func(in cloud.Intent) error {
			if in.Offering == "small" {
				return &muster.Fault{Kind: muster.FaultCapacity, Message: "out of capacity", Scope: muster.Scope{Offering: "small", Market: muster.OnDemand}}
			}
			return nil
		}})
		w.start()
		w.submit("a", 2, 2, "true")
		w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
		if in := w.cloud.Instances(); len(in) != 1 || in[0].Offering != "large" {
			t.Errorf("instances: %v", in)
		}
	})
}

func TestInstanceOfAnotherOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.cloud.Add(cloud.Tags{Owner: "c2", Token: "t", Node: "n", Pool: "p"}, "small")
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
		w.until("no node", time.Minute, noNodes)
		time.Sleep(5 * time.Minute)
		if in := w.cloud.Instances(); len(in) != 1 || in[0].ID != other.ID {
			t.Errorf("the other owner's instance was touched: %v", in)
		}
	})
}

func TestListEmptyOrCutOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func([]cloud.Instance) ([]cloud.Instance, bool)
	}{
		{"empty", func([]cloud.Instance) ([]cloud.Instance, bool) { return nil, true }},
		{"short", func(in []cloud.Instance) ([]cloud.Instance, bool) { return in[:len(in)/2], true }},
		{"not complete", func([]cloud.Instance) ([]cloud.Instance, bool) { return nil, false }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.start()
				w.submit("a", 4, 2, "sleep 3m ; true")
				w.until("running", 5*time.Second, running("a", 4))
				// Contact is lost, so that absence would be believed, and the one list that is asked for now lies.
				for _, n := range w.all() {
					n.Cut(true)
				}
				var lies atomic.Int64
				w.cloud.SetFaults(fake.Faults{Cut: func(in []cloud.Instance) ([]cloud.Instance, bool) {
					if lies.Add(1) == 1 {
						return c.cut(in)
					}
					return in, true
				}})
				time.Sleep(10 * time.Second)
				if lies.Load() < 2 {
					t.Fatalf("listed %d times while contact was lost", lies.Load())
				}
				for _, n := range w.all() {
					n.Cut(false)
				}
				w.until("the job's end", 4*time.Minute, ended("a", muster.JobSucceeded))
				if gone := w.goneNodes(); len(gone) > 0 {
					t.Errorf("declared gone: %v", gone)
				}
				w.startedOnce()
			})
		})
	}
}

func TestKilledBetweenIntentAndAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		made bool // the provider had made it by then
	}{{"made", true}, {"not made", false}} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				hang := make(chan struct{})
				fault := func(cloud.Intent) error { <-hang; return errors.New("the server is dead") }
				if c.made {
					w.cloud.SetFaults(fake.Faults{Lost: fault})
				} else {
					w.cloud.SetFaults(fake.Faults{Create: fault})
				}
				w.start()
				w.submit("a", 3, 2, "sleep 1s ; true")
				w.until("intents", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 3 })
				synctest.Wait()
				w.cloud.SetFaults(fake.Faults{})
				close(hang)
				w.restart()
				w.until("the job's end", 10*time.Second, ended("a", muster.JobSucceeded))
				if n := len(w.cloud.Instances()); n != 3 {
					t.Errorf("%d instances for three intents\n%s", n, w.dump())
				}
				w.until("no node", time.Minute, noNodes)
				w.startedOnce()
			})
		})
	}
}

func TestRestartAnyTimeNeverLaunchesTwice(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 40 * time.Millisecond, 150 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.cloud = fake.New(fake.Config{Offerings: []muster.Offering{offering("small", 2, 1)}, Seed: 3,
					Delay: 100 * time.Millisecond, Jitter: 50 * time.Millisecond, Created: w.created, Destroyed: w.destroyed})
				w.start()
				w.submit("a", 8, 2, "sleep 1s ; true")
				for range 4 {
					time.Sleep(after)
					w.restart()
				}
				w.until("the job's end", 30*time.Second, ended("a", muster.JobSucceeded))
				if n := len(w.cloud.Instances()) + len(w.goneNodes()); n != 8 {
					t.Errorf("%d instances were made for eight members\n%s", n, w.dump())
				}
				w.startedOnce()
				w.until("no node", time.Minute, noNodes)
				if left := w.cloud.Instances(); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

func TestBootNeverComes(t *testing.T) {
	inBubble(t, func(w *world) {
		w.boots = false
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("booting", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 1 })
		began := time.Now()
		w.until("gone", 70*time.Second, func(s *state.Snapshot) bool { return len(w.goneNodes()) == 1 })
		if took := time.Since(began); took < 60*time.Second || !strings.Contains(w.goneNodes()[0], "did not come into service within 1m0s") {
			t.Errorf("after %s: %v", took, w.goneNodes())
		}
		w.mu.Lock()
		w.boots = true
		w.mu.Unlock()
		w.until("the job's end", 70*time.Second, ended("a", muster.JobSucceeded))
	})
}

// D18, F-M1: where nothing boots, instances are not bought without end; why is told, and once boots work the next one soon is.
func TestBootsThatFailAreBackedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		w.boots = false
		w.start()
		w.submit("a", 20, 2, "true")
		time.Sleep(time.Hour)
		// It was 1,200 and more, hour after hour. Waits double up to ten minutes, for each offering.
		if n := w.cloud.Calls().Intents; n > 300 {
			t.Errorf("%d instances were bought in an hour", n)
		}
		told := false
		for _, b := range w.fleet.Blocks() {
			told = told || strings.Contains(b.Why, "times in a row") && strings.Contains(b.Why, "did not come into service")
		}
		if !told {
			t.Errorf("blocks: %+v", w.fleet.Blocks())
		}
		w.mu.Lock()
		w.boots = true
		w.mu.Unlock()
		w.until("the job's end", 20*time.Minute, ended("a", muster.JobSucceeded))
		for _, b := range w.fleet.Blocks() {
			if b.Scope.Offering == "small" {
				t.Errorf("still told: %+v", b)
			}
		}
	})
}

func TestRestartKeepsNodes(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 3, 2, "sleep 90s ; true")
		w.until("running", time.Second, running("a", 3))
		nodes := map[muster.AllocID]muster.NodeID{}
		w.log.Latest().LiveAllocs(func(a *state.Alloc) bool { nodes[a.ID] = a.Node; return true })
		held, drained, busy := nodes["ua-0-1"], nodes["ua-1-1"], nodes["ua-2-1"]
		w.must(&state.NodeIntentSet{ID: held, Intent: muster.NodeHold, Reason: "to look at"})
		w.must(&state.NodeIntentSet{ID: drained, Intent: muster.NodeDrain})
		// An instance of an offering that the pool does not use any more, and idle.
		w.pool.Offerings = []muster.OfferingName{"small"}
		w.must(&state.PoolsSet{Pools: []state.Pool{w.pool}})
		w.must(&state.NodeAdopted{ID: "old", Token: "told", Pool: "p", Offering: offering("large", 16, 12), Instance: "i-old"})
		in := w.cloud.Add(cloud.Tags{Owner: "c1", Token: "told", Node: "old", Pool: "p"}, "large")
		_ = in
		w.stop()
		time.Sleep(30 * time.Second)
		w.restart()
		w.until("the unconfigured is gone", 5*time.Second, func(s *state.Snapshot) bool { return s.Node("old").Stage == muster.NodeGone })
		snap := w.log.Latest()
		if n := snap.Node(held); n.Intent != muster.NodeHold || n.Stage != muster.NodeServing {
			t.Errorf("held node: %+v", n)
		}
		for id, node := range nodes {
			if a := snap.Alloc(id); !a.Live() || a.Node != node {
				t.Errorf("%s was disturbed: %+v", id, a)
			}
		}
		w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		w.startedOnce()
		w.until("drained and idle are gone", 20*time.Second, func(s *state.Snapshot) bool {
			return s.Node(drained).Stage == muster.NodeGone && s.Node(busy).Stage == muster.NodeGone
		})
		time.Sleep(time.Hour)
		if n := w.log.Latest().Node(held); n.Stage != muster.NodeServing || len(w.cloud.Instances()) != 1 {
			t.Errorf("the held node is %s, instances %v", n.Stage, w.cloud.Instances())
		}
	})
}

func TestDrain(t *testing.T) {
	inBubble(t, func(w *world) {
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("a", 1, 2, "sleep 20s ; true")
		w.submit("b", 1, 2, "true")
		w.until("b's end", time.Second, ended("b", muster.JobSucceeded))
		busy := w.log.Latest().Alloc("ua-0-1").Node
		idle := w.log.Latest().Alloc("ub-0-1").Node
		w.mu.Lock()
		w.boots = false
		w.mu.Unlock()
		w.submit("c", 1, 16, "true")
		w.until("booting", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 3 })
		var booting muster.NodeID
		synctest.Wait()
		w.log.Latest().LiveNodes(func(n *state.Node) bool {
			if n.Stage == muster.NodeBooting {
				booting = n.ID
			}
			return true
		})
		w.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "c"}})
		for _, id := range []muster.NodeID{busy, idle, booting} {
			w.must(&state.NodeIntentSet{ID: id, Intent: muster.NodeDrain, Reason: "kernel"})
		}
		w.until("idle and booting are gone", 2*time.Second, func(s *state.Snapshot) bool {
			return s.Node(idle).Stage == muster.NodeGone && s.Node(booting).Stage == muster.NodeGone
		})
		if w.log.Latest().Node(busy).Stage != muster.NodeServing {
			t.Error("the busy node was not waited for")
		}
		w.until("a's end", 30*time.Second, ended("a", muster.JobSucceeded))
		w.until("busy is gone", 2*time.Second, noNodes)
	})
}

func TestInstanceVanishes(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 2, 2, "sleep 30s ; true")
		w.until("running", time.Second, running("a", 2))
		a := w.log.Latest().Alloc("ua-0-1")
		began := time.Now()
		w.cloud.Vanish(w.log.Latest().Node(a.Node).Instance)
		w.until("lost", 5*time.Second, func(s *state.Snapshot) bool { return s.Alloc(a.ID).Outcome == muster.OutcomeLost })
		t.Logf("confirmed after %s", time.Since(began))
		w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
		m := w.log.Latest().Member("ua", 0)
		if m.Attempt != 2 || m.UserFailures != 0 {
			t.Errorf("member: %+v", m)
		}
		w.startedOnce()
	})
}

// A busy node whose agent cannot be reached, and whose instance is there, is
// ended after the grace; its work starts elsewhere only when that is confirmed.
func TestNodeLostPastTheGraceIsDestroyed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 3m ; true")
		w.until("running", time.Second, running("a", 1))
		n, row := w.only()
		n.Cut(true)
		time.Sleep(55 * time.Second)
		if a := w.log.Latest().Alloc("ua-0-1"); !a.Live() {
			t.Errorf("replaced within the grace: %+v", a)
		}
		w.until("gone", 15*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
		w.until("the job's end", 4*time.Minute, ended("a", muster.JobSucceeded))
		w.startedOnce()
	})
}

// A host of a static pool that cannot be reached: nobody can say that it is gone, so its work is placed elsewhere when the grace is
// over. Then two may run for a while, but never of what is exclusive.
func TestStaticHostLostPastTheGrace(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprintf("exclusive=%v", exclusive), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.static, w.mayTwice, w.pool.Static = true, !exclusive, true
				w.start()
				w.submit("a", 1, 2, "sleep 10m ; true", func(s *api.JobSpec) { s.Exclusive = exclusive })
				w.until("running", time.Second, running("a", 1))
				time.Sleep(2 * time.Minute) // far longer than a fence: it is spoken to
				n, _ := w.only()
				first := w.log.Latest().Alloc("ua-0-1")
				n.Cut(true)
				w.until("lost", 5*time.Second, func(s *state.Snapshot) bool { return s.Node(first.Node).Health == muster.NodeLost })
				lost := time.Now()
				w.until("given up", 2*time.Minute, func(s *state.Snapshot) bool { return !s.Alloc(first.ID).Live() })
				if took := time.Since(lost); took < 59*time.Second || took > 62*time.Second {
					t.Errorf("given up %s after contact was lost, want the grace of a minute", took)
				}
				if left := len(n.Live()); left != map[bool]int{true: 0, false: 1}[exclusive] {
					t.Errorf("%d still run on the host that is cut off", left)
				}
				w.until("elsewhere", 10*time.Second, func(s *state.Snapshot) bool {
					a := s.Alloc("ua-0-2")
					return a != nil && a.Status == muster.AllocRunning && a.Node != first.Node
				})
				if a := w.log.Latest().Alloc(first.ID); a.Outcome != muster.OutcomeLost {
					t.Errorf("%+v", a)
				}
				if twice := w.ranTwice("ua/0"); twice == exclusive {
					t.Errorf("ran twice: %v", twice)
				}
				w.until("the job's end", 11*time.Minute, ended("a", muster.JobSucceeded))
			})
		})
	}
}

// Whatever happens to links and servers, of what is exclusive on hosts of a static pool there are never two: world.invariants
// looks after each fact.
func TestExclusiveNeverRunsTwice(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, func(w *world) {
				rnd := rand.New(rand.NewPCG(uint64(seed), 14))
				w.static, w.pool.Static, w.pool.Grace = true, true, muster.Time(5+rnd.IntN(20))*1e6
				w.start()
				const members = 6
				w.submit("a", members, 2, "sleep 40s ; true", func(s *api.JobSpec) { s.Exclusive = true })
				replaced := false
				for began := time.Now(); w.log.Latest().JobByUID("ua").Stage != muster.JobEnded; {
					time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
					w.resume()
					calm := time.Since(began) > 10*time.Minute
					for _, n := range w.all() {
						switch k := rnd.IntN(100); {
						case k < 4 && !calm:
							n.Cut(true)
						case k < 25:
							n.Cut(false)
						}
					}
					if rnd.IntN(40) == 0 && !calm {
						w.stop()
						time.Sleep(time.Duration(rnd.IntN(20000)) * time.Millisecond)
						w.restart()
					}
					w.log.Latest().Allocs("", func(a *state.Alloc) bool { replaced = replaced || a.Outcome == muster.OutcomeLost; return true })
					if time.Since(began) > time.Hour {
						w.t.Fatalf("not done\n%s", w.dump())
					}
				}
				// A member that lost five nodes has failed; that is another matter.
				for i := range members {
					if m := w.log.Latest().Member("ua", i); m.Status != muster.MemberSucceeded && len(m.FailedNodes) < 5 {
						t.Errorf("%+v", m)
					}
				}
				w.startedOnce()
				t.Logf("given up and placed again: %v", replaced)
			})
		})
	}
}

// What is exclusive goes on through the restart of a server, and through lost contact shorter than the fence; longer than that ends it, and it
// is tried again, without its node being to blame.
func TestExclusiveSurvivesAServerRestart(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 5m ; true", func(s *api.JobSpec) { s.Exclusive = true })
		w.until("running", time.Second, running("a", 1))
		w.stop()
		time.Sleep(15 * time.Second)
		w.restart()
		time.Sleep(time.Minute)
		n, row := w.only()
		n.Cut(true)
		time.Sleep(15 * time.Second)
		n.Cut(false)
		time.Sleep(time.Minute)
		if a := w.log.Latest().Alloc("ua-0-1"); !a.Live() || len(n.Live()) != 1 {
			t.Fatalf("%+v", a)
		}
		w.stop()
		time.Sleep(40 * time.Second)
		w.restart()
		w.until("tried again", 10*time.Second, func(s *state.Snapshot) bool {
			a := s.Alloc("ua-0-2")
			return a != nil && a.Status == muster.AllocRunning
		})
		a, m := w.log.Latest().Alloc("ua-0-1"), w.log.Latest().Member("ua", 0)
		if a.Failure == nil || a.Failure.Reason != muster.ReasonUnguarded || m.UserFailures != 0 || len(m.FailedNodes) != 0 {
			t.Errorf("%+v, %+v", a.Failure, m)
		}
		if n := w.log.Latest().Node(row.ID); n.Health != muster.NodeGood || len(n.Failures) != 0 {
			t.Errorf("its node is blamed: %s %v", n.Health, n.Failures)
		}
		w.until("the job's end", 10*time.Minute, ended("a", muster.JobSucceeded))
		w.startedOnce()
	})
}

// A drain with a deadline: what still runs then is stopped and runs elsewhere, without using up an attempt, and the node goes. It survives
// the restart of the server, and of the agent.
func TestDrainWithADeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 1h ; true")
		w.until("running", time.Second, running("a", 1))
		n, row := w.only()
		w.must(&state.NodeIntentSet{ID: row.ID, Intent: muster.NodeDrain, Who: "ada", Reason: "new disks", Until: muster.At(time.Now().Add(10 * time.Minute))})
		time.Sleep(5 * time.Minute)
		w.restart()
		n.Kill()
		time.Sleep(4*time.Minute + 50*time.Second)
		if a := w.log.Latest().Alloc("ua-0-1"); !a.Live() || a.Desired != muster.AllocRun {
			t.Fatalf("before the deadline: %+v", a)
		}
		w.until("elsewhere", 30*time.Second, func(s *state.Snapshot) bool {
			a := s.Alloc("ua-0-2")
			return a != nil && a.Status == muster.AllocRunning && a.Node != row.ID
		})
		a, m := w.log.Latest().Alloc("ua-0-1"), w.log.Latest().Member("ua", 0)
		if a.Outcome != muster.OutcomeStopped || !strings.Contains(a.StopCause, "deadline of its drain") || m.UserFailures != 0 || len(m.FailedNodes) != 0 {
			t.Errorf("%s (%s): %+v", a.Outcome, a.StopCause, m)
		}
		w.until("gone", 10*time.Minute, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
		w.startedOnce()
	})
}

func TestNodeLostAndBackWithinTheGrace(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 40s ; print done ; true")
		w.until("running", time.Second, running("a", 1))
		n, row := w.only()
		n.Cut(true)
		w.until("lost", 3*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Health == muster.NodeLost })
		time.Sleep(20 * time.Second)
		n.Cut(false)
		w.until("good", 3*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Schedulable() })
		w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
		if len(w.goneNodes()) > 0 {
			t.Error("it was replaced")
		}
		w.startedOnce()
	})
}

func TestHostReturnsAfterItsNodeIsGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 10m ; true")
		w.until("running", time.Second, running("a", 1))
		_, row := w.only()
		w.cloud.Vanish(row.Instance)
		w.until("gone", 5*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
		// The machine was only out of the provider's sight, and comes back after its node is forgotten.
		w.must(&state.NodesPurged{IDs: []muster.NodeID{row.ID}})
		w.cloud.Add(cloud.Tags{Owner: "c1", Token: row.Token, Node: row.ID, Pool: "p"}, "small")
		w.until("adopted", 2*time.Minute, func(s *state.Snapshot) bool { n := s.Node(row.ID); return n != nil && n.Joined != 0 })
		if n := w.log.Latest().Node(row.ID); n.Served != 0 || n.Launched == row.Launched {
			t.Errorf("it is not a new node: %+v", n)
		}
	})
}

// What a gone node leaves in the cloud is destroyed.
func TestInstanceOfAGoneNodeIsDestroyed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "true")
		w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
		w.until("no node", time.Minute, noNodes)
		var token muster.Token
		w.log.Latest().GoneNodes(func(n *state.Node) bool { token = n.Token; return false })
		w.cloud.Add(cloud.Tags{Owner: "c1", Token: token, Node: "x", Pool: "p"}, "small")
		time.Sleep(2 * time.Minute)
		if left := w.cloud.Instances(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

func TestBreakerLimitsDestroysOfLostNodes(t *testing.T) {
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
		time.Sleep(9 * time.Minute)
		if gone := len(w.goneNodes()); gone != all/5 {
			t.Errorf("%d of %d nodes were destroyed because contact was lost, want a fifth", gone, all)
		}
	})
}

// The output of an ended allocation keeps its idle node for ten minutes at most.
func TestIdleNodeWaitsForItsOutput(t *testing.T) {
	for _, back := range []bool{true, false} {
		name := map[bool]string{true: "the blob store comes back", false: "it does not"}[back]
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.blobs.Fail(errors.New("no blob store"))
				w.start()
				w.submit("a", 1, 1, "flood 100000 ; true")
				w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
				began := time.Now()
				time.Sleep(5 * time.Minute)
				if w.log.Latest().LiveNodeCount() != 1 {
					t.Fatal("the node did not wait for its output")
				}
				if back {
					w.blobs.Fail(nil)
				}
				w.until("no node", 10*time.Minute, noNodes)
				a := w.log.Latest().Alloc("ua-0-1")
				switch {
				case back && (a.Output.Stage != state.OutputComplete || a.Output.Stdout.Size != 100000):
					t.Errorf("output: %+v", a.Output)
				case !back && (a.Output.Stage != state.OutputIncomplete || a.Output.Why == ""):
					t.Errorf("output: %+v", a.Output)
				case !back && time.Since(began) > 11*time.Minute:
					t.Errorf("it took %s", time.Since(began))
				}
			})
		})
	}
}

func TestJobThatFitsNoOfferingFails(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 99, "true")
		w.submit("b", 1, 1, "true")
		w.until("a fails", time.Second, ended("a", muster.JobFailed))
		if j := w.log.Latest().JobByUID("ua"); !strings.Contains(j.Reason, "99 cpu") || !strings.Contains(j.Reason, "large, has 16 cpu") {
			t.Errorf("reason: %s", j.Reason)
		}
		w.until("b's end", time.Second, ended("b", muster.JobSucceeded))
	})
}

func TestNodeFailuresMoveOn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "break")
		w.until("a fails", time.Minute, ended("a", muster.JobFailed))
		m := w.log.Latest().Member("ua", 0)
		if len(m.FailedNodes) != 5 {
			t.Errorf("failed on %v", m.FailedNodes)
		}
		w.submit("b", 1, 2, "false", func(s *api.JobSpec) { s.Restart.Attempts, s.Restart.On = 3, []string{"1"} })
		w.until("b fails", time.Minute, ended("b", muster.JobFailed))
		if m := w.log.Latest().Member("ub", 0); m.UserFailures != 3 || !strings.Contains(m.Reason, "exited with code 1") {
			t.Errorf("member: %+v", m)
		}
	})
}

func TestLeaderGoesWhileProposing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.log.Fail(func(state.Fact) error { return muster.Faultf(muster.FaultUnavailable, "no leader") })
		time.Sleep(5 * time.Second)
		w.log.Fail(nil)
		w.submit("a", 4, 2, "true")
		w.until("the job's end", 5*time.Second, ended("a", muster.JobSucceeded))
		w.log.Fail(func(f state.Fact) error {
			if _, ok := f.(*state.NodeTerminating); ok {
				return muster.Faultf(muster.FaultDiskLow, "the disk is nearly full")
			}
			return nil
		})
		time.Sleep(30 * time.Second)
		w.log.Fail(nil)
		w.until("no node", 5*time.Second, noNodes)
	})
}

// What the first list shows is used before anything is launched beside it.
func TestOrphanIsUsed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud.Add(cloud.Tags{Owner: "c1", Token: "told", Node: "old", Pool: "p"}, "small")
		w.must(&state.PoolsSet{Pools: []state.Pool{w.pool}})
		w.must(&state.OfferingsSeen{Provider: "fake", Offerings: []muster.Offering{offering("large", 16, 12), offering("small", 2, 1)}})
		w.submit("a", 2, 1, "sleep 1s ; true")
		w.start()
		w.until("the job's end", 3*time.Second, ended("a", muster.JobSucceeded))
		if c := w.cloud.Calls(); c.Intents != 0 {
			t.Errorf("%d instances were asked for beside the one that was there", c.Intents)
		}
		if n := w.log.Latest().Node("old"); n.Served != 2 {
			t.Errorf("node: %+v", n)
		}
	})
}

// A provider that cannot be listed does not keep work from being done.
func TestListFails(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud.SetFaults(fake.Faults{List: func() error {
			return &muster.Fault{Kind: muster.FaultRateLimited, Message: "slow down", After: 20 * time.Second}
		}})
		w.start()
		w.submit("a", 2, 1, "sleep 1s ; true")
		w.until("the job's end", 3*time.Second, ended("a", muster.JobSucceeded))
		time.Sleep(70 * time.Second)
		if c := w.cloud.Calls(); c.List > 5 {
			t.Errorf("%d lists while it asked for 20 s between them", c.List)
		}
		// It is told for as long as it lasts, from its beginning.
		if b := w.fleet.Blind("fake"); b.Err == nil || !strings.Contains(b.Err.Error(), "slow down") || time.Since(b.Since.Std()) < 70*time.Second {
			t.Errorf("%+v", b)
		}
		w.cloud.SetFaults(fake.Faults{})
		w.until("no node", time.Minute, noNodes)
		if b := w.fleet.Blind("fake"); b != (fleet.Blind{}) {
			t.Errorf("%+v", b)
		}
	})
}

func TestUnknownNodeGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 1, "sleep 1s ; true")
		_, _, err := w.log.Propose(context.Background(), &state.NodeGone{ID: "nobody"})
		if !muster.IsKind(err, muster.FaultNotFound) {
			t.Errorf("error %v", err)
		}
		w.until("the job's end", 3*time.Second, ended("a", muster.JobSucceeded))
	})
}
