package agent

import (
	"context"
	"errors"
	"time"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// freezeTime bounds the freezing of a sandbox. A freeze or thaw that failed is tried again
	// after freezeRetry.
	freezeTime  = 5 * time.Second
	freezeRetry = 10 * time.Second
)

// settle freezes or thaws an open sandbox, as is wanted of it now; the caller holds a use of it. It
// is frozen if the last set said so, it is ready, nobody is connected to its init, and it is not
// about to stop.
func (al *allocation) settle(ctx context.Context, b *box) {
	al.ice <- struct{}{} // a freeze under way is bounded, a thaw takes no time
	defer func() { <-al.ice }()
	// What is wanted may change while a sandbox is being frozen: then it is re-evaluated.
	for {
		al.mu.Lock()
		want := al.wantFrozen && al.ready != 0 && al.awake == 0 && !al.stopping && !al.ended && !al.noFreezer
		is := al.frozen
		al.mu.Unlock()
		if want == is || wait.Closed(b.sandbox.Done()) {
			return
		}
		if err := freezeOrThaw(ctx, b.sandbox, want); err != nil {
			al.notFrozen(ctx, want, err)
			return
		}
		al.amend(func(r *wire.AllocReport) { al.frozen, r.Frozen = want, want })
	}
}

// freezeOrThaw does one of the two. A freeze is bounded by its own time: the end of a request, or
// of the agent, must not leave a sandbox half frozen.
func freezeOrThaw(ctx context.Context, s contract.Sandbox, freeze bool) error {
	if !freeze {
		return contract.Thaw(s)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTime)
	defer cancel()
	return contract.Freeze(ctx, s)
}

// notFrozen deals with a freeze or thaw that failed. Where nothing can be frozen the sandbox runs
// on; else it is tried again.
func (al *allocation) notFrozen(ctx context.Context, freeze bool, err error) {
	switch {
	case errors.Is(err, contract.ErrNoSandbox):
		return
	case errors.Is(err, contract.ErrNoFreezer):
		al.mu.Lock()
		al.noFreezer = true
		al.mu.Unlock()
		al.node.log.Warn("a sandbox that should be frozen is running", "alloc", al.id, "error", err)
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

// settleOpen is settle for a caller that holds no use of the sandbox. It does nothing if the
// sandbox is not open.
func (al *allocation) settleOpen(ctx context.Context) {
	if b := al.hold(); b != nil {
		al.settle(ctx, b)
		al.drop(b)
	}
}

// wake keeps a sandbox from being frozen until sleep is called, and thaws it if it is. The server
// lets only those use a sandbox that may, but its set that says so may come later than they do.
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
