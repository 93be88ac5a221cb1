package remote

import (
	"sync"
	"time"
)

// deadline is a moment that can be moved while others wait for it.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	passed chan struct{} // closed while the moment is in the past
	round  int           // tells a timer that was stopped too late that it no longer counts
}

func (d *deadline) isPassedLocked() bool {
	select {
	case <-d.passed:
		return true
	default:
		return false
	}
}

// wait is closed when the moment passes. It stays the same as long as it has not.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passed == nil {
		d.passed = make(chan struct{})
	}
	return d.passed
}

// set moves it; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.round++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.passed == nil || d.isPassedLocked() {
		d.passed = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.passed)
		return
	}
	round := d.round
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if round == d.round {
			close(d.passed)
		}
	})
}
