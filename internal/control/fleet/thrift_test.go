package fleet_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// sparing is a cloud that counts lists, and may have few calls left.
type sparing struct {
	cloud.Provider
	scarce atomic.Bool
	lists  atomic.Int64
}

func (s *sparing) Scarce() bool { return s.scarce.Load() }

func (s *sparing) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	s.lists.Add(1)
	return s.Provider.List(ctx, cursor)
}

// An idle fleet lists once a minute, and every five while its cloud has few calls left. Work is not
// held up by that.
func TestSweepsAreRareWhileCallsAreScarce(t *testing.T) {
	inBubble(t, func(w *world) {
		s := &sparing{}
		w.wrap = func(p cloud.Provider) cloud.Provider { s.Provider = p; return s }
		w.start()
		time.Sleep(time.Minute)
		inAnHour := func() int64 {
			before := s.lists.Load()
			time.Sleep(time.Hour)
			return s.lists.Load() - before
		}
		if n := inAnHour(); n < 59 || n > 61 {
			t.Errorf("%d lists in an hour", n)
		}
		s.scarce.Store(true)
		time.Sleep(5 * time.Minute)
		if n := inAnHour(); n < 11 || n > 13 {
			t.Errorf("%d lists in an hour with few calls left", n)
		}
		w.submit("a", 1, 1, "true")
		w.until("the job's end", 5*time.Second, ended("a", muster.JobSucceeded))
	})
}
