package state

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

var update = flag.Bool("update", false, "rewrite golden files")

// log is a log in memory: what raft would have given, in order.
type log struct {
	t       rapid.TB
	s       *State
	entries []entry
	now     int64
}

type entry struct {
	at        int64
	proposals [][]byte
}

func newLog(t rapid.TB) *log {
	t.Helper()
	s, err := New(1024)
	if err != nil {
		t.Fatal(err)
	}
	return &log{t: t, s: s, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro()}
}

// do applies one fact as one entry and gives its value or error.
func (l *log) do(f Fact) (any, error) {
	l.t.Helper()
	b, err := l.s.Encode(f)
	if err != nil {
		l.t.Fatal(err)
	}
	l.now += 1000
	l.entries = append(l.entries, entry{l.now, [][]byte{b}})
	v := l.s.Apply(uint64(len(l.entries)), 1, l.now, [][]byte{b})[0]
	if err, ok := v.(error); ok {
		return nil, err
	}
	return v, nil
}

func (l *log) must(f Fact) any {
	l.t.Helper()
	v, err := l.do(f)
	if err != nil {
		l.t.Fatalf("%T: %v", f, err)
	}
	return v
}

func (l *log) sleep(d time.Duration) { l.now += d.Microseconds() }

func spec(count int, edit ...func(*api.JobSpec)) *api.JobSpec {
	p := 50
	s := &api.JobSpec{
		Name: "j", Namespace: "default", Type: "batch", Count: count, Template: api.Template{Priority: &p, Command: []string{"true"},
			Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}},
		Restart: api.RestartSpec{Attempts: 1, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

func key(name string) muster.JobKey { return muster.JobKey{Namespace: "default", Name: name} }

func (l *log) submit(name string, s *api.JobSpec) *Submitted {
	l.t.Helper()
	return l.must(&JobSubmitted{Key: key(name), UID: muster.JobUID("u" + name), Spec: s}).(*Submitted)
}

// serve brings a node with so many cores into service.
func (l *log) serve(id string, cores int) {
	l.t.Helper()
	room := muster.Resources{CPU: muster.MilliCPU(cores * 1000), Memory: muster.GiB}
	l.must(&NodeLaunching{ID: muster.NodeID(id), Token: muster.Token("t" + id), Pool: "p", Offering: muster.Offering{Name: "o", Capacity: room}})
	l.must(&NodeLaunched{ID: muster.NodeID(id), Instance: muster.InstanceID("i-" + id)})
	l.must(&NodeJoined{ID: muster.NodeID(id), Capacity: room, Attributes: map[string]string{"os": "linux"}, Agent: "v1", Boot: "b"})
}

func (l *log) place(uid muster.JobUID, version uint64, index, attempt int, node string) *PlanResult {
	l.t.Helper()
	return l.must(&PlanCommitted{Placements: []Placement{{UID: uid, Version: version, Index: index, Attempt: attempt, Node: muster.NodeID(node)}}}).(*PlanResult)
}

func (l *log) report(node string, u ...AllocUpdate) {
	l.t.Helper()
	l.must(&AllocsReported{Node: muster.NodeID(node), Allocs: u})
}

func failed(id muster.AllocID, class muster.FailureClass, reason muster.Reason, exit int) AllocUpdate {
	return AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, ExitCode: exit,
		Failure: &muster.Failure{Class: class, Reason: reason, Message: string(reason)}}
}

func succeeded(id muster.AllocID) AllocUpdate {
	return AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}
}

func image(t rapid.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Image().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// check holds the invariants that must be true after every fact.
func check(t rapid.TB, s *Snapshot) {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestJobRunsToItsEnd(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(2))
	l.serve("n1", 2)
	l.place("ua", 1, 0, 1, "n1")
	l.place("ua", 1, 1, 1, "n1")
	check(t, l.s.Latest())
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocRunning}, succeeded("ua-1-1"))
	check(t, l.s.Latest())
	if j := l.s.Latest().Job(key("a")); j.Running != 1 || j.Succeeded != 1 || j.Stage != muster.JobLive {
		t.Fatalf("%+v", j)
	}
	l.report("n1", succeeded("ua-0-1"))
	check(t, l.s.Latest())
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobSucceeded {
		t.Fatalf("%+v", j)
	}
	if n := l.s.Latest().Node("n1"); n.Used != (muster.Resources{}) || n.IdleSince == 0 {
		t.Fatalf("%+v", n)
	}
}

func TestEndedStaysEnded(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1))
	l.serve("n1", 2)
	l.place("ua", 1, 0, 1, "n1")
	l.report("n1", succeeded("ua-0-1"))
	before := image(t, l.s)
	_ = before
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocRunning}, failed("ua-0-1", muster.FailureNode, muster.ReasonNodeFault, 0))
	if a := l.s.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeSucceeded {
		t.Fatalf("%+v", a)
	}
}

// A member that was planned twice is placed once.
func TestSameAttemptIsPlacedOnce(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1))
	l.serve("n1", 4)
	l.serve("n2", 4)
	if r := l.place("ua", 1, 0, 1, "n1"); r.Placed != 1 {
		t.Fatalf("%+v", r)
	}
	r := l.place("ua", 1, 0, 1, "n2")
	if r.Placed != 0 || len(r.Refused) != 1 || r.Refused[0].NodeFault {
		t.Fatalf("%+v", r)
	}
	v := l.must(&PlanCommitted{Placements: []Placement{{UID: "ua", Version: 1, Index: 0, Attempt: 2, Node: "n2"}, {UID: "ua", Version: 1, Index: 1, Attempt: 1, Node: "n2"}}}).(*PlanResult)
	if v.Placed != 0 || len(v.Refused) != 2 {
		t.Fatalf("%+v", v)
	}
	check(t, l.s.Latest())
}

func TestPlanIsRefusedNodeByNode(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(4))
	l.serve("n1", 2)
	l.serve("n2", 1)
	v := l.must(&PlanCommitted{Placements: []Placement{
		{UID: "ua", Version: 1, Index: 0, Attempt: 1, Node: "n1"}, {UID: "ua", Version: 1, Index: 1, Attempt: 1, Node: "n1"},
		{UID: "ua", Version: 1, Index: 2, Attempt: 1, Node: "n2"}, {UID: "ua", Version: 1, Index: 3, Attempt: 1, Node: "n2"},
	}}).(*PlanResult)
	if v.Placed != 2 || len(v.Refused) != 2 || !v.Refused[0].NodeFault || !strings.Contains(v.Refused[0].Reason, "short of cpu") {
		t.Fatalf("%+v", v)
	}
	check(t, l.s.Latest())
}

func TestRestartPolicy(t *testing.T) {
	retryOn := func(s *api.JobSpec) { s.Restart.Attempts, s.Restart.On = 3, []string{"1"} }
	t.Run("exits are counted and back off", func(t *testing.T) {
		l := newLog(t)
		l.submit("a", spec(1, retryOn))
		l.serve("n1", 1)
		var waits []time.Duration
		for attempt := 1; attempt <= 3; attempt++ {
			l.place("ua", 1, 0, attempt, "n1")
			l.report("n1", failed(muster.NewAllocID("ua", 0, attempt), muster.FailureUser, muster.ReasonExit, 1))
			check(t, l.s.Latest())
			if m := l.s.Latest().Member("ua", 0); m.Status == muster.MemberWaiting {
				waits = append(waits, m.RetryAt.Sub(l.s.Latest().Meta().Time))
			}
		}
		if fmt.Sprint(waits) != "[1s 2s]" {
			t.Fatalf("waits %v", waits)
		}
		j := l.s.Latest().Job(key("a"))
		if j.Stage != muster.JobEnded || j.Result != muster.JobFailed || !strings.Contains(j.Reason, "attempt 3 of 3") {
			t.Fatalf("%+v", j)
		}
	})
	t.Run("an exit not named is final", func(t *testing.T) {
		l := newLog(t)
		l.submit("a", spec(1, retryOn))
		l.serve("n1", 1)
		l.place("ua", 1, 0, 1, "n1")
		l.report("n1", failed("ua-0-1", muster.FailureUser, muster.ReasonExit, 3))
		if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberFailed {
			t.Fatalf("%+v", m)
		}
	})
	t.Run("node failures move on to five nodes", func(t *testing.T) {
		l := newLog(t)
		l.submit("a", spec(1))
		for i := 1; i <= 5; i++ {
			l.serve(fmt.Sprintf("n%d", i), 1)
			l.place("ua", 1, 0, i, fmt.Sprintf("n%d", i))
			l.report(fmt.Sprintf("n%d", i), failed(muster.NewAllocID("ua", 0, i), muster.FailureNode, muster.ReasonNodeFault, 0))
			if m := l.s.Latest().Member("ua", 0); i < 5 && (m.Status != muster.MemberWaiting || len(m.FailedNodes) != i) {
				t.Fatalf("%+v", m)
			}
		}
		if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberFailed || !strings.Contains(m.Reason, "5 nodes") {
			t.Fatalf("%+v", m)
		}
	})
	t.Run("failures outside back off until given up", func(t *testing.T) {
		l := newLog(t)
		l.submit("a", spec(1))
		l.serve("n1", 1)
		n := 0
		for attempt := 1; ; attempt++ {
			l.place("ua", 1, 0, attempt, "n1")
			l.report("n1", failed(muster.NewAllocID("ua", 0, attempt), muster.FailureOutside, muster.ReasonInput, 0))
			m := l.s.Latest().Member("ua", 0)
			if m.Status == muster.MemberFailed {
				break
			}
			l.sleep(m.RetryAt.Sub(l.s.Latest().Meta().Time))
			if n++; n > 200 {
				t.Fatal("never given up")
			}
		}
		if m := l.s.Latest().Member("ua", 0); !strings.Contains(m.Reason, "given up after 1h") {
			t.Fatalf("%+v", m)
		}
	})
	t.Run("a lost node is a node failure", func(t *testing.T) {
		l := newLog(t)
		l.submit("a", spec(1))
		l.serve("n1", 1)
		l.place("ua", 1, 0, 1, "n1")
		l.must(&NodeGone{ID: "n1", Reason: "not in two lists"})
		check(t, l.s.Latest())
		m, a := l.s.Latest().Member("ua", 0), l.s.Latest().Alloc("ua-0-1")
		if m.Status != muster.MemberWaiting || !slices.Contains(m.FailedNodes, "n1") || a.Outcome != muster.OutcomeLost || a.Output.Stage != OutputIncomplete {
			t.Fatalf("%+v %+v", m, a)
		}
	})
}

func TestSubmitRules(t *testing.T) {
	l := newLog(t)
	one := uint64(1)
	l.submit("a", spec(1))
	if v := l.submit("a", spec(1)); !v.Unchanged || v.Version != 1 {
		t.Fatalf("%+v", v)
	}
	other := spec(2)
	if _, err := l.do(&JobSubmitted{Key: key("a"), UID: "x", Spec: other}); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	zero := uint64(0)
	if _, err := l.do(&JobSubmitted{Key: key("a"), UID: "x", Spec: other, IfVersion: &zero, Replace: true}); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	l.serve("n1", 4)
	l.place("ua", 1, 0, 1, "n1")
	v := l.must(&JobSubmitted{Key: key("a"), UID: "x", Spec: other, IfVersion: &one, Replace: true}).(*Submitted)
	if v.Version != 2 || v.UID != "ua" {
		t.Fatalf("%+v", v)
	}
	check(t, l.s.Latest())
	if a := l.s.Latest().Alloc("ua-0-1"); a.Desired != muster.AllocStop {
		t.Fatalf("%+v", a)
	}
	// The old version's end does not count for the new one, whose attempts have numbers of their own.
	l.report("n1", succeeded("ua-0-1"))
	check(t, l.s.Latest())
	if r := l.place("ua", 2, 0, 2, "n1"); r.Placed != 1 {
		t.Fatalf("%+v", r)
	}
	if j := l.s.Latest().Job(key("a")); j.Succeeded != 0 || j.Placed != 1 {
		t.Fatalf("%+v", j)
	}
}

func TestIdempotencyKey(t *testing.T) {
	l := newLog(t)
	f := &JobSubmitted{Key: key("a"), UID: "ua", Spec: spec(1), Idempotency: "k", Digest: "d"}
	first := l.must(f).(*Submitted)
	again := *f
	again.Key, again.UID = key("b"), "ub" // a name made by the server differs each time
	second := l.must(&again).(*Submitted)
	if !second.Repeated || second.Key != first.Key || second.UID != first.UID || l.s.Latest().JobCount() != 1 {
		t.Fatalf("%+v", second)
	}
	again.Digest = "other"
	if _, err := l.do(&again); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
}

// Stop an unknown job, twice, before its members start, while they run.
func TestStopOfAJob(t *testing.T) {
	l := newLog(t)
	if _, err := l.do(&JobStopped{Key: key("a")}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Fatal(err)
	}
	l.submit("a", spec(3))
	l.serve("n1", 1)
	l.place("ua", 1, 0, 1, "n1")
	l.must(&JobStopped{Key: key("a"), Reason: "enough"})
	check(t, l.s.Latest())
	j := l.s.Latest().Job(key("a"))
	if j.Stage != muster.JobStopping || j.Stopped != 2 || l.s.Latest().UnsettledCount() != 0 {
		t.Fatalf("%+v", j)
	}
	l.must(&JobStopped{Key: key("a")})
	l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
	check(t, l.s.Latest())
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobStopped || !strings.Contains(j.Reason, "enough") {
		t.Fatalf("%+v", j)
	}
	l.submit("b", spec(3))
	l.must(&JobStopped{Key: key("b")})
	if j := l.s.Latest().Job(key("b")); j.Stage != muster.JobEnded || j.Stopped != 3 {
		t.Fatalf("%+v", j)
	}
}

func TestImpossibleJobFails(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(3))
	j := l.s.Latest().Job(key("a"))
	if _, err := l.do(&JobFailed{UID: "ua", Reason: "x", Modified: j.Modified + 1}); !muster.IsKind(err, muster.FaultConflict) {
		t.Fatal(err)
	}
	l.must(&JobFailed{UID: "ua", Reason: "asks for 64 cpu; the largest offering has 8", Modified: j.Modified})
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobFailed || !strings.Contains(j.Reason, "64 cpu") {
		t.Fatalf("%+v", j)
	}
}

func TestPurge(t *testing.T) {
	l := newLog(t)
	empty := image(t, l.s)
	l.submit("a", spec(2))
	l.serve("n1", 4)
	l.place("ua", 1, 0, 1, "n1")
	l.place("ua", 1, 1, 1, "n1")
	l.report("n1", succeeded("ua-0-1"), failed("ua-1-1", muster.FailureUser, muster.ReasonExit, 2))
	l.must(&JobsPurged{UIDs: []muster.JobUID{"ua"}})
	l.must(&NodeGone{ID: "n1"})
	l.must(&NodesPurged{IDs: []muster.NodeID{"n1"}})
	s := l.s.Latest()
	t2 := s.t
	for name, n := range map[string]int{
		"names": t2.names.Len(), "uid": t2.jobsUID.Len(), "lives": t2.lives.Len(), "members": t2.members.Len(), "allocs": t2.allocs.Len(), "nodes": t2.nodes.Len(),
		"nodeAllocs": t2.nodeAllocs.Len(), "endedJobs": t2.endedJobs.Len(),
		"goneNodes": t2.goneNodes.Len(), "liveNodes": t2.liveNodes.Len(), "openOutput": t2.openOutput.Len(), "unsettled": t2.unsettled.Len(),
		"wakeAt": t2.wakeAt.Len(), "retries": t2.retries.Len(),
	} {
		if n != 0 {
			t.Errorf("%s has %d rows left", name, n)
		}
	}
	// What it cost is kept: a row of the job and one of the pool.
	const kept = 2 * 64
	if n := t2.jobCosts.Len() + t2.sumCosts.Len() + t2.poolCosts.Len(); n != 2 {
		t.Errorf("%d rows of cost", n)
	}
	if len(image(t, l.s)) > len(empty)+32+kept {
		t.Error("the image did not shrink back")
	}
}

func TestFeed(t *testing.T) {
	s, _ := New(16)
	l := &log{t: t, s: s, now: 1}
	for i := range 10 {
		l.submit(fmt.Sprintf("j%d", i), spec(1))
	}
	all, last, err := s.Feed().After(Position{}, 100)
	if err != nil || len(all) != 10 || last != 10 {
		t.Fatalf("%d %d %v", len(all), last, err)
	}
	some, _, _ := s.Feed().After(all[3].Position(), 2)
	if len(some) != 2 || some[0].Index != 5 {
		t.Fatalf("%+v", some)
	}
	if rest, _, _ := s.Feed().After(AfterIndex(10), 10); len(rest) != 0 {
		t.Fatalf("%+v", rest)
	}
	for i := range 10 {
		l.submit(fmt.Sprintf("k%d", i), spec(1))
	}
	if _, _, err := s.Feed().After(AfterIndex(3), 100); !muster.IsKind(err, muster.FaultTooOld) {
		t.Fatal(err)
	}
	if got, _, err := s.Feed().After(s.Feed().Oldest(), 100); err != nil || len(got) != 16 {
		t.Fatal(len(got), err)
	}
}

// goldenFacts is one of each; its encodings are on disk in every data directory.
func goldenFacts() []Fact {
	one := uint64(1)
	offer := muster.Offering{Provider: "local", Name: "small", Zone: "z", Market: muster.OnDemand, Price: 12000,
		Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB, Disk: muster.GiB}, Attributes: map[string]string{"a": "b"}, Available: true}
	return []Fact{
		&TermBegan{Term: 2, Cluster: "c1"}, &EpochBegan{Epoch: 3},
		&PoolsSet{[]Pool{{Name: "p", Provider: "local", Offerings: []muster.OfferingName{"small"}, Min: 1, Max: 2, MaxLaunching: 3, IdleTimeout: 4, BootTimeout: 5, Grace: 6, Runtime: "runsc"}}},
		&OfferingsSeen{"local", []muster.Offering{offer}},
		&JobSubmitted{Key: key("a"), UID: "ua", Spec: spec(2, func(s *api.JobSpec) { s.Env = map[string]string{"b": "1", "a": "2"} }), IfVersion: &one, Replace: true, Idempotency: "k", Digest: "d", Note: "n", Reverts: 1},
		&RolloutMoved{"ua", 2, muster.RolloutFailed, "r"}, &SystemSized{"ua", 2, 3, []int{1}}, &AllocsPurged{[]muster.AllocID{"ua-0-1"}}, &FormatRaised{2, "v2"},
		&JobRetried{Key: key("a"), UID: "ua", Members: []int{3, 70_000}, All: true, Idempotency: "k", Digest: "d"},
		&JobStopped{key("a"), "r"}, &JobFailed{"ua", "r", 7}, &JobParked{"ua", "r", 8}, &JobsPurged{[]muster.JobUID{"ua", "ub"}},
		&PlanCommitted{
			Placements: []Placement{{"ua", 1, 0, 1, "n1", muster.Grant{Cores: []int{0, 1}, Devices: []int{3}}}},
			Stops:      []Stop{{"ub-0-1", muster.StopPreempted, "ua", "job default/a needs its room"}}, Whole: true,
		},
		&AllocsReported{"n1", []AllocUpdate{{"ua-0-1", muster.AllocEnded, muster.OutcomeFailed, 3, "SIGKILL",
			&muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "m"}, 5, 6,
			&Output{Stage: OutputComplete, Stdout: Stream{Size: 3, Inline: []byte("abc")}}, "d", "sha256:e", 7, 8, 9}}},
		&OutputStored{"ua-0-1", Output{Stage: OutputIncomplete, Why: "w", Stdout: Stream{Size: 9, Start: 1}, Files: []OutputFile{{"f", 2}}, BlobBytes: 8}},
		&JobOutputPruned{[]muster.JobUID{"ua"}},
		&NodeLaunching{"n1", "t1", "p", offer, "r", "ssh-ed25519 A"}, &NodeLaunched{"n1", "i1"}, &NodeAdopted{"n1", "t1", "p", offer, "i1", muster.NodeHold, "ssh-ed25519 A"},
		&NodeJoined{"n1", offer.Capacity, map[string]string{"os": "linux"}, "v1", "b1"},
		&NodeHealthChanged{"n1", muster.NodeLost, "r", true, true}, &NodeIntentSet{"n1", muster.NodeHold, "r", "w", 4, 5}, &NodeDraining{"n1", "r", "w", true},
		&NodeTerminating{"n1", "r", true, true, "w", true, 5}, &NodeGone{"n1", "r", true, 6}, &NodesPurged{[]muster.NodeID{"n1"}},
		&PoolTripped{"p", "r"}, &PoolResumed{"p", "w", "r"},
		&NodeImagesSeen{"n1", []muster.AffinityKey{"image:a"}},
		&SharesSet{[]ShareRule{{"a*", "c", 3}}}, &NamespaceLimited{NamespaceLimits{"n", 1, 2, 3, 4, 5, 6, "w", "r"}},
		&EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue", Spec: environment("e"), IfVersion: &one, IfSet: &one, Rollout: true},
		&EnvironmentDeleted{muster.EnvironmentKey("default", "e"), true}, &RunnersWanted{"ue", 3, 50, 2, 1, "w", true, 9, &WarmDemand{[]Peak{{6e7, 4}}, 5}}, &DemandSeen{[]EnvironmentDemand{{"ue", &WarmDemand{[]Peak{{6e7, 4}}, 5}}}},
		&RunnersStopped{"ue", []muster.AllocID{"ue-0-1"}, "w", true}, &RunnersPurged{[]muster.AllocID{"ue-0-1"}},
		&RunnerClaimed{"c1", "ue", "ue-0-1", 4, 5, "n", "k", "d"}, &ClaimExtended{"c1", 6, 7},
		&ClaimsTouched{[]Touch{{"c1", 8}}}, &ClaimReleased{"c1", "r"}, &ClaimsExpired{[]Expiry{{"c1", "r", 9}}},
		&NodeKept{"n1", "r"},
		&ImageLoaded{LoadedImage{"docker.io/library/web:1", "sha256:a", []LoadedBlob{{"sha256:a", 5}}, []string{"linux/amd64"}, []LoadedBlob{{"sha256:b", 6}}, 7}}, &ImageRemoved{"docker.io/library/web:1", "sha256:a"},
		&ServerSeen{Server{"s1", "a", "v1", 7, "a.example:4750"}}, &ServerRemoved{"s1"},
		&RoomReserved{"n1", "ua", 2}, &RoomReleased{"n1", "ua", "r"}, &NodePlansRefused{"n1", 15, "r"},
		&NodeFailed{"n1", "r", true}, &NodeEvicted{"n1", "r", 4}, &NodeRekeyed{"n1", "ssh-ed25519 B"},
		&ConfigApplied{"{}", "s1", ConfigReload, "sha256:f", &one},
		&BlocksChanged{[]Block{{CallCreate, muster.Scope{Provider: "p", Zone: "z", Offering: "o", Market: muster.Spot, Family: "f"}, muster.FaultQuota, 1, "w", 2, 3, 4, 5, 6}}, []Block{{Call: CallList, Scope: muster.Scope{Provider: "p"}, Kind: muster.FaultAuth}}},
		&InstanceSheltered{"t1", 5},
		&HostTaken{"p", "h", HostUse{"h-1", "c1", "t1", "n1", "q", muster.NodeHold, "o", "z", muster.OnDemand, 5, true, []byte("{}")}},
		&HostTagged{"p", "h", "h-1", "n1", "q", muster.NodeHold}, &HostReleased{"p", "h", "h-1", true}, &HostsFound{"p", []HostFound{{"h", "a", offer.Capacity, "amd64"}}},
		&NodeStopped{"n1", "r"}, &NodeStarting{"n1", "r"}, &NodeStarted{"n1"},
	}
}

func TestGoldenEncodings(t *testing.T) {
	s, _ := New(1)
	var out strings.Builder
	seen := map[kind]bool{}
	for _, f := range goldenFacts() {
		b, err := s.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		back, err := s.Decode(b)
		if err != nil {
			t.Fatalf("%T: %v", f, err)
		}
		again, _ := s.Encode(back)
		if !bytes.Equal(b, again) {
			t.Errorf("%T changes when it is read and written again", f)
		}
		seen[kindOf(f)] = true
		fmt.Fprintf(&out, "%d %T\n%x\n", kindOf(f), f, b)
	}
	for k := kind(1); int(k) < len(blanks); k++ {
		if !seen[k] {
			t.Errorf("fact kind %d has no golden encoding", k)
		}
	}
	path := filepath.Join("testdata", "facts.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("encodings changed: data directories of earlier versions would be read wrongly.\nAdd fields with new numbers; if that is what happened, run with -update.\ngot:\n%s", out.String())
	}
}

func TestGarbageIsRefused(t *testing.T) {
	s, _ := New(1)
	for _, b := range [][]byte{nil, {0xff}, {0x83, 0x18, 0x63, 0x01, 0xa0}, {0x83, 0x01, 0x09, 0xa0}, []byte("hello")} {
		if _, err := s.Decode(b); err == nil {
			t.Errorf("%x was read", b)
		}
	}
	if err := s.Restore(strings.NewReader("garbage")); err == nil {
		t.Error("garbage was restored")
	}
	l := newLog(t)
	l.submit("a", spec(1))
	im := image(t, l.s)
	if err := s.Restore(bytes.NewReader(im[:len(im)-3])); err == nil {
		t.Error("a cut image was restored")
	}
}

// A node is idle from when it is empty and good: what was out of reach, or of
// which a restored state knows nothing, has not been idle meanwhile.
func TestIdleTimeBeginsAnew(t *testing.T) {
	l := newLog(t)
	l.must(&NodeLaunching{ID: "n1", Token: "t1", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o"}})
	l.must(&NodeLaunched{ID: "n1", Instance: "i1"})
	l.must(&NodeJoined{ID: "n1"})
	since := l.s.Latest().Node("n1").IdleSince
	for _, f := range []Fact{
		&NodeHealthChanged{ID: "n1", Health: muster.NodeLost}, &NodeHealthChanged{ID: "n1", Health: muster.NodeGood},
		&EpochBegan{},
	} {
		l.now += 1e6
		l.must(f)
		now := l.s.Latest().Node("n1").IdleSince
		if h, lost := f.(*NodeHealthChanged); lost && h.Health == muster.NodeLost {
			if now != since {
				t.Errorf("%T: idle since %d, before %d", f, now, since)
			}
			continue
		}
		if now != muster.Time(l.now) {
			t.Errorf("%T: idle since %d, want %d", f, now, l.now)
		}
		since = now
	}
}

// A name used again begins another life; the one before is kept, and forgotten after its own time.
func TestNameUsedAgain(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 8)
	for i := 1; i <= 3; i++ {
		v := l.must(&JobSubmitted{Key: key("a"), UID: muster.JobUID(fmt.Sprintf("u%d", i)), Spec: spec(1)}).(*Submitted)
		if v.Version != uint64(i) || v.UID != muster.JobUID(fmt.Sprintf("u%d", i)) {
			t.Fatalf("%+v", v)
		}
		l.place(v.UID, v.Version, 0, 1, "n1")
		l.report("n1", succeeded(muster.NewAllocID(v.UID, 0, 1)))
		check(t, l.s.Latest())
	}
	s := l.s.Latest()
	if s.JobCount() != 1 || s.EndedJobCount() != 3 || s.Job(key("a")).Version != 3 || s.JobByUID("u1") == nil {
		t.Fatal(s.JobCount(), s.EndedJobCount())
	}
	if _, err := l.do(&JobSubmitted{Key: key("a"), UID: "u2", Spec: spec(1)}); !muster.IsKind(err, muster.FaultAlreadyExists) {
		t.Fatal(err)
	}
	// What is noted of an earlier life must not bring it back.
	l.must(&JobOutputPruned{UIDs: []muster.JobUID{"u1"}})
	if l.s.Latest().Job(key("a")).UID != "u3" {
		t.Fatal("an earlier life took the name back")
	}
	restored, _ := New(16)
	if err := restored.Restore(bytes.NewReader(image(t, l.s))); err != nil || restored.Latest().Job(key("a")).UID != "u3" || restored.Latest().EndedJobCount() != 3 {
		t.Fatal(err)
	}
	l.must(&JobsPurged{UIDs: []muster.JobUID{"u1", "u2"}})
	check(t, l.s.Latest())
	if s := l.s.Latest(); s.Job(key("a")).UID != "u3" || s.AllocCount() != 1 {
		t.Fatal(s.AllocCount())
	}
	l.must(&JobsPurged{UIDs: []muster.JobUID{"u3"}})
	if s := l.s.Latest(); s.JobCount() != 0 || s.AllocCount() != 0 {
		t.Fatal(s.JobCount())
	}
}

// Text of an agent that is not UTF-8 must not make what was committed unreadable.
func TestInvalidText(t *testing.T) {
	s, _ := New(1)
	b, err := s.Encode(&JobStopped{key("a"), "cut \xc3"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Decode(b)
	if err != nil || f.(*JobStopped).Reason != "cut \xc3" {
		t.Fatal(f, err)
	}
}

// After a restore nothing is placed on a node before its agent has said what it
// runs: not where it served, not where it booted then, and not where it is found.
func TestNobodyIsHeardAfterARestore(t *testing.T) {
	l := newLog(t)
	launch := func(id muster.NodeID) {
		l.must(&NodeLaunching{ID: id, Token: muster.Token("t-" + id), Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o"}})
		l.must(&NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)})
	}
	launch("served")
	l.must(&NodeJoined{ID: "served"})
	launch("lost")
	l.must(&NodeJoined{ID: "lost"})
	l.must(&NodeHealthChanged{ID: "lost", Health: muster.NodeLost, Reason: "no answer"})
	launch("booting")
	l.must(&EpochBegan{Epoch: 5})
	l.must(&NodeAdopted{ID: "found", Token: "t-found", Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o"}})
	launch("launched")
	want := map[muster.NodeID]muster.NodeHealth{"served": muster.NodeUnready, "lost": muster.NodeLost, "booting": muster.NodeUnready, "found": muster.NodeUnready, "launched": muster.NodeGood}
	for id, health := range want {
		l.must(&NodeJoined{ID: id})
		if n := l.s.Latest().Node(id); n.Health != health || n.Stage != muster.NodeServing {
			t.Errorf("node %s joined: %s %s, want %s", id, n.Stage, n.Health, health)
		}
	}
	for id := range want {
		l.must(&NodeHealthChanged{ID: id, Health: muster.NodeGood})
		if n := l.s.Latest().Node(id); !n.Schedulable() || n.Unheard {
			t.Errorf("node %s was heard: %+v", id, n)
		}
	}
}

// Of a node that is gone it may be told later what had been stored; counted once.
func TestOutputOfAGoneNodeIsToldLater(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 4)
	l.submit("a", spec(1))
	l.place("ua", 1, 0, 1, "n1")
	l.must(&NodeGone{ID: "n1"})
	told := Output{Stage: OutputIncomplete, Why: "gone", Stdout: Stream{Size: 9}, BlobBytes: 9}
	for range 2 {
		l.must(&OutputStored{"ua-0-1", told})
		if a, j := l.s.Latest().Alloc("ua-0-1"), l.s.Latest().JobByUID("ua"); a.Output.BlobBytes != 9 || a.Output.Stdout.Size != 9 || j.OutputBytes != 9 {
			t.Errorf("output %+v, the job counts %d", a.Output, j.OutputBytes)
		}
	}
	for _, late := range []Output{{Stage: OutputComplete, BlobBytes: 20}, {Stage: OutputIncomplete}} {
		l.must(&OutputStored{"ua-0-1", late})
		if a := l.s.Latest().Alloc("ua-0-1"); a.Output.Stage != OutputIncomplete || a.Output.BlobBytes != 9 {
			t.Errorf("after %+v: %+v", late, a.Output)
		}
	}
}

// Two fields of one key would be written as neither: the encoder drops both and says nothing.
func TestKeysAreUnique(t *testing.T) {
	rows := []any{Run{}, Job{}, Member{}, Alloc{}, Node{}, Pool{}, Meta{}, Receipt{}, Breaker{}, Cost{}, PoolCost{}, Reservation{}, PlansRefused{}}
	for _, f := range goldenFacts() {
		rows = append(rows, reflect.ValueOf(f).Elem().Interface())
	}
	for _, r := range rows {
		typ, seen := reflect.TypeOf(r), map[string]string{}
		for i := range typ.NumField() {
			key, _, _ := strings.Cut(typ.Field(i).Tag.Get("cbor"), ",")
			if key == "" || key == "-" {
				continue
			}
			if other, twice := seen[key]; twice {
				t.Errorf("%s: %s and %s have key %s", typ, other, typ.Field(i).Name, key)
			}
			seen[key] = typ.Field(i).Name
		}
	}
}

func TestReceiptsAreKeptForTime(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: 2})
	submit := func(k string) *Submitted {
		t.Helper()
		return l.must(&JobSubmitted{Key: key("a"), UID: "ua", Spec: spec(1), Idempotency: k, Digest: "d"}).(*Submitted)
	}
	submit("first")
	for i := range maxReceipts + 100 {
		if submit(fmt.Sprint(i)).Repeated {
			t.Fatalf("key %d is new", i)
		}
	}
	l.sleep(9 * time.Minute)
	if !submit("first").Repeated {
		t.Error("forgotten within its time, as many came after it")
	}
	l.sleep(2 * time.Minute)
	for i := range maxReceipts {
		submit(fmt.Sprint("later", i))
	}
	if n := l.s.t.receipts.Len(); n != maxReceipts || l.s.t.receiptN.Len() != n {
		t.Errorf("%d receipts by key, %d by age; those of before their time was over are to be forgotten", n, l.s.t.receiptN.Len())
	}
	if submit("first").Repeated {
		t.Error("remembered after its time")
	}
}

func TestReceiptsAreBoundedByBytes(t *testing.T) {
	l := newLog(t)
	l.must(&FormatRaised{Format: 2})
	long := strings.Repeat("k", 1<<20)
	submit := func(i int) *Submitted {
		return l.must(&JobSubmitted{Key: key("a"), UID: "ua", Spec: spec(1), Idempotency: long + fmt.Sprint(i), Digest: "d"}).(*Submitted)
	}
	for i := range 70 {
		submit(i)
	}
	if n := l.s.t.receiptBytes; n > maxReceiptBytes || n < maxReceiptBytes-2<<20 {
		t.Errorf("receipts take %d bytes; at most %d", n, maxReceiptBytes)
	}
	if !submit(69).Repeated || !submit(10).Repeated || submit(0).Repeated {
		t.Error("the oldest are forgotten, and no others")
	}
	restored, _ := New(16)
	if err := restored.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	if restored.t.receiptBytes != l.s.t.receiptBytes {
		t.Errorf("%d bytes after a restore, %d before", restored.t.receiptBytes, l.s.t.receiptBytes)
	}
}

// Receipts of format 1 have no time. They count from when the gate is raised.
func TestReceiptsOfFormat1(t *testing.T) {
	l := newLog(t)
	submit := func(k string) *Submitted {
		return l.must(&JobSubmitted{Key: key("a"), UID: "ua", Spec: spec(1), Idempotency: k, Digest: "d"}).(*Submitted)
	}
	submit("old")
	l.sleep(time.Hour)
	l.must(&FormatRaised{Format: 2})
	l.sleep(9 * time.Minute)
	submit("new")
	if !submit("old").Repeated {
		t.Error("forgotten at once after an upgrade")
	}
}
