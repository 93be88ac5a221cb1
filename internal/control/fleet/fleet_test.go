package fleet_test

import (
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

func TestF11SixtyFourWanted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		began := time.Now()
		w.submit("a", 64, 2, "sleep 5s")
		w.until("all launched", time.Second, func(s *state.Snapshot) bool { return s.LiveNodeCount() == 64 })
		w.until("all run", 3*time.Second, running("a", 64))
		t.Logf("64 run after %s", time.Since(began))
	})
}
