package fleet_test

import (
	"context"
	"sync"
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
	return refusals(intents, muster.Faultf(muster.FaultAuth, "the key is not known"))
}

// refusals answers each intent with the same fault.
func refusals(intents []cloud.Intent, fault *muster.Fault) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	for i := range out {
		out[i].Err = fault
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

// refuses is a provider that refuses all for a time as invalid, as one whose program is not there.
type refuses struct {
	cloud.Provider
	until time.Time
	mu    sync.Mutex
	times map[muster.OfferingName][]time.Time
}

func (r *refuses) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	r.mu.Lock()
	for _, in := range intents {
		r.times[in.Offering] = append(r.times[in.Offering], time.Now())
	}
	r.mu.Unlock()
	if time.Now().After(r.until) {
		return r.Provider.Create(ctx, intents)
	}
	return refusals(intents, muster.Faultf(muster.FaultInvalid, "no such program"))
}

// What a provider refuses as invalid is asked for again by itself, ever more seldom: after one minute, and after two more.
func TestInvalidRequestIsMadeAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		r := &refuses{until: time.Now().Add(2 * time.Minute), times: map[muster.OfferingName][]time.Time{}}
		w.wrap = func(p cloud.Provider) cloud.Provider { r.Provider = p; return r }
		w.start()
		w.submit("a", 1, 2, "true")
		w.until("the job's end", 5*time.Minute, ended("a", muster.JobSucceeded))
		r.mu.Lock()
		defer r.mu.Unlock()
		asked := 0
		for offering, times := range r.times {
			for i := range times[1:] {
				want := time.Minute << i
				if got := times[i+1].Sub(times[i]); got < want*9/10 || got > want*3/2 {
					t.Errorf("%s was asked for again after %s, want about %s", offering, got, want)
				}
			}
			asked = max(asked, len(times))
		}
		if asked != 3 {
			t.Errorf("asked at %v", r.times)
		}
	})
}
