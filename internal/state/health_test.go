package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func (l *log) pools(p ...Pool) {
	l.t.Helper()
	l.must(&PoolsSet{p})
}

// fails runs a job on a node whose start fails for the node's reasons.
func (l *log) fails(name, node string) {
	l.t.Helper()
	l.submit(name, spec(1))
	if r := l.place(muster.JobUID("u"+name), 1, 0, 1, node); r.Placed != 1 {
		l.t.Fatalf("%s: %+v", name, r)
	}
	l.report(node, failed(muster.AllocID("u"+name+"-0-1"), muster.FailureNode, muster.ReasonNodeFault, 0))
	check(l.t, l.s.Latest())
}

// probed is what link says when a probe has passed.
func (l *log) probed(node string) {
	l.t.Helper()
	if l.node(node).Health == muster.NodeUnready {
		l.must(&NodeHealthChanged{ID: muster.NodeID(node), Health: muster.NodeGood})
	}
}

func (l *log) node(id string) *Node { return l.s.Latest().Node(muster.NodeID(id)) }

// dials is a node's three, as "serving good run".
func (l *log) dials(id string) string {
	n := l.node(id)
	return fmt.Sprintf("%s %s %s", n.Stage, n.Health, n.Intent)
}

func (l *log) want(id, dials string) {
	l.t.Helper()
	check(l.t, l.s.Latest())
	if got := l.dials(id); got != dials {
		l.t.Fatalf("node %s is %s (%s), want %s", id, got, l.node(id).HealthReason, dials)
	}
}

// Joined again while it is busy.
func TestJoinedAgainWhileBusy(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1))
	l.serve("n1", 1)
	l.place("ua", 1, 0, 1, "n1")
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocRunning})
	before := *l.node("n1")
	l.must(&NodeJoined{ID: "n1", Capacity: before.Capacity, Attributes: map[string]string{"os": "linux"}, Agent: "v2", Boot: "b2"})
	check(t, l.s.Latest())
	after := l.node("n1")
	if after.Used != before.Used || after.LiveAllocs != 1 || after.Joined != before.Joined || after.Agent != "v2" {
		t.Fatalf("%+v", after)
	}
	if a := l.s.Latest().Alloc("ua-0-1"); a.Status != muster.AllocRunning || a.Node != "n1" {
		t.Fatalf("%+v", a)
	}
}

// Gone, of a node that is not known.
func TestUnknownNodeGone(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 1)
	before := l.s.Latest()
	for _, f := range []Fact{&NodeGone{ID: "nope"}, &NodesPurged{IDs: []muster.NodeID{"nope"}}} {
		if _, err := l.do(f); err != nil && !muster.IsKind(err, muster.FaultNotFound) {
			t.Fatalf("%T: %v", f, err)
		}
	}
	check(t, l.s.Latest())
	if after := l.s.Latest(); after.Node("n1") != before.Node("n1") || after.Node("nope") != nil || after.LiveNodeCount() != 1 {
		t.Fatal("something happened")
	}
}

// Lost past the grace: nothing is left of it in any index, and the host comes back as another node.
func TestNodeLostPastTheGrace(t *testing.T) {
	l := newLog(t)
	l.pools(Pool{Name: "p", Static: true})
	l.serve("n1", 2)
	l.keyed("a", "A", "n1")
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeLost, Reason: "no contact"})
	l.must(&NodeTerminating{ID: "n1", Reason: "no contact for 1m0s", GiveUp: true, Unexplained: true})
	check(t, l.s.Latest())
	if a := l.s.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeLost || a.Failure.Class != muster.FailureNode {
		t.Fatalf("%+v", a)
	}
	if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberWaiting {
		t.Fatalf("%+v", m)
	}
	l.must(&NodeGone{ID: "n1"})
	check(t, l.s.Latest())
	s := l.s.Latest()
	if s.WarmCount() != 0 || s.LiveNodeCount() != 0 || s.Tally("p").Serving != 0 || s.LiveAllocCount() != 0 {
		t.Fatal("something of it is left")
	}
	l.must(&NodeLaunching{ID: "n2", Token: "t2", Pool: "p"})
	l.must(&NodeLaunched{ID: "n2", Instance: "i-n1"})
	l.want("n2", "booting unready run")
}

// A hold survives the end of the work, and the node joining again; run makes it assignable at once.
func TestHoldSurvivesWorkAndJoin(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1))
	l.serve("n1", 1)
	l.place("ua", 1, 0, 1, "n1")
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Reason: "disk swap", Who: "ann"})
	l.report("n1", succeeded("ua-0-1"))
	l.must(&NodeJoined{ID: "n1", Capacity: l.node("n1").Capacity, Boot: "b2"})
	l.want("n1", "serving good hold")
	l.submit("b", spec(1))
	if r := l.place("ub", 1, 0, 1, "n1"); r.Placed != 0 || !r.Refused[0].NodeFault {
		t.Fatalf("%+v", r)
	}
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeRun, Who: "ann"})
	if r := l.place("ub", 1, 0, 1, "n1"); r.Placed != 1 {
		t.Fatalf("%+v", r)
	}
	check(t, l.s.Latest())
}

// Three starts that fail for the node's reasons sideline it, and use up no attempt of the user's.
func TestFlakyNodeIsSidelined(t *testing.T) {
	l := newLog(t)
	l.pools(Pool{Name: "p", Sideline: muster.Time(time.Minute / time.Microsecond)})
	l.serve("n1", 8)
	l.serve("n2", 8)
	for i := 1; i <= 3; i++ {
		l.fails(fmt.Sprintf("j%d", i), "n1")
		if i < 3 {
			l.want("n1", "serving unready run")
			l.probed("n1")
			l.want("n1", "serving good run")
		}
	}
	l.want("n1", "serving flaky run")
	if n := l.node("n1"); !strings.Contains(n.HealthReason, "3 node failures") || n.SidelinedUntil.Sub(n.HealthSince) != time.Minute {
		t.Fatalf("%q until %d", n.HealthReason, n.SidelinedUntil)
	}
	for i := 1; i <= 3; i++ {
		uid := muster.JobUID(fmt.Sprintf("uj%d", i))
		if m := l.s.Latest().Member(uid, 0); m.Status != muster.MemberWaiting || m.UserFailures != 0 {
			t.Fatalf("%+v", m)
		}
		if r := l.place(uid, 1, 0, 2, "n2"); r.Placed != 1 {
			t.Fatalf("%+v", r)
		}
	}
	// After its time it is probed afresh, and begins with a clean slate.
	l.sleep(time.Minute)
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready, Reason: "to be probed"})
	l.probed("n1")
	l.want("n1", "serving good run")
	if n := l.node("n1"); len(n.Failures) != 0 || n.SidelinedUntil != 0 || len(n.Spells) != 1 {
		t.Fatalf("%+v", n)
	}
	l.fails("j4", "n1")
	l.want("n1", "serving unready run")
}

// A node whose image store is full of what others use is sound: its health does not change, and members move on. They are
// not failed by it, however many nodes are full, and try all again when none is left.
func TestFullNodeKeepsItsHealth(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	l.serve("n2", 8)
	s := spec(1)
	s.Restart.GiveUp = api.Duration(time.Hour)
	l.submit("a", s)
	for i := 1; i <= 2*maxFailedNodes; i++ {
		node := []string{"n2", "n1"}[i%2]
		if r := l.place("ua", 1, 0, i, node); r.Placed != 1 {
			t.Fatalf("attempt %d: %+v", i, r)
		}
		l.report(node, failed(muster.NewAllocID("ua", 0, i), muster.FailureNode, muster.ReasonNodeFull, 0))
		l.want("n1", "serving good run")
		l.want("n2", "serving good run")
		m := l.s.Latest().Member("ua", 0)
		if m.Status != muster.MemberWaiting || m.UserFailures != 0 {
			t.Fatalf("attempt %d: %+v", i, m)
		}
		if node == "n1" && (len(m.FailedNodes) != 1 || m.FailedNodes[0] != "n1") {
			t.Fatalf("attempt %d: the next one avoids %v, want n1", i, m.FailedNodes)
		}
		if node == "n2" && len(m.FailedNodes) != 0 {
			t.Fatalf("attempt %d: the next one avoids %v, want none", i, m.FailedNodes)
		}
		l.sleep(time.Minute)
	}
	if n := l.node("n1"); len(n.Failures) != 0 {
		t.Errorf("failures %v", n.Failures)
	}
	l.sleep(time.Hour)
	l.place("ua", 1, 0, 2*maxFailedNodes+1, "n1")
	l.report("n1", failed(muster.NewAllocID("ua", 0, 2*maxFailedNodes+1), muster.FailureNode, muster.ReasonNodeFull, 0))
	if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberFailed || !strings.Contains(m.Reason, "given up after") {
		t.Errorf("%+v", m)
	}
}

// Failures far apart are no spell, nor are those of an earlier incident counted for each that it ended.
func TestFlakyCountsWithinAWindow(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	for i := range 5 {
		l.fails(fmt.Sprintf("j%d", i), "n1")
		l.probed("n1")
		l.sleep(FlakyWindow / 2)
	}
	l.want("n1", "serving good run")

	l.serve("n2", 8)
	l.submit("a", spec(5))
	for i := range 5 {
		l.place("ua", 1, i, 1, "n2")
		l.report("n2", AllocUpdate{ID: muster.NewAllocID("ua", i, 1), Status: muster.AllocRunning})
	}
	var died []AllocUpdate
	for i := range 5 {
		died = append(died, failed(muster.NewAllocID("ua", i, 1), muster.FailureNode, muster.ReasonSandboxDied, 0))
	}
	l.report("n2", died...)
	l.want("n2", "serving unready run")
	if n := l.node("n2"); len(n.Failures) != 1 {
		t.Fatalf("the restart of a machine counts as %d failures", len(n.Failures))
	}
}

// What the user's command does says nothing of the node.
func TestUserFailuresLeaveTheNodeGood(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 1)
	for i := range 10 {
		name := fmt.Sprintf("j%d", i)
		l.submit(name, spec(1))
		l.place(muster.JobUID("u"+name), 1, 0, 1, "n1")
		l.report("n1", failed(muster.NewAllocID(muster.JobUID("u"+name), 0, 1), muster.FailureUser, muster.ReasonExit, 3))
		if a := l.s.Latest().Alloc(muster.NewAllocID(muster.JobUID("u"+name), 0, 1)); a.ExitCode != 3 {
			t.Fatalf("%+v", a)
		}
		if m := l.s.Latest().Member(muster.JobUID("u"+name), 0); m.Status != muster.MemberFailed {
			t.Fatalf("%+v", m)
		}
	}
	l.submit("out", spec(1))
	l.place("uout", 1, 0, 1, "n1")
	l.report("n1", failed("uout-0-1", muster.FailureOutside, muster.ReasonImage, 0))
	l.want("n1", "serving good run")
	if n := l.node("n1"); len(n.Failures) != 0 {
		t.Fatalf("%+v", n.Failures)
	}
}

// The third spell in a day drains; a node that is held stays.
func TestThirdSpellDrains(t *testing.T) {
	for _, held := range []bool{false, true} {
		l := newLog(t)
		l.serve("n1", 8)
		if held {
			l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
		}
		for spell := 1; spell <= 3; spell++ {
			for range FlakyFailures {
				l.must(&NodeFailed{ID: "n1", Reason: "plans refused", Prove: true})
				check(t, l.s.Latest())
				l.probed("n1")
			}
			if spell < 3 {
				l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready})
				l.probed("n1")
			}
			l.sleep(time.Hour)
		}
		if held {
			l.want("n1", "serving flaky hold")
			continue
		}
		l.want("n1", "draining flaky run")
		if n := l.node("n1"); !strings.Contains(n.StageReason, "flaky for the 3. time in a day: plans refused") {
			t.Fatal(n.StageReason)
		}
	}
	// Days apart it goes on.
	l := newLog(t)
	l.serve("n1", 8)
	for range 5 {
		for range FlakyFailures {
			l.must(&NodeFailed{ID: "n1", Reason: "r"})
		}
		l.want("n1", "serving flaky run")
		l.sleep(spellWindow / 2)
		l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready})
		l.probed("n1")
	}
}

// No more than a fifth of a pool, and one in any case: past that something else is wrong.
func TestFewOfAPoolAreSidelined(t *testing.T) {
	l := newLog(t)
	l.pools(Pool{Name: "p"})
	for i := range 6 {
		l.serve(fmt.Sprintf("n%d", i), 8)
	}
	flaky := 0
	for i := range 6 {
		for range FlakyFailures {
			l.must(&NodeFailed{ID: muster.NodeID(fmt.Sprintf("n%d", i)), Reason: "no switch", Prove: true})
			check(t, l.s.Latest())
		}
		if l.node(fmt.Sprintf("n%d", i)).Health == muster.NodeFlaky {
			flaky++
		}
	}
	if want := MaySideline(6); flaky != want || want != 2 {
		t.Fatalf("%d of 6 are sidelined", flaky)
	}
	b := l.s.Latest().Breaker("p")
	if !b.IsSuspect(l.s.Latest().Meta().Time) || !strings.Contains(b.SuspectWhy, "2 of 6 serving nodes are quarantined, and node n5 fails as well: no switch") {
		t.Fatalf("%+v", b)
	}
	if b.IsSuspect(l.s.Latest().Meta().Time.Add(FlakyWindow)) {
		t.Fatal("suspect for ever")
	}
}

// A start that takes far longer than those of the pool counts, one that pulls its image does not.
func TestSlowStartsCount(t *testing.T) {
	l := newLog(t)
	l.pools(Pool{Name: "p"})
	l.serve("n1", 100)
	l.serve("n2", 100)
	start := func(name, node string, took time.Duration, detail string) {
		l.submit(name, spec(1))
		l.place(muster.JobUID("u"+name), 1, 0, 1, node)
		id := muster.NewAllocID(muster.JobUID("u"+name), 0, 1)
		l.report(node, AllocUpdate{ID: id, Status: muster.AllocStarting, Detail: detail})
		l.sleep(took)
		l.report(node, AllocUpdate{ID: id, Status: muster.AllocRunning})
		l.report(node, succeeded(id))
		check(t, l.s.Latest())
	}
	for i := range 16 * slowSamples * 2 {
		start(fmt.Sprintf("a%d", i), "n1", time.Duration(50+i%7)*time.Millisecond, "")
	}
	for i := range FlakyFailures {
		start(fmt.Sprintf("p%d", i), "n1", time.Minute, "pulling image")
	}
	l.want("n1", "serving good run")
	for i := range FlakyFailures {
		start(fmt.Sprintf("b%d", i), "n2", 20*time.Second, "")
	}
	l.want("n2", "serving flaky run")
	if why := l.node("n2").HealthReason; !strings.Contains(why, "a start took 20.0") || !strings.Contains(why, "where those of pool p take") {
		t.Fatal(why)
	}
}

// An error of its own, once: it proves itself and goes on.
func TestOneErrorOfTheNodesOwn(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 1)
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready, Reason: "disk is nearly full"})
	l.want("n1", "serving unready run")
	l.probed("n1")
	if !l.node("n1").Schedulable() {
		t.Fatal("not schedulable again")
	}
	check(t, l.s.Latest())
}

// A drain with a deadline moves what still runs when that has come.
func TestEvictedWorkRunsElsewhere(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 2)
	l.submit("a", spec(1, func(s *api.JobSpec) { s.Restart.Attempts = 1 }))
	l.place("ua", 1, 0, 1, "n1")
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocRunning})
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeDrain, Reason: "kernel", Who: "ann", Until: 77})
	if _, err := l.do(&NodeEvicted{ID: "n1", IfUntil: 76}); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	l.must(&NodeEvicted{ID: "n1", Reason: "drained: kernel", IfUntil: 77})
	check(t, l.s.Latest())
	a := l.s.Latest().Alloc("ua-0-1")
	if a.Desired != muster.AllocStop || a.StopCause != "node n1: drained: kernel" || l.node("n1").IntentUntil != 0 {
		t.Fatalf("%+v", a)
	}
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberWaiting || m.UserFailures != 0 {
		t.Fatalf("%+v", m)
	}
	l.want("n1", "serving good drain")
}

// What was decided of a node that was lost is refused when it was heard of meanwhile: what runs there is not run twice.
func TestTerminatedOnlyWhileLost(t *testing.T) {
	l := newLog(t)
	l.pools(Pool{Name: "p", Static: true})
	l.serve("n1", 2)
	l.keyed("a", "A", "n1")
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeLost, Reason: "no contact"})
	since := l.node("n1").HealthSince
	giveUp := &NodeTerminating{ID: "n1", Reason: "no contact for 1m0s", GiveUp: true, Unexplained: true, IfLostSince: since}
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeGood, Reason: "contact"})
	if _, err := l.do(giveUp); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeLost, Reason: "no contact"}) // another time
	if _, err := l.do(giveUp); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	if a := l.s.Latest().Alloc("ua-0-1"); !a.Live() {
		t.Fatalf("%+v", a)
	}
	giveUp.IfLostSince = l.node("n1").HealthSince
	l.must(giveUp)
	if a := l.s.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeLost {
		t.Fatalf("%+v", a)
	}
	check(t, l.s.Latest())
}

// The same of a node whose instance lists left out: it may have come into service, or back into contact, since then.
func TestGoneOnlyWhileUnchanged(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 2)
	l.keyed("a", "A", "n1")
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeLost, Reason: "no contact"})
	gone := &NodeGone{ID: "n1", Reason: "a complete list no longer has its instance", UnlessHeld: true, IfUnchangedSince: l.node("n1").ChangedAt()}
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeGood, Reason: "contact"})
	if _, err := l.do(gone); !muster.IsKind(err, muster.FaultConflict) || !strings.Contains(err.Error(), "heard of meanwhile") {
		t.Fatal(err)
	}
	if a := l.s.Latest().Alloc("ua-0-1"); !a.Live() {
		t.Fatalf("%+v", a)
	}
	l.must(&NodeLaunching{ID: "n2", Token: "tn2", Pool: "p", Offering: muster.Offering{Name: "o"}})
	l.must(&NodeLaunched{ID: "n2", Instance: "i-n2"})
	booting := &NodeGone{ID: "n2", UnlessHeld: true, IfUnchangedSince: l.node("n2").ChangedAt()}
	l.must(&NodeJoined{ID: "n2"})
	if _, err := l.do(booting); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	gone.IfUnchangedSince = l.node("n1").ChangedAt()
	l.must(gone)
	if a := l.s.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeLost {
		t.Fatalf("%+v", a)
	}
	check(t, l.s.Latest())
}

// The end of a drain takes runners as well: who holds one is told, and none is handed out while it ends.
func TestEvictedRunnersAreGone(t *testing.T) {
	l := warmed(t, 2)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeDrain, Reason: "kernel", Who: "ann", Until: 77})
	l.must(&NodeEvicted{ID: "n1", Reason: "drained: kernel", IfUntil: 77})
	check(t, l.s.Latest())
	for i := range 2 {
		if a := l.s.Latest().Alloc(muster.NewAllocID("ue", i, 1)); a.Runner != muster.RunnerGone || a.Desired != muster.AllocStop || a.StopReason != muster.StopMoved {
			t.Errorf("%+v", a)
		}
	}
	if _, err := l.claim("c2", 1); err == nil {
		t.Error("a runner that ends was handed out")
	}
	if c := l.s.Latest().Claim("c1"); c == nil || c.Ended == 0 {
		t.Errorf("%+v", c)
	}
}
