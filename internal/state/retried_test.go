package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// statuses of the members of a job that have a row, by index.
func statuses(s *Snapshot, uid muster.JobUID) string {
	var out []string
	s.Members(uid, 0, func(m *Member) bool {
		out = append(out, fmt.Sprintf("%d:%s/%d", m.Index, m.Status, m.Attempt))
		return true
	})
	return strings.Join(out, " ")
}

func (l *log) retry(f *JobRetried) *Retried {
	l.t.Helper()
	r := l.must(f).(*Retried)
	check(l.t, l.s.Latest())
	return r
}

// refused proposes a retry that must be refused for a reason with these words, and must change nothing.
func (l *log) refused(f *JobRetried, words string) {
	l.t.Helper()
	_, err := l.do(f)
	if err == nil || !strings.Contains(err.Error(), words) {
		l.t.Errorf("%+v: %v, want %q", f, err, words)
	}
}

// failSome ends a job of four members: 0 and 3 succeed, 1 and 2 fail.
func failSome(l *log) {
	l.t.Helper()
	l.submit("a", spec(4))
	l.serve("n1", 4)
	for i := range 4 {
		l.place("ua", 1, i, 1, "n1")
	}
	l.report("n1", succeeded("ua-0-1"), failed("ua-1-1", muster.FailureUser, muster.ReasonExit, 1),
		failed("ua-2-1", muster.FailureUser, muster.ReasonExit, 1), succeeded("ua-3-1"))
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobFailed {
		l.t.Fatalf("%+v", j)
	}
}

func TestRetryRunsOnlyWhatFailed(t *testing.T) {
	l := newLog(t)
	failSome(l)
	kept := l.s.Latest().Alloc("ua-0-1")
	if r := l.retry(&JobRetried{Key: key("a"), UID: "ua"}); r.Members != 2 || r.Repeated {
		t.Errorf("%+v", r)
	}
	s := l.s.Latest()
	j := s.Job(key("a"))
	if j.Stage != muster.JobLive || j.Waiting() != 2 || j.Succeeded != 2 || j.Failed != 0 || j.Result != "" || j.Reason != "" || j.Ended != 0 || j.Version != 1 || s.EndedJobCount() != 0 {
		t.Errorf("%+v", j)
	}
	if got := statuses(s, "ua"); got != "0:succeeded/1 1:waiting/1 2:waiting/1 3:succeeded/1" {
		t.Error(got)
	}
	if s.Retries("ua").CountDue(2, s.Meta().Time) != 2 {
		t.Error("members that are retried have to wait")
	}
	// Attempts go on, and the first failure of the retry is the first of its budget.
	l.place("ua", 1, 1, 2, "n1")
	l.place("ua", 1, 2, 2, "n1")
	l.report("n1", succeeded("ua-1-2"), failed("ua-2-2", muster.FailureUser, muster.ReasonExit, 1))
	check(t, l.s.Latest())
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobFailed || j.Reason != "1 of 4 members failed" || j.Succeeded != 3 {
		t.Errorf("%+v", j)
	}
	if m := l.s.Latest().Member("ua", 2); m.UserFailures != 1 {
		t.Errorf("%+v", m)
	}
	l.retry(&JobRetried{Key: key("a"), UID: "ua"})
	l.place("ua", 1, 2, 3, "n1")
	l.report("n1", succeeded("ua-2-3"))
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobSucceeded || j.Reason != "" {
		t.Errorf("%+v", j)
	}
	if l.s.Latest().Alloc("ua-0-1") != kept {
		t.Error("the allocation of a member that had succeeded has changed")
	}
	l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "job a succeeded")
	l.refused(&JobRetried{Key: key("a"), UID: "ua", All: true}, "job a succeeded")
}

func TestRetryGivesAllAttemptsAndNodesBack(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(2, func(s *api.JobSpec) { s.Restart.Attempts = 2; s.Restart.On = []string{"any"} }))
	for i := range maxFailedNodes {
		n := fmt.Sprintf("n%d", i)
		l.serve(n, 2)
		l.place("ua", 1, 0, i+1, n)
		l.report(n, failed(muster.NewAllocID("ua", 0, i+1), muster.FailureNode, muster.ReasonNodeFault, 0))
	}
	if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberFailed {
		t.Fatalf("%+v", m)
	}
	// The job is live: its other member never ran. It is left alone.
	if r := l.retry(&JobRetried{Key: key("a"), UID: "ua"}); r.Members != 1 {
		t.Errorf("%+v", r)
	}
	m := l.s.Latest().Member("ua", 0)
	if m.Status != muster.MemberWaiting || m.FailedNodes != nil || m.Attempt != maxFailedNodes || m.Reason != "" {
		t.Errorf("%+v", m)
	}
	if j := l.s.Latest().Job(key("a")); j.Untried() != 1 || j.Retrying != 1 {
		t.Errorf("%+v", j)
	}
	l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "is running, and no member of it has failed")
	l.refused(&JobRetried{Key: key("a"), UID: "ua", Members: []int{0, 1}}, "member 0 is waiting, member 1 is waiting")
}

func TestRetryOfListedMembers(t *testing.T) {
	l := newLog(t)
	failSome(l)
	l.refused(&JobRetried{Key: key("a"), UID: "ua", Members: []int{1, 0, 3}}, "member 0 succeeded, member 3 succeeded, and only")
	l.refused(&JobRetried{Key: key("a"), UID: "ua", Members: []int{1, 4}}, "has no member 4: its members are 0 to 3")
	l.refused(&JobRetried{Key: key("a"), UID: "ua", Members: []int{-1}}, "has no member -1")
	if got := statuses(l.s.Latest(), "ua"); got != "0:succeeded/1 1:failed/1 2:failed/1 3:succeeded/1" {
		t.Fatalf("a refused retry left %s", got)
	}
	if r := l.retry(&JobRetried{Key: key("a"), UID: "ua", Members: []int{2, 2}}); r.Members != 1 {
		t.Errorf("%+v", r)
	}
	if j := l.s.Latest().Job(key("a")); j.Failed != 1 || j.Waiting() != 1 {
		t.Errorf("%+v", j)
	}
	// The job ends with what is left, and says so.
	l.place("ua", 1, 2, 2, "n1")
	l.report("n1", succeeded("ua-2-2"))
	if j := l.s.Latest().Job(key("a")); j.Result != muster.JobFailed || j.Reason != "1 of 4 members failed" {
		t.Errorf("%+v", j)
	}
}

// Members that were stopped before they were placed have no row. A retry of all puts them back as they were.
func TestRetryOfStoppedMembers(t *testing.T) {
	stopped := func(t *testing.T) *log {
		l := newLog(t)
		l.submit("a", spec(100_000))
		l.serve("n1", 2)
		l.place("ua", 1, 0, 1, "n1")
		l.place("ua", 1, 1, 1, "n1")
		l.report("n1", failed("ua-0-1", muster.FailureUser, muster.ReasonExit, 1))
		l.must(&JobStopped{Key: key("a")})
		l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "is stopping; retry its members when it has ended")
		l.report("n1", AllocUpdate{ID: "ua-1-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
		return l
	}
	t.Run("all", func(t *testing.T) {
		l := stopped(t)
		if r := l.retry(&JobRetried{Key: key("a"), UID: "ua", All: true}); r.Members != 100_000 {
			t.Errorf("%+v", r)
		}
		if j := l.s.Latest().Job(key("a")); j.Untried() != 99_998 || j.Retrying != 2 || j.Stopped != 0 || !j.Unsettled() {
			t.Errorf("%+v", j)
		}
		if got := statuses(l.s.Latest(), "ua"); got != "0:waiting/1 1:waiting/1" {
			t.Error(got)
		}
	})
	t.Run("failed", func(t *testing.T) {
		l := stopped(t)
		if r := l.retry(&JobRetried{Key: key("a"), UID: "ua"}); r.Members != 1 {
			t.Errorf("%+v", r)
		}
		l.place("ua", 1, 0, 2, "n1")
		// A member that was stopped is not placed, whatever a plan says.
		v := l.must(&PlanCommitted{Placements: []Placement{{UID: "ua", Version: 1, Index: 7, Attempt: 1, Node: "n1"}}}).(*PlanResult)
		if v.Placed != 0 || len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, "member 7 is stopped") {
			t.Errorf("%+v", v)
		}
		l.report("n1", succeeded("ua-0-2"))
		check(t, l.s.Latest())
		if j := l.s.Latest().Job(key("a")); j.Result != muster.JobStopped || j.Succeeded != 1 || j.Stopped != 99_999 || j.Reason == "" {
			t.Errorf("%+v", j)
		}
		l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "no member failed; 99999 members of 100000 stopped")
	})
	t.Run("listed, then all", func(t *testing.T) {
		l := stopped(t)
		l.retry(&JobRetried{Key: key("a"), UID: "ua", Members: []int{5}})
		l.place("ua", 1, 5, 1, "n1")
		l.report("n1", succeeded("ua-5-1"))
		if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Result != muster.JobFailed {
			t.Fatalf("%+v", j)
		}
		// It ended as failed, so that what did not run is meant as well.
		if r := l.retry(&JobRetried{Key: key("a"), UID: "ua"}); r.Members != 99_999 {
			t.Errorf("%+v", r)
		}
		if got := statuses(l.s.Latest(), "ua"); got != "0:waiting/1 1:waiting/1 2:waiting/0 3:waiting/0 4:waiting/0 5:succeeded/1" {
			t.Error(got)
		}
		if j := l.s.Latest().Job(key("a")); j.NextIndex != 6 || j.Untried() != 99_994 {
			t.Errorf("%+v", j)
		}
	})
}

// A job that fits nothing fails with all members stopped: once something fits, a retry runs them.
func TestRetryOfAJobThatCouldNotRun(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(3))
	j := l.s.Latest().Job(key("a"))
	l.must(&JobFailed{UID: "ua", Reason: "fits no offering", Modified: j.Modified})
	if r := l.retry(&JobRetried{Key: key("a"), UID: "ua"}); r.Members != 3 {
		t.Errorf("%+v", r)
	}
	if j := l.s.Latest().Job(key("a")); j.Untried() != 3 || j.NextIndex != 0 || j.Reason != "" {
		t.Errorf("%+v", j)
	}
}

func TestRetryIsDoneOncePerKey(t *testing.T) {
	l := newLog(t)
	failSome(l)
	f := &JobRetried{Key: key("a"), UID: "ua", Idempotency: "k", Digest: "d"}
	first := l.retry(f)
	l.place("ua", 1, 1, 2, "n1")
	l.place("ua", 1, 2, 2, "n1")
	l.report("n1", failed("ua-1-2", muster.FailureUser, muster.ReasonExit, 1), succeeded("ua-2-2"))
	again := l.retry(f)
	if again.Members != 2 || !again.Repeated || again.Index != first.Index {
		t.Errorf("%+v, then %+v", first, again)
	}
	if j := l.s.Latest().Job(key("a")); j.Stage != muster.JobEnded || j.Failed != 1 {
		t.Errorf("%+v", j)
	}
	l.refused(&JobRetried{Key: key("a"), UID: "ua", Idempotency: "k", Digest: "other"}, "was used before for another request")
}

func TestRetryIsRefused(t *testing.T) {
	l := newLog(t)
	l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "job a: not found")
	failSome(l)
	l.refused(&JobRetried{Key: key("a"), UID: "another"}, "was submitted again meanwhile")
	l.must(&NamespaceLimited{NamespaceLimits{Name: "default", Jobs: 1}})
	l.submit("b", spec(1))
	l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "may have 1 job unfinished")
	l.must(&NamespaceLimited{NamespaceLimits{Name: "default"}})
	l.must(&JobSubmitted{Key: key("s"), UID: "us", Spec: spec(1, func(s *api.JobSpec) {
		s.Type, s.Restart = string(muster.JobService), api.RestartSpec{}
		s.Defaults()
	})})
	l.refused(&JobRetried{Key: key("s"), UID: "us"}, "is of type service")
	l.must(&JobsPurged{UIDs: []muster.JobUID{"ua"}})
	l.refused(&JobRetried{Key: key("a"), UID: "ua"}, "not found")
	check(t, l.s.Latest())
}

// A retry queues behind what was submitted before it, and counts as a job of its namespace.
func TestRetryComesLast(t *testing.T) {
	l := newLog(t)
	failSome(l)
	l.submit("b", spec(1))
	l.retry(&JobRetried{Key: key("a"), UID: "ua"})
	s := l.s.Latest()
	if a, b := s.Job(key("a")), s.Job(key("b")); a.Age <= b.Age {
		t.Errorf("ages %d and %d", a.Age, b.Age)
	}
	if u := s.Use("default"); u.Jobs != 2 || u.Ended != 0 || u.Waiting != 3 {
		t.Errorf("%+v", u)
	}
	verbs := []Verb{}
	changes, _, _ := l.s.Feed().After(AfterIndex(s.Index()-1), 10)
	for i := range changes {
		verbs = append(verbs, changes[i].Verb)
	}
	if !slices.Equal(verbs, []Verb{VerbJobRetried}) {
		t.Errorf("%v", verbs)
	}
}

// Retrying very many members holds the log up for a time that others do not notice.
func BenchmarkRetryOfManyMembers(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l := newLog(b)
				l.submit("a", spec(n, func(s *api.JobSpec) { s.Resources = api.ResourcesSpec{CPU: 0.001, Memory: api.MinMemory} }))
				room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
				l.must(&NodeLaunching{ID: "n1", Token: "n1", Offering: muster.Offering{Capacity: room}})
				l.must(&NodeLaunched{ID: "n1", Instance: "i"})
				l.must(&NodeJoined{ID: "n1", Capacity: room})
				p, r := &PlanCommitted{}, &AllocsReported{Node: "n1"}
				for i := range n {
					p.Placements = append(p.Placements, Placement{UID: "ua", Version: 1, Index: i, Attempt: 1, Node: "n1"})
					r.Allocs = append(r.Allocs, failed(muster.NewAllocID("ua", i, 1), muster.FailureUser, muster.ReasonExit, 1))
				}
				l.must(p)
				l.must(r)
				b.StartTimer()
				began := time.Now()
				l.must(&JobRetried{Key: key("a"), UID: "ua"})
				b.ReportMetric(float64(time.Since(began).Microseconds())/float64(n), "µs/member")
			}
		})
	}
}
