package reaper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// A row that is not in the history yet stays in the state, unless there are very many.
func TestJobsThatAreNotInTheHistoryStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.node("n1")
		r.ended("a", 0, state.OutputComplete)
		kept := r.l.Latest().Index()
		r.ended("b", 0, state.OutputComplete)
		time.Sleep(time.Hour)
		sweep := func(cfg Config, want int) {
			t.Helper()
			cfg.Jobs = time.Minute
			if err := r.sweep(cfg); err != nil {
				t.Fatal(err)
			}
			if n := r.l.Latest().EndedJobCount(); n != want {
				t.Errorf("%d ended jobs, want %d", n, want)
			}
		}
		sweep(Config{Kept: func() uint64 { return 0 }}, 2)
		sweep(Config{Kept: func() uint64 { return kept }}, 1)
		r.ended("c", 0, state.OutputComplete)
		r.ended("d", 0, state.OutputComplete)
		sweep(Config{Kept: func() uint64 { return kept }, MaxJobs: 2}, 3)
		// The store has not been written for so long that memory comes first.
		sweep(Config{Kept: func() uint64 { return kept }, MaxJobs: 1}, 1)
	})
}

func TestAttemptsThatAreNotInTheHistoryStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.large()
		uid := r.submit(&api.JobSpec{Name: "svc", Type: "service", Count: 1})
		for range 5 {
			r.place(uid)
			r.end(uid, muster.OutcomeSucceeded)
		}
		if err := r.sweep(Config{Attempts: 2, Kept: func() uint64 { return 0 }}); err != nil {
			t.Fatal(err)
		}
		count := func() (n int) {
			r.l.Latest().JobAllocs(uid, 0, func(*state.Alloc) bool { n++; return true })
			return n
		}
		before := count()
		if before < 5 {
			t.Errorf("%d attempts are left", before)
		}
		if err := r.sweep(Config{Attempts: 2}); err != nil {
			t.Fatal(err)
		}
		if n := count(); n >= before {
			t.Errorf("%d of %d attempts are left", n, before)
		}
	})
}
