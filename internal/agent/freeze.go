package agent

import (
	"context"
	"errors"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// freezeTime bounds the freezing of a sandbox; what could not be frozen is tried again after freezeRetry.
	freezeTime  = 5 * time.Second
	freezeRetry = 10 * time.Second
)

// settle makes an open sandbox stand or go on, as is wanted of it now; the caller holds a use of it. It stands if the
// last set said so, it is ready, nobody is connected to its init, and it is not about to stop.
func (a *Agent) settle(ctx context.Context, al *alloc, b *box) {
	al.ice <- struct{}{} // a freeze under way is bounded, a thaw takes no time
	defer func() { <-al.ice }()
	for {
		a.mu.Lock()
		want := al.wantFrozen && al.ready != 0 && al.awake == 0 && !al.stopping && !al.ended && !al.noFreezer
		is := al.frozen
		a.mu.Unlock()
		if want == is || isClosed(b.sandbox.Done()) {
			return
		}
		if err := freezeOrThaw(ctx, b.sandbox, want); err != nil {
			a.notFrozen(ctx, al, want, err)
			return
		}
		a.amendReport(al, func(r *wire.AllocReport) { al.frozen, r.Frozen = want, want })
	}
}

func freezeOrThaw(ctx context.Context, s contract.Sandbox, freeze bool) error {
	if !freeze {
		return contract.Thaw(s)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTime)
	defer cancel()
	return contract.Freeze(ctx, s)
}

func (a *Agent) notFrozen(ctx context.Context, al *alloc, freeze bool, err error) {
	switch {
	case errors.Is(err, contract.ErrNoSandbox):
		return
	case errors.Is(err, contract.ErrNoFreezer):
		a.mu.Lock()
		al.noFreezer = true
		a.mu.Unlock()
		a.log.Warn("a sandbox that should stand still goes on", "alloc", al.id, "error", err)
		return
	}
	a.log.Warn("a sandbox cannot be frozen or thawed yet", "alloc", al.id, "freeze", freeze, "error", err)
	a.spawn(func() {
		select {
		case <-ctx.Done():
		case <-al.done:
		case <-time.After(freezeRetry):
			a.settleOpen(ctx, al)
		}
	})
}

// settleOpen is settle for one who holds no use of the sandbox.
func (a *Agent) settleOpen(ctx context.Context, al *alloc) {
	if b := a.hold(al); b != nil {
		a.settle(ctx, al, b)
		a.drop(al, b)
	}
}

// wake keeps a sandbox from standing while it is used, and lets it go on if it does. The server asks only for what it
// wants to be used, but its set that says so may come later than who uses it.
func (a *Agent) wake(ctx context.Context, al *alloc, b *box) (sleep func()) {
	a.mu.Lock()
	al.awake++
	cold := al.frozen || al.wantFrozen
	a.mu.Unlock()
	if cold {
		a.settle(ctx, al, b)
	}
	return func() {
		a.mu.Lock()
		al.awake--
		cold := al.awake == 0 && al.wantFrozen
		a.mu.Unlock()
		if cold {
			a.settle(ctx, al, b)
		}
	}
}

// amendReport changes the report of an allocation that has not ended, under mu, and tells every reader.
func (a *Agent) amendReport(al *alloc, change func(*wire.AllocReport)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if al.ended {
		return
	}
	a.publishLocked(al, change)
}
