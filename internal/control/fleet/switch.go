package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// switchesPerCall is how many machines one call switches off or on. switchTimeout bounds a call: some
// clouds answer only when the machine is off.
const (
	switchesPerCall = 16
	switchTimeout   = 5 * time.Minute
)

// power switches the machines of a fleet's nodes off and on.
type power struct{ f *Fleet }

// off asks the providers to stop the machines of stopped nodes. It returns at once.
func (p power) off(ctx context.Context, snap *state.Snapshot, ids []muster.NodeID) {
	f := p.f
	wanted := func(n *state.Node) bool { return n.Stage == muster.NodeStopped }
	f.inParts(snap, ids, wanted, f.memory.Switching, switchesPerCall, func(name muster.ProviderName, nodes []*state.Node) {
		p.part(ctx, name, nodes, "stop", cloud.Stopper.Stop)
	})
}

// on asks the providers to start the machines of starting nodes. It returns at once.
func (p power) on(ctx context.Context, snap *state.Snapshot, ids []muster.NodeID) {
	f := p.f
	wanted := func(n *state.Node) bool { return n.Stage == muster.NodeStarting && n.Intent != muster.NodeHold }
	f.inParts(snap, ids, wanted, f.memory.Switching, switchesPerCall, func(name muster.ProviderName, nodes []*state.Node) {
		p.part(ctx, name, nodes, "start", cloud.Stopper.Start)
	})
}

// part makes one call and handles its answers.
func (p power) part(ctx context.Context, name muster.ProviderName, nodes []*state.Node, call string, do func(cloud.Stopper, context.Context, []muster.InstanceID) []error) {
	f := p.f
	ids := make([]muster.InstanceID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.Instance
	}
	errs := make([]error, len(nodes))
	if s, ok := cloud.As[cloud.Stopper](f.providers[name]); ok {
		callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, switchTimeout))
		got := do(s, callCtx, ids)
		cancel()
		for i := range errs {
			errs[i] = muster.Faultf(muster.FaultAmbiguous, "provider %s did not answer for it", name)
			if i < len(got) {
				errs[i] = got[i]
			}
		}
	} else {
		for i := range errs {
			errs[i] = muster.Faultf(muster.FaultInvalid, "provider %s cannot stop instances", name)
		}
	}
	for i, n := range nodes {
		if ctx.Err() == nil {
			p.answered(ctx, n, call, errs[i])
		}
		f.mu.Lock()
		delete(f.memory.Switching, n.ID)
		f.mu.Unlock()
	}
	wait.Poke(f.wake)
}

// answered handles one answer. A clear refusal ends the node, as nothing else can be done with it; a lack
// of capacity leaves it stopped, for the fleet to find another. Everything else is repeated: what has the
// wanted state already is no error.
func (p power) answered(ctx context.Context, n *state.Node, call string, err error) {
	f := p.f
	now := f.cfg.Clock.Now()
	switch kind := muster.KindOf(err); {
	case err == nil:
		f.mu.Lock()
		delete(f.backoff, n.ID)
		f.troubles.over(n.ID, call)
		if call == "stop" {
			f.memory.Off[n.ID] = true
		}
		f.mu.Unlock()
		if call == "start" {
			_ = f.propose(ctx, &state.NodeStarted{ID: n.ID})
		}
		return
	case kind == muster.FaultInvalid:
		_ = f.propose(ctx, &state.NodeTerminating{ID: n.ID, Reason: fmt.Sprintf("its provider does not %s it: %v", call, err), IfIdle: true})
		return
	case call == "start" && (kind == muster.FaultCapacity || kind == muster.FaultQuota):
		snap := f.cfg.State.Latest()
		f.mu.Lock()
		b := f.blocks.add(&n.Offering, err, now.Std(), snap)
		f.mu.Unlock()
		f.log.Warn("start refused", "node", n.ID, "offering", n.Offering.Name, "kind", kind, "error", err, "again", b.Until.Sub(now))
		_ = f.propose(ctx, &state.NodeStopped{ID: n.ID, Reason: fmt.Sprintf("not started: %v", err)})
		return
	case kind == muster.FaultNotFound:
		// A list tells whether it is gone.
		f.listers[n.Offering.Provider].want(now)
	}
	f.mu.Lock()
	f.backoff[n.ID]++
	again := max(backoff(destroyRetry, destroyRetryMost, f.backoff[n.ID]), afterOf(err))
	f.memory.NotBefore[n.ID] = now.Add(again)
	f.troubles.failed(n.ID, call, err, now, f.memory.NotBefore[n.ID])
	f.mu.Unlock()
	f.log.Warn("not done, asking again", "call", call, "node", n.ID, "instance", n.Instance, "in", again, "error", err)
}
