package fencing

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// ends counts how often a lease has ended its machine, and when.
type ends struct {
	mu   sync.Mutex
	at   []time.Duration
	fail bool
}

func (e *ends) add(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = append(e.at, d)
}

func (e *ends) all() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.at)
}

func watchLease(t *testing.T, dir string, e *ends) (l *Lease, stop func()) {
	t.Helper()
	began := time.Now()
	l, err := LoadLease(dir, func(context.Context) error {
		e.add(time.Since(began))
		if e.fail {
			return errors.New("no")
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { l.Watch(ctx); close(done) }()
	return l, func() { cancel(); <-done }
}

// A machine to which no server has spoken for its lease ends itself, and not before; who is
// spoken to does not.
func TestExpiredLeaseEndsTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &ends{}
		l, stop := watchLease(t, t.TempDir(), e)
		defer stop()
		time.Sleep(24 * time.Hour)
		if len(e.all()) != 0 {
			t.Fatal("ended without a lease")
		}
		began := time.Now()
		for range 10 {
			if err := l.Renew(time.Hour.Milliseconds()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Minute)
			synctest.Wait()
		}
		if len(e.all()) != 0 {
			t.Fatal("ended although a server spoke to it")
		}
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if len(e.all()) != 1 || e.all()[0]-24*time.Hour != 9*50*time.Minute+time.Hour {
			t.Errorf("ended at %v after %s", e.all(), time.Since(began))
		}
	})
}

// A held node is sent no lease, and ends nothing; its hold over, it has one again.
func TestHeldNodeHasNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &ends{}
		l, stop := watchLease(t, t.TempDir(), e)
		defer stop()
		for _, millis := range []int64{time.Hour.Milliseconds(), 0} {
			if err := l.Renew(millis); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Hour)
		synctest.Wait()
		if len(e.all()) != 0 {
			t.Error("a held node has ended")
		}
		if err := l.Renew(time.Hour.Milliseconds()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if len(e.all()) != 1 {
			t.Errorf("%v", e.all())
		}
	})
}

// An agent that is started again while no server is there still has its lease, and tries again what
// failed.
func TestLeaseOutlivesTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		e := &ends{fail: true}
		l, stop := watchLease(t, dir, e)
		if err := l.Renew(time.Hour.Milliseconds()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Minute)
		stop()
		_, stop = watchLease(t, dir, e)
		defer stop()
		time.Sleep(59 * time.Minute)
		if len(e.all()) != 0 {
			t.Fatal("ended too early")
		}
		time.Sleep(3*time.Minute + time.Second)
		synctest.Wait()
		if len(e.all()) != 3 || e.all()[0] != time.Hour {
			t.Errorf("tried at %v", e.all())
		}
	})
}
