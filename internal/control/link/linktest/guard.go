package linktest

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func (n *Node) tickLocked() int64 { return time.Since(n.began).Microseconds() + 1 }

// guardLocked renews for how long exclusive sandboxes may run, as agents do: from a tick that the server gives back.
func (n *Node) guardLocked(d *wire.Desired) {
	if d.Tick <= 0 || d.GuardMillis <= 0 {
		return
	}
	until := n.began.Add(time.Duration(d.Tick)*time.Microsecond + time.Duration(d.GuardMillis)*time.Millisecond)
	if !until.After(n.guarded) {
		return
	}
	n.guarded = until
	close(n.renewed)
	n.renewed = make(chan struct{})
}

// guard waits until an exclusive sandbox may run, and has it ended when the guard lapses; false if it was stopped before.
func (b *sandbox) guard() bool {
	if !b.spec.Exclusive {
		return true
	}
	for {
		b.n.mu.Lock()
		left, renewed := time.Until(b.n.guarded), b.n.renewed
		b.n.mu.Unlock()
		if left > 0 {
			b.n.wg.Go(b.watchGuard)
			return true
		}
		select {
		case <-renewed:
		case <-b.asked:
			return false
		case <-b.killed:
			return false
		}
	}
}

func (b *sandbox) watchGuard() {
	for {
		b.n.mu.Lock()
		left, renewed := time.Until(b.n.guarded), b.n.renewed
		if b.report.Status == muster.AllocEnded {
			b.n.mu.Unlock()
			return
		}
		if left <= 0 {
			b.unguarded = true
			b.ask()
			b.n.mu.Unlock()
			return
		}
		b.n.mu.Unlock()
		t := time.NewTimer(left)
		select {
		case <-renewed:
		case <-t.C:
		case <-b.asked:
		case <-b.killed:
		}
		t.Stop()
		if wait.Closed(b.asked) || wait.Closed(b.killed) {
			return
		}
	}
}
