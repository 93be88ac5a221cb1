package fleet_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// sell remakes the cloud with other offerings and a script.
func (w *world) sell(script string, offers ...muster.Offering) {
	w.t.Helper()
	w.offers = offers
	w.cloud = fake.New(fake.Config{Offerings: offers, Seed: 1, Created: w.created, Destroyed: w.destroyed})
	w.script(script)
}

func (w *world) script(script string) {
	w.t.Helper()
	if err := w.cloud.Play(script); err != nil {
		w.t.Fatal(err)
	}
}

// of is an offering of a quota family, with memory and a kind that jobs can ask for.
func of(family, name string, cores int, price float64, memory muster.Bytes) muster.Offering {
	o := offering(name, cores, price)
	o.Family, o.Capacity.Memory, o.Attributes = family, memory, map[string]string{"kind": name}
	return o
}

func spot(o muster.Offering) muster.Offering {
	o.Market, o.Price = muster.Spot, o.Price/4
	return o
}

func memory(b muster.Bytes) func(*api.JobSpec) {
	return func(s *api.JobSpec) { s.Resources.Memory = api.Size(b) }
}

func kind(name string) func(*api.JobSpec) {
	return func(s *api.JobSpec) {
		s.Constraints = []api.ConstraintSpec{{Attribute: "kind", Op: muster.OpEqual, Value: name}}
	}
}

// nodeOf is the node that the only attempt of a job's member runs on.
func (w *world) nodeOf(job string, index int) muster.NodeID {
	w.t.Helper()
	a := w.log.Latest().Alloc(muster.AllocID(fmt.Sprintf("u%s-%d-1", job, index)))
	if a == nil {
		w.t.Fatalf("member %d of job %s was never placed\n%s", index, job, w.dump())
	}
	return a.Node
}

func (w *world) hold(id muster.NodeID) {
	w.t.Helper()
	w.must(&state.NodeIntentSet{ID: id, Intent: muster.NodeHold, Reason: "to look at"})
}

func TestDestroyIsRateLimited(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
		open := time.Now().Add(40 * time.Second)
		early := 0
		w.cloud.SetFaults(fake.Faults{Destroy: func(muster.InstanceID) error {
			if rest := time.Until(open); rest > 0 {
				early++
				return &muster.Fault{Kind: muster.FaultRateLimited, Message: "slow down", After: rest}
			}
			return nil
		}})
		w.until("no node", time.Until(open)+2*time.Second, noNodes)
		if early != 1 || time.Now().Before(open) {
			t.Errorf("%d destroys before T, gone %s after it", early, time.Since(open))
		}
	})
}

func TestQuotaOfAFamily(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sell("create: quota max=3 family=c",
			of("c", "c2", 2, 1, 4*muster.GiB), of("c", "c8", 8, 3.9, 4*muster.GiB), of("m", "m2", 2, 3, 64*muster.GiB))
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("a", 3, 2, "sleep 1s ; true")
		w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
		for i := range 3 {
			w.hold(w.nodeOf("a", i))
		}
		asked := w.cloud.Calls().Intents
		w.submit("b", 1, 8, "sleep 1s ; true")
		w.submit("m", 1, 1, "sleep 1s ; true", memory(32*muster.GiB))
		w.until("the other family goes on", 3*time.Second, ended("m", muster.JobSucceeded))
		time.Sleep(20 * time.Second)
		if more := w.cloud.Calls().Intents - asked; more != 2 {
			t.Errorf("%d intents: one that shows the quota and one of the other family are enough", more)
		}
		if d := w.fleet.Decisions(); len(d.Waits) != 1 || !strings.Contains(d.Waits[0].Reason, "the account may have 3, and has 3") {
			t.Errorf("what waits does not say why: %+v", d.Waits)
		}
		// One is let go of: nothing waiting fits it, so it gives way at once.
		w.must(&state.NodeIntentSet{ID: w.nodeOf("a", 1), Intent: muster.NodeRun})
		w.until("b's end", 5*time.Second, ended("b", muster.JobSucceeded))
		snap := w.log.Latest()
		if n := snap.Node(w.nodeOf("a", 1)); n.Stage != muster.NodeGone {
			t.Errorf("the node that gave way is %s", n.Stage)
		}
		for _, i := range []int{0, 2} {
			if n := snap.Node(w.nodeOf("a", i)); n.Stage != muster.NodeServing || n.Intent != muster.NodeHold {
				t.Errorf("a held node is %s, %s", n.Stage, n.Intent)
			}
		}
	})
}

func TestCapacityOfSpotAndOnDemandApart(t *testing.T) {
	inBubble(t, func(w *world) {
		small := of("", "small", 2, 1, 4*muster.GiB)
		w.sell("create: capacity type=small market=spot for=1m", small, spot(small))
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
		if in := w.cloud.Instances(); len(in) != 1 || in[0].Market != muster.OnDemand {
			t.Errorf("instances: %v", in)
		}
		// For its time, and no longer.
		time.Sleep(2 * time.Minute)
		w.submit("b", 1, 2, "sleep 1s ; true")
		w.until("b's end", 5*time.Second, ended("b", muster.JobSucceeded))
		if in := w.cloud.Instances(); len(in) != 1 || in[0].Market != muster.Spot {
			t.Errorf("afterwards: %v", in)
		}
	})
}

func TestCapacityOfAGroup(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sell("create: capacity family=g", of("g", "g2", 2, 1, 4*muster.GiB), of("g", "g4", 4, 2.1, 8*muster.GiB), of("h", "h2", 2, 5, 4*muster.GiB))
		w.start()
		w.submit("a", 1, 2, "true")
		w.until("a's end", 5*time.Second, ended("a", muster.JobSucceeded))
		if in, asked := w.cloud.Instances(), w.cloud.Calls().Intents; len(in) != 1 || in[0].Offering != "h2" || asked != 2 {
			t.Errorf("instances %v of %d intents: one no is enough for the whole group", in, asked)
		}
	})
}

func TestCapacityIsNotAskedForEachJob(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sell("", of("", "t", 2, 1, 4*muster.GiB), of("", "o", 2, 1, 4*muster.GiB))
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("first", 1, 2, "true", kind("t"))
		w.until("one node of the type", 5*time.Second, ended("first", muster.JobSucceeded))
		w.script("create: capacity type=t")
		asked := w.cloud.Calls().Intents
		for i, k := range []string{"t", "t", "t", "o"} {
			p := 40 - 10*i
			w.submit(fmt.Sprintf("p%d", 4-i), 1, 2, "sleep 20s ; true", kind(k), func(s *api.JobSpec) { s.Priority = &p })
		}
		w.until("p4 and p1 run", 3*time.Second, func(s *state.Snapshot) bool { return running("p4", 1)(s) && running("p1", 1)(s) })
		time.Sleep(10 * time.Second)
		if !running("p3", 0)(w.log.Latest()) || !running("p2", 0)(w.log.Latest()) {
			t.Error("what has no node runs")
		}
		// Those that were asked for at once are refused at once; nothing is asked for after that but p1's node.
		if more := w.cloud.Calls().Intents - asked; more > 3 || len(w.cloud.Instances()) != 2 {
			t.Errorf("%d intents, instances %v", more, w.cloud.Instances())
		}
		w.until("the end, on the one node", 2*time.Minute, func(s *state.Snapshot) bool {
			return ended("p3", muster.JobSucceeded)(s) && ended("p2", muster.JobSucceeded)(s)
		})
	})
}

func TestTwoFleets(t *testing.T) {
	inBubble(t, func(w *world) {
		// Another cluster, with its own log, in the same account.
		other := newWorld(t, "c2")
		defer other.end()
		whose := func(in cloud.Instance) *world {
			if in.Tags.Owner == "c2" {
				return other
			}
			return w
		}
		w.cloud = fake.New(fake.Config{Offerings: w.offers, Seed: 1, Created: func(in cloud.Instance) { whose(in).created(in) }, Destroyed: func(in cloud.Instance) { whose(in).destroyed(in) }})
		other.cloud = w.cloud
		w.script("list: fail 20%\ndestroy: fail 20%")
		w.start()
		other.start()
		for i := range 5 {
			w.submit(fmt.Sprintf("a%d", i), 3, 2, "sleep 5s ; true")
			other.submit(fmt.Sprintf("a%d", i), 3, 2, "sleep 5s ; true")
			time.Sleep(7 * time.Second)
			w.restart()
		}
		w.until("no node", 2*time.Minute, noNodes)
		other.until("no node", 2*time.Minute, noNodes)
		for _, x := range []*world{w, other} {
			for i := range 5 {
				if j := x.log.Latest().JobByUID(muster.JobUID(fmt.Sprintf("ua%d", i))); j.Result != muster.JobSucceeded {
					t.Errorf("%s of owner %q: %s %s", j.Key, x.owner, j.Result, j.Reason)
				}
			}
			x.startedOnce()
			if s := x.fleet.Stats(); s.Adopted != 0 || s.Strays != 0 {
				t.Errorf("owner %q took what is not its own: %+v", x.owner, s)
			}
		}
	})
}

func TestOneOutcomeForEachBoot(t *testing.T) {
	inBubble(t, func(w *world) {
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.script("instance: noboot n%1=0 from=1s")
		w.submit("a", 1, 2, "true")
		w.until("one in service", time.Second, ended("a", muster.JobSucceeded))
		time.Sleep(time.Second)
		boot := func(job string) muster.NodeID {
			w.submit(job, 1, 16, "true")
			var id muster.NodeID
			// After one that failed the next is launched later, see D18.
			w.until("booting", time.Minute, func(s *state.Snapshot) bool {
				s.LiveNodes(func(n *state.Node) bool {
					if n.Stage == muster.NodeBooting {
						id = n.ID
					}
					return true
				})
				return id != ""
			})
			w.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: job}})
			return id
		}
		want := func(boots map[fleet.BootOutcome]uint64) {
			t.Helper()
			synctest.Wait()
			if got := w.fleet.Stats().Boots; !maps.Equal(got, boots) {
				t.Errorf("boots %v, want %v", got, boots)
			}
		}
		gone := func(id muster.NodeID, within time.Duration) {
			t.Helper()
			w.until("gone", within, func(s *state.Snapshot) bool { return s.Node(id).Stage == muster.NodeGone })
		}
		want(map[fleet.BootOutcome]uint64{"success": 1, "failure": 0, "aborted": 0, "disappeared": 0})
		drained := boot("b")
		w.must(&state.NodeIntentSet{ID: drained, Intent: muster.NodeDrain})
		gone(drained, 2*time.Second)
		want(map[fleet.BootOutcome]uint64{"success": 1, "failure": 0, "aborted": 1, "disappeared": 0})
		lost := boot("c")
		w.cloud.Vanish(w.log.Latest().Node(lost).Instance)
		gone(lost, 90*time.Second)
		broken := boot("d")
		w.must(&state.NodeHealthChanged{ID: broken, Health: muster.NodeBroken, Reason: "no disk"})
		gone(broken, 2*time.Second)
		mute := boot("e")
		gone(mute, 70*time.Second)
		s := w.fleet.Stats().Boots
		if s["success"] != 1 || s["aborted"] != 1 || s["failure"]+s["disappeared"] != 3 || s["failure"] < 2 {
			t.Errorf("boots %v: one success, one aborted, one gone, two failures", s)
		}
		// Said once, however often leaders change and lists are read.
		w.restart()
		time.Sleep(3 * time.Minute)
		want(map[fleet.BootOutcome]uint64{"success": 0, "failure": 0, "aborted": 0, "disappeared": 0})
	})
}

// A launch of which nobody can say what became is given up; its instance is ended when it is seen.
func TestLaunchDeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		time.Sleep(time.Second) // the first list was good
		w.script("create: lost\nlist: fail transient")
		w.submit("a", 1, 2, "true")
		w.until("given up", 11*time.Minute, func(s *state.Snapshot) bool {
			up := false
			s.LiveNodes(func(n *state.Node) bool { up = up || n.Stage == muster.NodeTerminating; return true })
			return up
		})
		w.script("")
		w.until("the job's end", 3*time.Minute, ended("a", muster.JobSucceeded))
		w.until("no node", 3*time.Minute, noNodes)
		if in := w.cloud.Instances(); len(in) > 0 {
			t.Errorf("left: %v", in)
		}
	})
}

func TestDestroyNeverConfirmed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 1, "true")
		w.until("the job's end", time.Second, ended("a", muster.JobSucceeded))
		w.script("destroy: fail")
		time.Sleep(10 * time.Minute)
		if s := w.fleet.Stats(); s.Overdue != 0 || s.DestroyFaults < 5 {
			t.Errorf("after ten minutes: %+v", s)
		}
		time.Sleep(10 * time.Minute)
		if s := w.fleet.Stats(); s.Overdue != 1 || w.log.Latest().LiveNodeCount() != 1 {
			t.Errorf("after twenty minutes: %+v", s)
		}
		w.script("")
		w.until("no node", 2*time.Minute, noNodes)
		time.Sleep(time.Minute)
		if s := w.fleet.Stats(); s.Overdue != 0 {
			t.Errorf("afterwards: %+v", s)
		}
	})
}

func TestHoldOverridesEverything(t *testing.T) {
	inBubble(t, func(w *world) {
		w.pool.Max = 4
		w.start()
		for i := range 4 {
			w.submit(fmt.Sprintf("a%d", i), 1, 2, []string{"true", "true", "hang", "sleep 30s ; true"}[i])
		}
		w.until("running", 2*time.Second, func(s *state.Snapshot) bool { return running("a2", 1)(s) && running("a3", 1)(s) })
		time.Sleep(100 * time.Millisecond)
		var all []muster.NodeID
		w.log.Latest().LiveNodes(func(n *state.Node) bool { all = append(all, n.ID); w.hold(n.ID); return true })
		served := map[muster.NodeID]uint64{}
		for _, id := range all {
			served[id] = w.log.Latest().Node(id).Served
		}
		// One says that it is broken, one has work that cannot be killed; the pool is full, and work waits that none fits.
		w.must(&state.NodeHealthChanged{ID: w.nodeOf("a3", 0), Health: muster.NodeBroken, Reason: "no disk"})
		w.node(w.nodeOf("a2", 0)).Stick()
		w.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "a2"}})
		w.submit("big", 1, 16, "true")
		w.submit("more", 8, 2, "true")
		if len(all) < w.pool.Max {
			w.until("the pool is full", time.Minute, func(s *state.Snapshot) bool { return s.LiveNodeCount() == w.pool.Max })
		}
		time.Sleep(time.Hour)
		w.restart()
		time.Sleep(time.Hour)
		for _, id := range all {
			if n := w.log.Latest().Node(id); n.Stage != muster.NodeServing || n.Served != served[id] {
				t.Errorf("held node %s is %s (%s) and was given %d allocations", id, n.Stage, n.StageReason, n.Served-served[id])
			}
		}
	})
}

func TestWorkThatCannotBeEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 1, "hang")
		w.submit("b", 1, 1, "sleep 2m ; true")
		w.until("running", time.Second, func(s *state.Snapshot) bool { return running("a", 1)(s) && running("b", 1)(s) })
		n, row := w.only()
		w.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "a"}})
		// It ends: nothing happens to the node.
		w.until("a's end", 15*time.Second, func(s *state.Snapshot) bool { return s.JobByUID("ua").Stage == muster.JobEnded })
		w.submit("c", 1, 1, "hang")
		w.until("running", time.Second, running("c", 1))
		n.Stick() // before the stop, which otherwise may have its effect first
		began := time.Now()
		w.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "c"}})
		w.until("drained", 75*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeDraining })
		if took := time.Since(began); took < 70*time.Second || !strings.Contains(w.log.Latest().Node(row.ID).StageReason, "allocation uc-0-1 does not end") {
			t.Errorf("drained after %s: %s", took, w.log.Latest().Node(row.ID).StageReason)
		}
		if a := w.log.Latest().Alloc("ub-0-1"); !a.Live() {
			t.Errorf("what else runs there was ended: %+v", a)
		}
	})
}

func TestStuckWorkAloneOnItsNode(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 5s ; true", func(s *api.JobSpec) { s.Timeout = api.Duration(20 * time.Second) })
		w.until("running", time.Second, running("a", 1))
		n, row := w.only()
		n.Stick()
		// The limit, the time from TERM to KILL and the pool's grace: then the machine goes, and its work is lost.
		w.until("gone", 20*time.Second+10*time.Second+60*time.Second+5*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
		if a := w.log.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeLost {
			t.Errorf("its work: %+v", a)
		}
		w.until("a's end, elsewhere", 10*time.Second, ended("a", muster.JobSucceeded))
		w.startedOnce()
	})
}

func TestNodeBrokenWhileBusy(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "sleep 40s ; true")
		w.until("running", time.Second, running("a", 1))
		_, row := w.only()
		w.must(&state.NodeHealthChanged{ID: row.ID, Health: muster.NodeBroken, Reason: "the disk is broken"})
		w.until("drained", time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeDraining })
		w.submit("b", 1, 2, "true")
		w.until("b's end", 2*time.Second, ended("b", muster.JobSucceeded))
		if w.nodeOf("b", 0) == row.ID {
			t.Error("a broken node was given work")
		}
		w.until("a's end", 45*time.Second, ended("a", muster.JobSucceeded))
		if m := w.log.Latest().Member("ua", 0); m.Attempt != 1 {
			t.Errorf("its work was disturbed: %+v", m)
		}
		w.until("gone", 5*time.Second, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeGone })
		if b := w.fleet.Stats().Boots; b["failure"] != 0 || b["success"] != 2 {
			t.Errorf("boots %v", b)
		}
	})
}

func TestSpotNotice(t *testing.T) {
	inBubble(t, func(w *world) {
		small := of("", "small", 2, 1, 4*muster.GiB)
		w.sell("", small, spot(small))
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("a", 2, 2, "sleep 5m ; true")
		w.submit("short", 1, 2, "sleep 40s ; true")
		w.submit("idle", 1, 2, "true")
		w.until("running", 2*time.Second, func(s *state.Snapshot) bool {
			return running("a", 2)(s) && running("short", 1)(s) && ended("idle", muster.JobSucceeded)(s)
		})
		node := func(job string) *state.Node { return w.log.Latest().Node(w.nodeOf(job, 0)) }
		busy, short, idle := node("a"), node("short"), node("idle")
		began := time.Now()
		for _, n := range []*state.Node{busy, short, idle} {
			w.cloud.Notice(n.Instance, 2*time.Minute)
		}
		w.until("drained at once", 6*time.Second, func(s *state.Snapshot) bool {
			return s.Node(busy.ID).Stage == muster.NodeDraining && s.Node(short.ID).Stage == muster.NodeDraining && !s.Node(idle.ID).Schedulable()
		})
		if r := node("a").StageReason; !strings.Contains(r, "spot notice") {
			t.Errorf("reason: %s", r)
		}
		w.until("its work is placed elsewhere", time.Until(began.Add(2*time.Minute)), func(s *state.Snapshot) bool {
			a := s.Alloc("ua-0-2")
			return a != nil && a.Status == muster.AllocRunning && a.Node != busy.ID
		})
		t.Logf("its work runs elsewhere %s after the notice", time.Since(began))
		if !ended("short", muster.JobSucceeded)(w.log.Latest()) || w.log.Latest().Member("ushort", 0).Attempt != 1 {
			t.Error("what could have ended in time was not let")
		}
		if a := w.log.Latest().Alloc("ua-1-1"); !a.Live() {
			t.Error("work on a node without a notice was moved")
		}
		w.until("a's end", 10*time.Minute, ended("a", muster.JobSucceeded))
		if s := w.fleet.Stats(); s.Notices != 3 || s.Disappeared[muster.NodeServing]+s.Disappeared[muster.NodeDraining] != 0 {
			t.Errorf("%+v", s)
		}
		w.startedOnce()
	})
}

// What a node's agent reads from its cloud's metadata service counts as what the provider says, and for
// nodes of every market.
func TestNoticeOfAnAgent(t *testing.T) {
	inBubble(t, func(w *world) {
		small := of("", "small", 2, 1, 4*muster.GiB)
		w.sell("", small)
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("a", 2, 2, "sleep 5m ; true")
		w.until("running", 2*time.Second, running("a", 2))
		taken, atRisk := w.nodeOf("a", 0), w.nodeOf("a", 1)
		at := muster.At(time.Now().Add(2 * time.Minute))
		w.node(atRisk).Says(wire.Condition{Notice: wire.Notice{Kind: wire.NoticeAtRisk, At: muster.At(time.Now())}})
		w.node(taken).Says(wire.Condition{Notice: wire.Notice{Kind: wire.NoticeTaken, At: at}})
		// At once: no poll of a provider lies between.
		w.until("drained", time.Second, func(s *state.Snapshot) bool { return s.Node(taken).Stage == muster.NodeDraining })
		if r := w.log.Latest().Node(taken).StageReason; !strings.Contains(r, "spot notice") {
			t.Errorf("reason: %s", r)
		}
		w.until("its work is placed elsewhere", 2*time.Minute, func(s *state.Snapshot) bool {
			a := s.Alloc("ua-0-2")
			return a != nil && a.Status == muster.AllocRunning && a.Node != taken
		})
		w.until("its machine is destroyed", 2*time.Minute, func(s *state.Snapshot) bool {
			n := s.Node(taken)
			return n == nil || n.Stage == muster.NodeGone
		})
		if late := muster.At(time.Now()).Sub(at); late > 0 {
			t.Errorf("destroyed %s after the cloud was to take it", late)
		}
		s := w.log.Latest()
		if n := s.Node(atRisk); n.Stage != muster.NodeServing || !s.Alloc("ua-1-1").Live() {
			t.Errorf("a node at risk was drained: %+v", n)
		}
		if s := w.fleet.Stats(); s.Notices != 1 {
			t.Errorf("%d notices", s.Notices)
		}
		w.until("a's end", 10*time.Minute, ended("a", muster.JobSucceeded))
	})
}

// A hold is in the tags of the instance: it outlives the log.
func TestHoldOutlivesTheLog(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "true")
		w.until("a's end", time.Second, ended("a", muster.JobSucceeded))
		_, row := w.only()
		w.hold(row.ID)
		tags := func() cloud.Tags { return w.cloud.Instances()[0].Tags }
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := tags(); got.Intent != muster.NodeHold || got.Node != row.ID || got.Token != row.Token {
			t.Errorf("tags %+v", got)
		}
		w.stop()
		var err error
		if w.log, err = linktest.NewLedger("c1"); err != nil {
			t.Fatal(err)
		}
		w.start()
		time.Sleep(time.Hour)
		n := w.log.Latest().Node(row.ID)
		if n == nil || n.Intent != muster.NodeHold || n.Stage == muster.NodeGone {
			t.Fatalf("node: %+v", n)
		}
		w.must(&state.NodeIntentSet{ID: row.ID, Intent: muster.NodeRun})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if in := w.cloud.Instances(); len(in) > 0 && in[0].Tags.Intent != "" {
			t.Errorf("tags %+v", in[0].Tags)
		}
		w.until("no node", time.Minute, noNodes)
	})
}

// Two instances for one token: one is used, the other is found and destroyed.
func TestTwoInstancesForOneToken(t *testing.T) {
	inBubble(t, func(w *world) {
		w.script("create: double")
		w.start()
		w.submit("a", 3, 2, "sleep 5m ; true")
		w.until("running", 2*time.Second, running("a", 3))
		time.Sleep(2 * time.Minute)
		if in := w.cloud.Instances(); len(in) != 3 {
			t.Errorf("%d instances for three nodes", len(in))
		}
		w.until("a's end", 5*time.Minute, ended("a", muster.JobSucceeded))
		w.startedOnce()
		w.until("no node", time.Minute, noNodes)
		if in := w.cloud.Instances(); len(in) > 0 {
			t.Errorf("left: %v", in)
		}
	})
}

// What is asked of a provider is counted from zero, by result.
func TestOperationsAreCounted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.script("create: capacity once")
		w.start()
		count := func(op cloud.Op, result muster.FaultKind) uint64 {
			t.Helper()
			for _, o := range w.fleet.Stats().Operations {
				if o.Provider == "fake" && o.Op == op && o.Result == result {
					return o.N
				}
			}
			t.Errorf("no series %s %s", op, result)
			return 0
		}
		if count(cloud.OpCreate, muster.FaultCapacity)+count(cloud.OpDestroy, cloud.Succeeded)+count(cloud.OpTags, muster.FaultTransient) != 0 {
			t.Error("counted before anything was asked")
		}
		w.submit("a", 1, 2, "true")
		w.until("a's end", time.Minute, ended("a", muster.JobSucceeded))
		w.until("no node", time.Minute, noNodes)
		synctest.Wait()
		if c, d, l := count(cloud.OpCreate, muster.FaultCapacity), count(cloud.OpDestroy, cloud.Succeeded), count(cloud.OpList, cloud.Succeeded); c != 1 || d != 1 || l == 0 {
			t.Errorf("%d creates without capacity, %d destroys, %d lists", c, d, l)
		}
	})
}

// The end of a quota is not that of a rate limit which was told meanwhile, although both are of the whole account.
func TestQuotaAndRateLimitAreApart(t *testing.T) {
	inBubble(t, func(w *world) {
		w.script("create: quota max=1\ncreate: rate gap=1ms tell")
		w.start()
		for i := range 12 {
			w.submit(fmt.Sprintf("a%d", i), 1, 2, "sleep 1h ; true")
		}
		w.until("one runs", time.Second, func(s *state.Snapshot) bool { return s.LiveAllocCount() == 1 })
		time.Sleep(time.Second)
		asked := w.cloud.Calls().Intents
		time.Sleep(20 * time.Second)
		if more := w.cloud.Calls().Intents - asked; more != 0 {
			t.Errorf("%d intents at quota", more)
		}
		_, row := w.only()
		w.cloud.Vanish(row.Instance)
		w.until("another runs", 5*time.Second, func(s *state.Snapshot) bool {
			return s.LiveAllocCount() == 1 && s.Node(row.ID).Stage == muster.NodeGone
		})
	})
}

// BenchmarkSixtyFourWanted is 64 instances of an instant cloud, on the real clock: until all were asked for, and until work runs on all.
func BenchmarkSixtyFourWanted(b *testing.B) {
	var asked, runs time.Duration
	for b.Loop() {
		w := newWorld(b, "c1")
		w.log.After = nil // what it checks would be measured
		w.start()
		began := time.Now()
		w.submit("a", 64, 2, "sleep 1m ; true")
		w.until("all are asked for", time.Minute, func(*state.Snapshot) bool { return w.cloud.Calls().Intents == 64 })
		asked += time.Since(began)
		w.until("all run", time.Minute, running("a", 64))
		runs += time.Since(began)
		w.end()
	}
	b.ReportMetric(float64(asked.Milliseconds())/float64(b.N), "ms-asked")
	b.ReportMetric(float64(runs.Milliseconds())/float64(b.N), "ms-running")
}
