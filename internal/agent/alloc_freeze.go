package agent

import (
	"context"
	"errors"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// freezeTime bounds the freezing of a sandbox; what could not be frozen is tried again after
	// freezeRetry.
	freezeTime  = 5 * time.Second
	freezeRetry = 10 * time.Second
)

// settle makes an open sandbox stand or go on, as is wanted of it now; the caller holds a use of
// it. It stands if the last set said so, it is ready, nobody is connected to its init, and it is
// not about to stop.
func (al *allocation) settle(ctx context.Context, b *box) {
	al.ice <- struct{}{} // a freeze under way is bounded, a thaw takes no time
	defer func() { <-al.ice }()
	for {
		al.mu.Lock()
		want := al.wantFrozen && al.ready != 0 && al.awake == 0 && !al.stopping && !al.ended && !al.noFreezer
		is := al.frozen
		al.mu.Unlock()
		if want == is || isClosed(b.sandbox.Done()) {
			return
		}
		if err := freezeOrThaw(ctx, b.sandbox, want); err != nil {
			al.notFrozen(ctx, want, err)
			return
		}
		al.amend(func(r *wire.AllocReport) { al.frozen, r.Frozen = want, want })
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

func (al *allocation) notFrozen(ctx context.Context, freeze bool, err error) {
	switch {
	case errors.Is(err, contract.ErrNoSandbox):
		return
	case errors.Is(err, contract.ErrNoFreezer):
		al.mu.Lock()
		al.noFreezer = true
		al.mu.Unlock()
		al.node.log.Warn("a sandbox that should stand still goes on", "alloc", al.id, "error", err)
		return
	}
	al.node.log.Warn("a sandbox cannot be frozen or thawed yet", "alloc", al.id, "freeze", freeze, "error", err)
	al.node.crew.spawn(func() {
		select {
		case <-ctx.Done():
		case <-al.done:
		case <-time.After(freezeRetry):
			al.settleOpen(ctx)
		}
	})
}

// settleOpen is settle for one who holds no use of the sandbox.
func (al *allocation) settleOpen(ctx context.Context) {
	if b := al.hold(); b != nil {
		al.settle(ctx, b)
		al.drop(b)
	}
}

// wake keeps a sandbox from standing while it is used, and lets it go on if it does. The server
// asks only for what it wants to be used, but its set that says so may come later than who uses it.
func (al *allocation) wake(ctx context.Context, b *box) (sleep func()) {
	al.mu.Lock()
	al.awake++
	cold := al.frozen || al.wantFrozen
	al.mu.Unlock()
	if cold {
		al.settle(ctx, b)
	}
	return func() {
		al.mu.Lock()
		al.awake--
		cold := al.awake == 0 && al.wantFrozen
		al.mu.Unlock()
		if cold {
			al.settle(ctx, b)
		}
	}
}
