package reaper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// half ends a job of two members of which one succeeded with output, and the other failed.
func (r *rig) half(name string) muster.JobUID {
	r.t.Helper()
	uid := r.endedOf(2, "default", name, 10, state.OutputComplete)
	r.must(&state.PlanCommitted{Placements: []state.Placement{{UID: uid, Version: 1, Index: 1, Attempt: 1, Node: "n1"}}})
	r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{
		ID: muster.NewAllocID(uid, 1, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeFailed, ExitCode: 1,
		Failure: &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonExit, Message: "m"}, Output: &state.Output{Stage: state.OutputComplete},
	}}})
	return uid
}

// retried is a log in which a job is retried between the reaper's look at it and the deletion.
type retried struct {
	*rig
	uid  muster.JobUID
	left int
}

func (s *retried) Latest() *state.Snapshot {
	snap := s.l.Latest()
	if s.left--; s.left == 0 {
		s.must(&state.JobRetried{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: s.uid})
	}
	return snap
}

// What succeeded keeps its output when a job is retried, even if its retention ends at that moment.
func TestOutputOfARetriedJobStays(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"forgotten", Config{Jobs: time.Hour}},
		{"pruned by age", Config{Jobs: 24 * time.Hour, Output: time.Hour}},
		{"pruned by quota", Config{Jobs: 24 * time.Hour, Quota: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.node("n1")
				uid := r.half("a")
				time.Sleep(2 * time.Hour)
				kept := func(when string) {
					t.Helper()
					list, err := r.s.List(t.Context(), blob.StreamKey("default", uid, muster.NewAllocID(uid, 0, 1), "stdout", 0))
					if j := r.l.Latest().JobByUID(uid); err != nil || len(list) == 0 || j == nil || j.OutputBytes != 10 {
						t.Errorf("%s: the output is gone: %v, %v, %+v", when, list, err, j)
					}
				}
				// While a request retries it, it is left alone.
				busy := &wait.InUse[muster.JobUID]{}
				busy.TryTake(uid)
				c.cfg.InUse = busy
				if err := r.sweep(c.cfg); err == nil {
					t.Error("a sweep that left a job out says that it is done")
				}
				kept("in use")
				busy.Leave(uid)
				// Retried after the sweep has chosen it.
				c.cfg.State, c.cfg.Proposer, c.cfg.Blobs = &retried{r, uid, 1}, r.l, r.s
				if c.name != "forgotten" {
					c.cfg.State.(*retried).left = 2 // the first look is for jobs to forget
				}
				p, err := New(c.cfg)
				if err != nil {
					t.Fatal(err)
				}
				_ = p.step(t.Context(), time.Now())
				if j := r.l.Latest().JobByUID(uid); j == nil || j.Stage != muster.JobLive {
					t.Fatalf("the job was not retried: %+v", j)
				}
				kept("retried")
				if !busy.TryTake(uid) {
					t.Error("the job is in use after the sweep")
				}
			})
		})
	}
}
