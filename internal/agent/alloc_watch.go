package agent

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// defaultGrace is from TERM to KILL where the spec cannot be read.
const defaultGrace = 10 * time.Second

// watch waits for the end of a running sandbox and stops it when asked. It returns how the
// allocation ended; nil if the agent ends first.
func (al *allocation) watch(ctx context.Context, b *box) *wire.AllocReport {
	al.running(ctx, b)
	stop := al.stop
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-stop:
			stop = nil
			b.sandbox.Stop(al.stopGrace())
		case <-b.sandbox.Done():
			return al.result(ctx, b)
		}
	}
}

// stopGrace is from TERM to KILL when the allocation is stopped now.
func (al *allocation) stopGrace() time.Duration {
	switch {
	case al.whyUnguarded() != nil:
		return 0
	case al.spec != nil:
		return wire.Millis(al.spec.KillGraceMillis)
	}
	return defaultGrace
}

// running makes it known that a sandbox runs, and begins what is to be done while it does.
func (al *allocation) running(ctx context.Context, b *box) {
	started, stands := muster.At(b.sandbox.Started()), contract.Frozen(b.sandbox)
	al.mu.Lock()
	if al.ready == 0 && (al.spec == nil || al.spec.Ready == nil) {
		al.ready = started
	}
	al.frozen = stands
	if stands && !al.asked {
		al.wantFrozen = true // an earlier agent was told so; nobody has said otherwise
	}
	ready := al.ready
	al.publishLocked(func(r *wire.AllocReport) {
		r.Status, r.Started, r.Detail, r.Image = muster.AllocRunning, started, "", al.digest()
		r.Ready, r.Frozen = ready, stands
	})
	al.mu.Unlock()
	switch {
	case ready != 0:
		al.settle(ctx, b)
	case len(al.spec.Ready.Command) > 0:
		r, grace := al.spec.Ready, wire.Millis(al.spec.KillGraceMillis)
		if held := al.hold(); held != nil {
			al.node.crew.spawn(func() {
				defer al.drop(held)
				al.proveReady(ctx, held, r, grace)
			})
		}
	}
}
