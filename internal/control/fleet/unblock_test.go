package fleet_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// lockedOut is a provider that refuses its caller until it is told to let it in.
type lockedOut struct {
	cloud.Provider
	in    atomic.Bool
	calls atomic.Int64
}

func (l *lockedOut) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	l.calls.Add(1)
	if l.in.Load() {
		return l.Provider.Create(ctx, intents)
	}
	out := make([]cloud.Created, len(intents))
	for i := range out {
		out[i].Err = muster.Faultf(muster.FaultAuth, "the key is not known")
	}
	return out
}

// F-U8: once an operator has corrected what a provider refused for, it is asked again at once.
func TestUnblockAsksTheProviderAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &lockedOut{}
		w.wrap = func(p cloud.Provider) cloud.Provider { l.Provider = p; return l }
		w.start()
		w.submit("a", 1, 2, "true")
		time.Sleep(20 * time.Minute) // the block has grown to ten minutes
		until := func() (last muster.Time) {
			for _, b := range w.fleet.Blocks() {
				last = max(last, b.Until)
			}
			return last
		}
		if left := time.Until(until().Std()); left < time.Minute {
			time.Sleep(left + time.Minute)
		}
		if left := time.Until(until().Std()); left < time.Minute {
			t.Fatalf("blocked for another %s", left)
		}
		l.in.Store(true)
		if n := w.fleet.Unblock("p"); n == 0 {
			t.Error("no block ended")
		}
		w.until("the job's end", 20*time.Second, ended("a", muster.JobSucceeded))
		if n := w.fleet.Unblock("p"); n != 0 {
			t.Errorf("%d blocks ended, and there were none", n)
		}
	})
}
