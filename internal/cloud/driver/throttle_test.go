package driver

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// account lets calls through by a token bucket, and refuses the others at once.
type account struct {
	mu              sync.Mutex
	size, perSecond float64
	level           float64
	at              time.Time
	calls, refused  int
}

func (a *account) call(latency time.Duration) bool {
	time.Sleep(latency)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.level = min(a.size, a.level+a.perSecond*time.Since(a.at).Seconds())
	a.at = time.Now()
	a.calls++
	if a.level < 1 {
		a.refused++
		return false
	}
	a.level--
	return true
}

// all makes n calls at once, each until it is taken, and returns how long that took.
func (a *account) all(t *testing.T, th *Throttle, n int, latency time.Duration) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for taken := false; !taken; {
				left, ok := th.Enter(t.Context())
				if !ok {
					t.Error("it gave up")
					return
				}
				taken = a.call(latency)
				left(!taken)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// However slow an account is, many calls take at most a fifth longer than its rate says.
func TestThrottleKeepsUpWithTheAccount(t *testing.T) {
	for name, row := range map[string]struct {
		size, perSecond float64
		n               int
	}{
		"a fifth, 64 machines":     {1, 0.4, 8},
		"a fifth, 800 machines":    {1, 0.4, 100},
		"a half":                   {2.5, 1, 64},
		"one in twenty seconds":    {1, 0.05, 20},
		"as fast as is allowed":    {5, 2, 64},
		"one a second, no reserve": {1, 1, 30},
	} {
		for _, latency := range []time.Duration{0, 100 * time.Millisecond} {
			t.Run(name+", "+latency.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := &account{size: row.size, level: row.size, perSecond: row.perSecond, at: time.Now()}
					th := &Throttle{Least: time.Second / 2}
					took := a.all(t, th, row.n, latency)
					least := time.Duration(max(0, float64(row.n)-row.size) / row.perSecond * float64(time.Second))
					t.Logf("%s, the rate allows %s; %d of %d calls refused", took, least, a.refused, a.calls)
					if took > least*6/5+2*time.Second {
						t.Errorf("%d calls took %s; the rate allows %s", row.n, took, least)
					}
					// The first calls go out together, and nearly all are refused.
					if a.refused > 3*row.n {
						t.Errorf("%d calls were refused for %d that were taken", a.refused, row.n)
					}
				})
			})
		}
	}
}

// An account that was slow and is no more is soon used as before.
func TestThrottleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &account{size: 1, level: 1, perSecond: 0.2, at: time.Now()}
		th := &Throttle{Least: time.Second / 2}
		a.all(t, th, 10, 0)
		a.size, a.perSecond = 100, 100
		time.Sleep(time.Second)
		// The time between two calls shrinks by a fifth each, from 5 s: 25 s until it is nothing.
		if took := a.all(t, th, 60, 0); took > 25*time.Second {
			t.Errorf("60 calls took %s although the account takes 100 a second", took)
		}
		if left, ok := th.Enter(t.Context()); !ok || th.period != 0 {
			t.Errorf("still throttled to one in %s", th.period)
		} else {
			left(false)
		}
		// And one that nobody used for long has saved up calls.
		a.size, a.level, a.perSecond = 1, 1, 0.2
		a.all(t, th, 5, 0)
		time.Sleep(time.Hour)
		began := time.Now()
		left, ok := th.Enter(t.Context())
		if !ok || time.Since(began) != 0 {
			t.Errorf("after an hour, the first call waited %s", time.Since(began))
		}
		left(false)
	})
}

// Whoever gives up frees the turn for the others.
func TestThrottleIsLeftByContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &Throttle{Least: time.Second}
		left, _ := th.Enter(t.Context())
		left(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		for range 3 {
			if _, ok := th.Enter(ctx); ok {
				t.Error("it was let through although its context had ended")
			}
		}
		began := time.Now()
		left, ok := th.Enter(t.Context())
		if !ok || time.Since(began) > time.Second {
			t.Errorf("the next waited %s", time.Since(began))
		}
		left(false)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, ok := (&Throttle{Least: time.Second}).Enter(ended); ok {
			t.Error("an ended context was let through")
		}
	})
}

// While calls wait, it says at what rate the cloud takes them and for how long the last one waits.
func TestThrottleTellsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &account{size: 1, level: 1, perSecond: 0.25, at: time.Now()}
		th := &Throttle{Least: time.Second / 2}
		if u := th.Use("launch"); u.Calls != "launch" || u.Rate.PerSecond != 2 || u.Waiting != 0 || u.Last != 0 {
			t.Errorf("at first: %+v", u)
		}
		go a.all(t, th, 10, 0)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		u := th.Use("launch")
		if u.Rate.PerSecond < 0.2 || u.Rate.PerSecond > 0.35 || u.Waiting < 3 || u.Waiting > 6 || u.Last < 10*time.Second || u.Last > 30*time.Second {
			t.Errorf("while some wait: %+v", u)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if u := th.Use("launch"); u.Waiting != 0 || u.Last != 0 || u.Waited == 0 {
			t.Errorf("in the end: %+v", u)
		}
	})
}
