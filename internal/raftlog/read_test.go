package raftlog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A leader that was cut off and does not know yet that the others have elected another one.
func TestReadIndexOfADeposedLeader(t *testing.T) {
	g := startTrio(t)
	old := g.leader(-1)
	before, err := g.nodes[old].ReadIndex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.cut(old)
	next := g.leader(old)
	r := g.nodes[next].mustPropose(t, "confirmed elsewhere")
	// It is asked for as long as it believes that it leads, and after. The term of the others tells it.
	for range 100 {
		if index, err := g.nodes[old].ReadIndex(t.Context()); err == nil {
			t.Fatalf("the old leader reads at %d (it was at %d), and another one has confirmed %d", index, before, r.Index)
		} else if !errors.Is(err, ErrNotLeader) {
			t.Fatal(err)
		}
	}
	if index, err := g.nodes[next].ReadIndex(t.Context()); err != nil || index < r.Index {
		t.Errorf("the new leader reads at %d, %v", index, err)
	}
}

func TestReadsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := rounds{ending: ctx}
		var mu sync.Mutex
		var began []time.Time
		round := func(ctx context.Context) error {
			mu.Lock()
			began = append(began, time.Now())
			n := len(began)
			mu.Unlock()
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
			if n == 2 {
				return ErrNotLeader
			}
			return nil
		}
		results := make(chan error, 100)
		var wg sync.WaitGroup
		// One begins; while it runs, many come.
		for i := range 100 {
			wg.Go(func() {
				if i > 0 {
					time.Sleep(time.Duration(i) * 50 * time.Microsecond)
				}
				asked := time.Now()
				err := r.wait(t.Context(), round)
				mu.Lock()
				defer mu.Unlock()
				// Its round is the first that began when it had asked, or later.
				served := began[len(began)-1]
				if served.Before(asked) {
					t.Errorf("asked at %v, answered by a round of %v", asked, served)
				}
				results <- err
			})
		}
		wg.Wait()
		close(results)
		refused := 0
		for err := range results {
			if errors.Is(err, ErrNotLeader) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		// All who came during the first share the second, with its answer.
		if len(began) != 2 || refused != 99 {
			t.Errorf("%d rounds, %d refused", len(began), refused)
		}
		// Who gives up does not end the round for others, and the next one begins anew.
		short, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		if err := r.wait(short, round); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("gave up: %v", err)
		}
		if err := r.wait(t.Context(), round); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if r.running {
			t.Error("rounds go on though nobody waits")
		}
	})
}
