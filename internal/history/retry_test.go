package history

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// retry retries a job of the rig, and ends its second attempt with an exit code; -1: it goes on.
func (r *rig) retry(uid muster.JobUID, attempt, code int) {
	r.Helper()
	r.must(&state.JobRetried{Key: r.l.Latest().JobByUID(uid).Key, UID: uid})
	if code < 0 {
		return
	}
	r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Attempt: attempt, Node: "n1"}}})
	end := state.AllocUpdate{ID: muster.NewAllocID(uid, 0, attempt), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}
	if code != 0 {
		end.Outcome, end.ExitCode = muster.OutcomeFailed, code
		end.Failure = &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "the command exited"}
	}
	r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{end}})
}

// A job that is retried is missing until it ends again, and then there once, with all attempts.
func TestARetriedJobEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s, stop := r.run()
		defer stop()
		uid := r.job("x", 3)
		r.settle(s)
		if got := r.list(s, Query{Name: "x"}); len(got.Jobs) != 1 || got.Jobs[0].Status != "failed" {
			t.Fatalf("%+v", got)
		}
		time.Sleep(time.Hour)
		r.retry(uid, 2, -1)
		r.settle(s)
		for _, q := range []Query{{}, {Name: "x"}, {Namespace: "default"}, {Status: "failed"}} {
			if got := r.list(s, q); len(got.Jobs) != 0 {
				t.Errorf("%+v: a job that runs again is among the ended ones: %+v", q, got.Jobs)
			}
		}
		if _, err := s.Show(&One{ID: string(uid), Limit: 10}); err == nil {
			t.Error("a job that runs again is shown as ended")
		}
		r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Attempt: 2, Node: "n1"}}})
		r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID(uid, 0, 2), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}}})
		r.settle(s)
		got := r.list(s, Query{Name: "x"})
		if len(got.Jobs) != 1 || got.Jobs[0].Status != "succeeded" || got.Jobs[0].Attempts != 2 || got.Jobs[0].Failed != 0 || got.Jobs[0].Reason != "" {
			t.Errorf("%+v", got.Jobs)
		}
		if one, err := s.Show(&One{ID: string(uid), Limit: 10}); err != nil || len(one.Attempts) != 2 {
			t.Errorf("%+v, %v", one, err)
		}
	})
}

// Whatever a server saw of retries, it comes to the same content.
func TestRetriesThatAServerMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		all, off, late := r.dir, t.TempDir(), t.TempDir()
		s, stop := r.run()
		r.dir = off
		so, stopOff := r.run()
		runs, done, again := r.job("runs", 1), r.job("done", 1), r.job("again", 1)
		r.settle(s)
		r.settle(so)
		stopOff()
		time.Sleep(time.Minute)
		r.retry(runs, 2, -1)
		r.retry(done, 2, 0)
		r.retry(again, 2, 7)
		r.retry(again, 3, 0)
		r.settle(s)
		stop()
		for _, dir := range []string{off, late} {
			r.dir = dir
			s, stop = r.run()
			r.settle(s)
			if got := r.list(s, Query{}); len(got.Jobs) != 2 {
				t.Errorf("%s", ids(got))
			}
			stop()
			if r.dump(dir) != r.dump(all) {
				t.Errorf("a server that missed retries has another content:\n%s\nwant\n%s", r.dump(dir), r.dump(all))
			}
		}
	})
}
