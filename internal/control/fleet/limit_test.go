package fleet_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
)

// longCalls is a provider whose calls may take five minutes. It notes the shortest time that each kind of call is given.
type longCalls struct {
	cloud.Provider
	mu    sync.Mutex
	given map[string]time.Duration
}

func (l *longCalls) CallLimit() time.Duration { return 5 * time.Minute }

func (l *longCalls) note(ctx context.Context, call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	due, _ := ctx.Deadline()
	if left := time.Until(due); l.given[call] == 0 || left < l.given[call] {
		l.given[call] = left
	}
}

func (l *longCalls) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	l.note(ctx, "create")
	return l.Provider.Create(ctx, intents)
}

func (l *longCalls) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	l.note(ctx, "destroy")
	return l.Provider.Destroy(ctx, ids)
}

func (l *longCalls) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	l.note(ctx, "list")
	return l.Provider.List(ctx, cursor)
}

func (l *longCalls) Offers(ctx context.Context) ([]muster.Offering, error) {
	l.note(ctx, "offers")
	return l.Provider.Offers(ctx)
}

// F-L3: a call may take as long as the configuration of its provider allows.
func TestCallsMayTakeTheirProvidersTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		l := &longCalls{given: map[string]time.Duration{}}
		w.wrap = func(p cloud.Provider) cloud.Provider { l.Provider = p; return l }
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		w.until("its node is gone", 2*time.Minute, func(s *state.Snapshot) bool {
			live := 0
			s.LiveNodes(func(*state.Node) bool { live++; return true })
			return live == 0
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, call := range []string{"create", "destroy", "list", "offers"} {
			if l.given[call] < l.CallLimit() {
				t.Errorf("%s is given %s", call, l.given[call])
			}
		}
	})
}
