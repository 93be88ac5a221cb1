package state

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func urgent(s *api.JobSpec) { p := 70; s.Priority = &p }

func preempt(id muster.AllocID, by muster.JobUID) Stop {
	return Stop{Alloc: id, Reason: muster.StopPreempted, For: by, Why: "preempted by job default/b"}
}

// stops applies a plan of stops alone and gives the reasons of those that were refused.
func (l *log) stops(stops ...Stop) string {
	l.t.Helper()
	res := l.must(&PlanCommitted{Stops: stops}).(*PlanResult)
	var why []string
	for _, r := range res.RefusedStops {
		why = append(why, r.Reason)
	}
	if res.Stopped+len(why) != len(stops) {
		l.t.Fatalf("%d stops: %+v", len(stops), res)
	}
	return strings.Join(why, "; ")
}

// A preempted member waits again with no attempt used up, whatever its command answers TERM with.
func TestPreemptedMemberWaitsAgain(t *testing.T) {
	for _, end := range []AllocUpdate{
		{ID: "ua-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeStopped},
		failed("ua-0-1", muster.FailureUser, muster.ReasonExit, 143),
	} {
		l := newLog(t)
		l.submit("a", spec(1))
		l.submit("b", spec(1, urgent))
		l.serve("n1", 1)
		l.place("ua", 1, 0, 1, "n1")
		l.report("n1", AllocUpdate{ID: "ua-0-1", Status: muster.AllocRunning})
		if why := l.stops(preempt("ua-0-1", "ub")); why != "" {
			t.Fatal(why)
		}
		if v := l.place("ub", 1, 0, 1, "n1"); len(v.Refused) != 1 || !strings.Contains(v.Refused[0].Reason, "short of cpu") {
			t.Fatalf("its room was given away before it ended: %+v", v)
		}
		if a := l.s.Latest().Alloc("ua-0-1"); a.Desired != muster.AllocStop || a.StopReason != muster.StopPreempted || a.StopCause != "preempted by job default/b" {
			t.Fatalf("%+v", a)
		}
		l.report("n1", end)
		check(t, l.s.Latest())
		if m := l.s.Latest().Member("ua", 0); m.Status != muster.MemberWaiting || m.UserFailures != 0 || m.Reason != "preempted by job default/b" {
			t.Fatalf("%+v", m)
		}
		if v := l.place("ub", 1, 0, 1, "n1"); v.Placed != 1 {
			t.Fatalf("%+v", v)
		}
	}
}

func TestInvalidStopsAreRefused(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(3))
	l.submit("b", spec(1, urgent))
	l.submit("c", spec(1))
	l.submit("d", spec(1, urgent))
	l.serve("n1", 4)
	l.place("ua", 1, 0, 1, "n1")
	l.place("ua", 1, 1, 1, "n1")
	l.report("n1", succeeded("ua-1-1"))
	l.must(&JobStopped{Key: key("d")})
	for _, tc := range []struct {
		stop Stop
		want string
	}{
		{preempt("ua-9-1", "ub"), "allocation ua-9-1: not found"},
		{preempt("ua-1-1", "ub"), "allocation ua-1-1 has ended"},
		{preempt("ua-0-1", "uc"), "allocation ua-0-1 has priority 50, and job c has 50"},
		{preempt("ua-0-1", "ux"), "job with uid ux: not found"},
		{preempt("ua-0-1", "ud"), "job d is ended"},
		// The operator's node may be held, drain or be full: a stop always fits.
		{preempt("ua-0-1", "ub"), ""},
		{preempt("ua-0-1", "ub"), "allocation ua-0-1 is stopping already"},
		{Stop{Alloc: "ua-0-1", Reason: muster.StopSurplus, For: "ua"}, "allocation ua-0-1 is stopping already"},
	} {
		l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
		if got := l.stops(tc.stop); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc.stop, got, tc.want)
		}
		check(t, l.s.Latest())
	}
}

func TestWholePlanOrNothing(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(3))
	l.submit("b", spec(1, urgent))
	l.serve("n1", 2)
	l.serve("n2", 1)
	l.place("ua", 1, 0, 1, "n1")
	feed := len(l.entries)
	part := func() *PlanCommitted {
		return &PlanCommitted{
			Stops:      []Stop{preempt("ua-0-1", "ub")},
			Placements: []Placement{{UID: "ua", Version: 1, Index: 1, Attempt: 1, Node: "n1"}, {UID: "ua", Version: 1, Index: 2, Attempt: 1, Node: "n2"}, {UID: "ub", Version: 1, Attempt: 1, Node: "n2"}},
		}
	}
	whole := part()
	whole.Whole = true
	v := l.must(whole).(*PlanResult)
	if v.Placed != 0 || v.Stopped != 0 || len(v.Refused) == 0 {
		t.Fatalf("%+v", v)
	}
	changes, _, err := l.s.Feed().After(AfterIndex(uint64(feed)), 100)
	if err != nil || len(changes) != 0 {
		t.Fatalf("changes of a plan that was not committed: %v %v", changes, err)
	}
	check(t, l.s.Latest())
	if a := l.s.Latest().Alloc("ua-0-1"); a.Desired != muster.AllocRun {
		t.Fatalf("%+v", a)
	}
	if l.s.Latest().AllocCount() != 1 || l.s.Latest().Node("n1").LiveAllocs != 1 || l.s.Latest().Job(key("a")).NextIndex != 1 {
		t.Fatal("something of it was committed")
	}
	// The same without "whole": what holds is committed.
	if v := l.must(part()).(*PlanResult); v.Stopped != 1 || v.Placed != 1 || len(v.Refused) != 2 {
		t.Fatalf("%+v", v)
	}
	check(t, l.s.Latest())
	// And a whole one that holds.
	fits := &PlanCommitted{Placements: []Placement{{UID: "ua", Version: 1, Index: 2, Attempt: 1, Node: "n2"}}, Whole: true}
	if v := l.must(fits).(*PlanResult); v.Placed != 1 || len(v.Refused) != 0 {
		t.Fatalf("%+v", v)
	}
	check(t, l.s.Latest())
}
