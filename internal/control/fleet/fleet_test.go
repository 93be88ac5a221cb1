package fleet_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

func TestLaunchRunIdleGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		began := time.Now()
		w.submit("a", 4, 1, "print hello ; sleep 100ms ; true")
		w.until("the job's end", 2*time.Second, ended("a", muster.JobSucceeded))
		t.Logf("four members of 0.1 s on machines that were not there: %s", time.Since(began))
		if n := len(w.cloud.Instances()); n != 2 {
			t.Errorf("%d instances for four members of one core", n)
		}
		w.until("no node", 20*time.Second, noNodes)
		if took := time.Since(began); took < 10*time.Second || took > 13*time.Second {
			t.Errorf("idle nodes were gone after %s, the time-out is 10s", took)
		}
		synctest.Wait()
		if left := w.cloud.Instances(); len(left) > 0 {
			t.Errorf("instances left: %v", left)
		}
		w.startedOnce()
	})
}

func TestSixtyFourWanted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		began := time.Now()
		w.submit("a", 64, 2, "sleep 5s")
		w.until("all launched", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 64 })
		w.until("all run", 3*time.Second, running("a", 64))
		t.Logf("64 run after %s", time.Since(began))
	})
}

// A job that is committed while one of the loops is slow to take its first snapshots is seen by all: it does not wait for the
// next resync.
func TestNothingIsMissedAtTheStart(t *testing.T) {
	for k := range 8 {
		inBubble(t, func(w *world) {
			reads := atomic.Int64{}
			w.read = func() {
				if reads.Add(1) == int64(k+1) {
					time.Sleep(100 * time.Millisecond)
				}
			}
			w.start()
			time.Sleep(50 * time.Millisecond)
			w.submit("a", 1, 1, "true")
			w.until("the job's end", 5*time.Second, ended("a", muster.JobSucceeded))
		})
	}
}

// While the scheduler is paused no machine is bought for what waits, and the pool keeps its minimum.
func TestPausedLaunchesNothingForWhatWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		w.pool.Min, w.paused = 1, true
		w.start()
		w.submit("a", 64, 2, "sleep 5s")
		w.until("the minimum", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 1 })
		time.Sleep(10 * time.Minute)
		if n := len(w.cloud.Instances()); n != 1 {
			t.Errorf("%d instances, the minimum is 1", n)
		}
		waits := w.fleet.Decisions().Waits
		if len(waits) != 1 || waits[0].Members != 63 || !strings.HasPrefix(waits[0].Reason, "the scheduler is paused") {
			t.Errorf("%+v", waits)
		}
		w.stop()
		w.paused = false
		w.start()
		w.until("all launched", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 64 })
	})
}
