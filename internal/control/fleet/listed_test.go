package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
)

// slowCreate is a provider whose create makes all instances at once and answers late; refuse: with this error.
type slowCreate struct {
	cloud.Provider
	after  time.Duration
	refuse error
}

func (s *slowCreate) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := s.Provider.Create(ctx, intents)
	select {
	case <-ctx.Done():
	case <-time.After(s.after):
	}
	for i := range out {
		if s.refuse != nil {
			out[i] = cloud.Created{Err: s.refuse}
		}
	}
	return out
}

// TestInstanceListedBeforeCreateAnswers: D19, F-M5. An instance that a list shows is used although its create call goes on.
func TestInstanceListedBeforeCreateAnswers(t *testing.T) {
	for name, refuse := range map[string]error{
		"answered late":           nil,
		"refused late":            muster.Faultf(muster.FaultCapacity, "no room after all"),
		"late answer without use": muster.Faultf(muster.FaultAmbiguous, "something happened"),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.wrap = func(p cloud.Provider) cloud.Provider { return &slowCreate{p, 40 * time.Second, refuse} }
				w.start()
				w.submit("a", 3, 2, "sleep 60s ; true")
				began := time.Now()
				w.until("all members run", 30*time.Second, running("a", 3))
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the members run after %s, with instances that were listed at once", took)
				}
				w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
				w.log.Latest().Members("ua", 0, func(m *state.Member) bool {
					if m.Attempt != 1 {
						t.Errorf("member %d used %d attempts", m.Index, m.Attempt)
					}
					return true
				})
				if c := w.cloud.Calls(); c.Intents != 3 {
					t.Errorf("%d intents for three nodes", c.Intents)
				}
				w.until("no node", time.Minute, noNodes)
			})
		})
	}
}
