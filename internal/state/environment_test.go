package state

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func environment(name string, edit ...func(*api.EnvironmentSpec)) *api.EnvironmentSpec {
	s := &api.EnvironmentSpec{Name: name, Template: api.Template{Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}}
	for _, e := range edit {
		e(s)
	}
	s.Defaults()
	return s
}

// warmed is a log with environment e, uid ue, and n warm runners on node n1.
func warmed(t *testing.T, n int) *log {
	t.Helper()
	l := newLog(t)
	l.serve("n1", 8)
	l.set("e", environment("e"))
	l.must(&RunnersWanted{UID: "ue", Count: n, Priority: 50, Stock: n, Floor: 1, Why: "a test"})
	for i := range n {
		l.place("ue", 1, i, 1, "n1")
		l.run(i)
	}
	check(t, l.s.Latest())
	return l
}

func (l *log) set(name string, spec *api.EnvironmentSpec) *EnvironmentChange {
	l.t.Helper()
	return l.must(&EnvironmentSet{Key: muster.EnvironmentKey("default", name), UID: muster.JobUID("u" + name), Spec: spec}).(*EnvironmentChange)
}

func (l *log) run(index int) {
	l.t.Helper()
	l.report("n1", AllocUpdate{ID: muster.NewAllocID("ue", index, 1), Status: muster.AllocRunning})
}

func (l *log) counts() api.RunnerCounts { return l.s.Latest().JobByUID("ue").Runners() }

func (l *log) claim(id string, index int, edit ...func(*RunnerClaimed)) (*Claimed, error) {
	f := &RunnerClaimed{Claim: muster.ClaimID(id), UID: "ue", Runner: muster.NewAllocID("ue", index, 1)}
	for _, e := range edit {
		e(f)
	}
	v, err := l.do(f)
	c, _ := v.(*Claimed)
	return c, err
}

func wantCounts(t *testing.T, l *log, want api.RunnerCounts) {
	t.Helper()
	if got := l.counts(); got != want {
		t.Fatalf("runners are %+v, want %+v", got, want)
	}
	check(t, l.s.Latest())
}

func TestOneClaimOfARunnerIsCommitted(t *testing.T) {
	l := warmed(t, 2)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.claim("c2", 0); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatalf("a runner was given to two: %v", err)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Warm: 1, Claimed: 1})
}

func TestAClaimIsRepeatedByItsKey(t *testing.T) {
	l := warmed(t, 2)
	keyed := func(f *RunnerClaimed) { f.Idempotency, f.Digest = "k", "d" }
	first, err := l.claim("c1", 0, keyed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.claim("c2", 1, keyed)
	if err != nil || !again.Repeated || again.Claim.ID != first.Claim.ID {
		t.Fatalf("the same key gave %+v, %v", again, err)
	}
	if _, err := l.claim("c3", 1, func(f *RunnerClaimed) { f.Idempotency, f.Digest = "k", "other" }); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatalf("the key of another request: %v", err)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Warm: 1, Claimed: 1})
	// Given back, it is still the same claim: a late repetition must not get another runner.
	l.must(&ClaimReleased{Claim: "c1"})
	if again, err := l.claim("c4", 1, keyed); err != nil || again.Claim.State != muster.ClaimReleased {
		t.Fatalf("after the release the same key gave %+v, %v", again, err)
	}
}

func TestAReleasedRunnerIsNeverWarmAgain(t *testing.T) {
	l := warmed(t, 1)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	l.must(&ClaimReleased{Claim: "c1"})
	wantCounts(t, l, api.RunnerCounts{Created: 1, Gone: 1})
	a := l.s.Latest().Alloc("ue-0-1")
	if a.Desired != muster.AllocStop || !a.Live() {
		t.Fatalf("the released runner shall %s", a.Desired)
	}
	if _, err := l.do(&ClaimReleased{Claim: "c1"}); !muster.IsKind(err, muster.FaultTooOld) {
		t.Fatalf("released twice: %v", err)
	}
	l.report("n1", AllocUpdate{ID: "ue-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	wantCounts(t, l, api.RunnerCounts{Created: 1, Gone: 1})
	// Its index is not used again, not even by a plan that does not know better.
	l.must(&RunnersWanted{UID: "ue", Count: 2, Priority: 50})
	if res := l.place("ue", 1, 0, 1, "n1"); res.Placed != 0 {
		t.Fatal("the index of a runner that is gone was placed again")
	}
	if res := l.place("ue", 1, 1, 1, "n1"); res.Placed != 1 {
		t.Fatalf("the next index was not placed: %+v", res)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Starting: 1, Gone: 1})
	l.must(&RunnersPurged{[]muster.AllocID{"ue-0-1", "ue-1-1"}})
	if s := l.s.Latest(); s.Alloc("ue-0-1") != nil || s.Claim("c1") != nil || s.Alloc("ue-1-1") == nil {
		t.Fatal("purged was not what had ended")
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Starting: 1, Gone: 1})
}

func TestClaimsExpireByDeadlineAndIdleTime(t *testing.T) {
	l := warmed(t, 3)
	second := muster.Time(time.Second.Microseconds())
	for i, f := range []func(*RunnerClaimed){
		func(f *RunnerClaimed) { f.TTL = 5 * second },
		func(f *RunnerClaimed) { f.TTL, f.Idle = 5*second, second },
		func(*RunnerClaimed) {},
	} {
		if _, err := l.claim("c"+string(rune('1'+i)), i, f); err != nil {
			t.Fatal(err)
		}
	}
	var due []muster.ClaimID
	l.s.Latest().DueClaims(func(c *Claim) bool { due = append(due, c.ID); return true })
	if len(due) != 2 || due[0] != "c2" || due[1] != "c1" {
		t.Fatalf("due are %v; the one with an idle time comes first, the one without any never", due)
	}
	c2 := l.s.Latest().Claim("c2")
	l.sleep(900 * time.Millisecond)
	l.must(&ClaimsTouched{[]Touch{{"c2", muster.Time(l.now)}}})
	l.must(&ClaimsExpired{[]Expiry{{"c2", "idle", c2.Modified}}})
	if c := l.s.Latest().Claim("c2"); c.State != muster.ClaimHeld {
		t.Fatal("a claim expired that had been used meanwhile")
	}
	l.must(&ClaimExtended{Claim: "c1", TTL: 0, Idle: -1})
	if c := l.s.Latest().Claim("c1"); c.Due() != 0 {
		t.Fatalf("without deadline and idle time it is due at %d", c.Due())
	}
	l.must(&ClaimsExpired{[]Expiry{{"c2", "idle for 1s", l.s.Latest().Claim("c2").Modified}}})
	if c := l.s.Latest().Claim("c2"); c.State != muster.ClaimExpired || c.Reason != "idle for 1s" {
		t.Fatalf("expired: %+v", c)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 3, Claimed: 2, Gone: 1})
}

func TestClaimedRunnersSurviveAChangeOfTheCount(t *testing.T) {
	l := warmed(t, 1)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	three := 3
	got := l.set("e", environment("e", func(e *api.EnvironmentSpec) { e.Warm.Min = &three }))
	if got.Version != 1 || got.Unchanged || got.New || got.UID != "ue" {
		t.Fatalf("a change of the count alone: %+v", got)
	}
	if again := l.set("e", environment("e", func(e *api.EnvironmentSpec) { e.Warm.Min = &three })); !again.Unchanged {
		t.Fatal("the same spec again changed something")
	}
	wantCounts(t, l, api.RunnerCounts{Created: 1, Claimed: 1})
	if c := l.s.Latest().Claim("c1"); c.State != muster.ClaimHeld {
		t.Fatalf("the claim is %s", c.State)
	}
}

// Who has read an environment changes it only as it was read: IfVersion does not tell, as not every change makes a version.
func TestEnvironmentIsSetIfItIsAsItWas(t *testing.T) {
	l := warmed(t, 1)
	read := l.s.Latest().Environment("default", "e").Env.Set
	if read == 0 {
		t.Fatal("it does not say when it was set")
	}
	set := func(at uint64, least int) error {
		_, err := l.do(&EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ux", IfSet: &at, Spec: environment("e", func(e *api.EnvironmentSpec) { e.Warm.Min = &least })})
		return err
	}
	if err := set(read, 3); err != nil {
		t.Fatal(err)
	}
	now := l.s.Latest().Environment("default", "e")
	if now.Version != 1 || now.Env.Set == read {
		t.Errorf("version %d, set at %d, before at %d", now.Version, now.Env.Set, read)
	}
	if err := set(read, 4); !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("as it was before the change: %v", err)
	}
	// What changes nothing, and what the runners do, is no change of it.
	if err := set(now.Env.Set, 3); err != nil || l.s.Latest().Environment("default", "e").Env.Set != now.Env.Set {
		t.Errorf("the same again: %v", err)
	}
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	if err := set(now.Env.Set, 5); err != nil {
		t.Error(err)
	}
	last := l.s.Latest().Environment("default", "e").Env.Set
	l.must(&EnvironmentDeleted{Key: muster.EnvironmentKey("default", "e")})
	if err := set(last, 1); !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("of one that is deleted: %v", err)
	}
	if *now.Env.Spec.Warm.Min != 3 {
		t.Errorf("%+v", now.Env.Spec)
	}
}

func TestRunnersOfTheOldImageGoOn(t *testing.T) {
	l := warmed(t, 2)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	if got := l.set("e", environment("e", func(e *api.EnvironmentSpec) { e.Image = "other" })); got.Version != 2 || got.UID != "ue" {
		t.Fatalf("another image: %+v", got)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Warm: 1, Claimed: 1})
	l.must(&RunnersWanted{UID: "ue", Count: 3, Priority: 50})
	if res := l.place("ue", 1, 2, 1, "n1"); res.Placed != 0 {
		t.Fatal("a plan of the old version was committed")
	}
	l.place("ue", 2, 2, 1, "n1")
	l.run(2)
	l.must(&RunnersStopped{UID: "ue", Runners: []muster.AllocID{"ue-0-1", "ue-1-1"}, Why: "outdated"})
	wantCounts(t, l, api.RunnerCounts{Created: 3, Warm: 1, Claimed: 1, Gone: 1})
}

func TestEnvironmentDeletedDuringAClaim(t *testing.T) {
	l := warmed(t, 2)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	l.must(&RunnersWanted{UID: "ue", Count: 4, Priority: 50})
	l.must(&EnvironmentDeleted{Key: muster.EnvironmentKey("default", "e")})
	wantCounts(t, l, api.RunnerCounts{Created: 2, Claimed: 1, Gone: 1})
	// The name is free at once.
	if got := l.must(&EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue2", Spec: environment("e")}).(*EnvironmentChange); !got.New || got.Version != 2 {
		t.Fatalf("set again: %+v", got)
	}
	if _, err := l.claim("c2", 1); err == nil {
		t.Fatal("a runner of a deleted environment was claimed")
	}
	l.report("n1", AllocUpdate{ID: "ue-1-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	l.must(&ClaimReleased{Claim: "c1"})
	l.report("n1", AllocUpdate{ID: "ue-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	if j := l.s.Latest().JobByUID("ue"); j.Stage != muster.JobEnded {
		t.Fatalf("with its last runner given back it is %s", j.Stage)
	}
	check(t, l.s.Latest())
	l.must(&JobsPurged{[]muster.JobUID{"ue"}})
	if s := l.s.Latest(); s.ClaimCount() != 0 || s.Environment("default", "e") == nil {
		t.Fatal("purged was too much or too little")
	}
	check(t, l.s.Latest())
}

func TestClaimIsLostWithItsNode(t *testing.T) {
	l := warmed(t, 2)
	if _, err := l.claim("c1", 0); err != nil {
		t.Fatal(err)
	}
	l.must(&NodeTerminating{ID: "n1", Reason: "pulled"})
	l.must(&NodeGone{ID: "n1", Reason: "pulled"})
	c := l.s.Latest().Claim("c1")
	if c.State != muster.ClaimLost || !strings.Contains(c.Reason, "node n1") {
		t.Fatalf("the claim is %s because %q", c.State, c.Reason)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Gone: 2})
}

func TestStartsThatFailBackOff(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	l.serve("n2", 8)
	l.set("e", environment("e"))
	l.must(&RunnersWanted{UID: "ue", Count: 2, Priority: 50})
	l.place("ue", 1, 0, 1, "n1")
	l.report("n1", failed("ue-0-1", muster.FailureUser, muster.ReasonImageNotFound, 0))
	env := l.s.Latest().JobByUID("ue").Env
	if env.Failures != 1 || env.StartAt() <= env.FailedAt || env.Failure != "image-not-found" {
		t.Fatalf("after one failure %+v", env)
	}
	// A node's fault is not the environment's: the runner goes elsewhere, under its index.
	l.place("ue", 1, 1, 1, "n1")
	l.report("n1", failed("ue-1-1", muster.FailureNode, muster.ReasonNodeFault, 0))
	wantCounts(t, l, api.RunnerCounts{Created: 2, Starting: 1, Gone: 1})
	if res := l.place("ue", 1, 1, 2, "n2"); res.Placed != 1 {
		t.Fatalf("the second attempt: %+v", res)
	}
	l.report("n2", AllocUpdate{ID: "ue-1-2", Status: muster.AllocRunning})
	// One that ends as soon as it is warm has failed to start as well.
	l.report("n2", failed("ue-1-2", muster.FailureUser, muster.ReasonExit, 1))
	if env := l.s.Latest().JobByUID("ue").Env; env.Failures != 2 {
		t.Fatalf("after a second failure %+v", env)
	}
	wantCounts(t, l, api.RunnerCounts{Created: 2, Gone: 2})
}

func TestAnEnvironmentSetAgainIsTriedAtOnce(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	l.set("e", environment("e"))
	l.must(&RunnersWanted{UID: "ue", Count: 1, Priority: 50, Stock: 1, Floor: 1, Why: "a test"})
	l.place("ue", 1, 0, 1, "n1")
	l.report("n1", AllocUpdate{ID: "ue-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeFailed,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonCommandNotFound, Message: "no such command"}})
	if e := l.s.Latest().JobByUID("ue").Env; e.StartAt() == 0 {
		t.Fatal("a failed start is tried again at once")
	}
	if !l.set("e", environment("e")).Unchanged {
		t.Error("set again, it is another")
	}
	if e := l.s.Latest().JobByUID("ue").Env; e.StartAt() != 0 || e.Failure != "" {
		t.Errorf("set again, it waits until %d because of %q", e.StartAt(), e.Failure)
	}
	check(t, l.s.Latest())
}

// Room is kept at the priority that the environment's waiting runners have, not at a job's default.
func TestRoomIsReservedAtAnEnvironmentsPriority(t *testing.T) {
	l := warmed(t, 1)
	for _, priority := range []int{0, 70} {
		l.must(&RunnersWanted{UID: "ue", Count: 2, Priority: priority, Stock: 2})
		l.must(&RoomReserved{Node: "n1", UID: "ue", Version: l.s.Latest().JobByUID("ue").Version})
		if got := l.s.Latest().Node("n1").Reserved.Priority; got != priority {
			t.Errorf("reserved at %d, wanted at %d", got, priority)
		}
		l.must(&RoomReleased{Node: "n1", UID: "ue"})
	}
}
