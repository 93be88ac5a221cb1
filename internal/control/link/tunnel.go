package link

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// reach is the link to a node.
func (l *Link) reach(id muster.NodeID) (*nodeLink, error) {
	if nl := l.node(id); nl != nil {
		return nl, nil
	}
	return nil, muster.Faultf(muster.FaultUnavailable, "node %s cannot be reached", id)
}

// Tunnel connects to the init of an allocation's sandbox, until ctx ends, and sends first there, which may be empty. The bytes
// are neither read nor kept here. Faults: FaultConflict (it does not run yet), FaultTooOld (it has
// ended), both with what is true of it; FaultUnavailable (its node cannot be reached).
func (l *Link) Tunnel(ctx context.Context, a *state.Alloc, first []byte) (*wire.Tunnel, error) {
	nl, err := l.toSandbox(a)
	if err != nil {
		return nil, err
	}
	t, err := nl.client.Tunnel(ctx, a.ID, first)
	if err != nil {
		return nil, l.sandboxFault(a, err)
	}
	return t, nil
}

// AllocStats measures an allocation's sandbox now. Faults as of Tunnel.
func (l *Link) AllocStats(ctx context.Context, a *state.Alloc) (wire.Stats, error) {
	nl, err := l.toSandbox(a)
	if err != nil {
		return wire.Stats{}, err
	}
	s, err := nl.client.Stats(ctx, a.ID)
	if err != nil {
		return wire.Stats{}, l.sandboxFault(a, err)
	}
	return s, nil
}

// toSandbox is the link to the node of an allocation that has not ended. One that
// the log still has as starting may run already: only its agent knows.
func (l *Link) toSandbox(a *state.Alloc) (*nodeLink, error) {
	if !a.Live() {
		return nil, muster.Faultf(muster.FaultTooOld, "%s", hasEnded(a))
	}
	return l.reach(a.Node)
}

// sandboxFault is what an agent's answer means to whoever asked for a sandbox.
func (l *Link) sandboxFault(a *state.Alloc, err error) error {
	now := l.cfg.State.Latest().Alloc(a.ID)
	if now == nil {
		now = a
	}
	switch kind := muster.KindOf(err); {
	case kind == muster.FaultUnavailable && !now.Live(), kind == muster.FaultTooOld, kind == muster.FaultNotFound && !now.Live():
		return muster.Faultf(muster.FaultTooOld, "%s", hasEnded(now))
	case kind == muster.FaultNotFound && now.Status == muster.AllocRunning:
		// Not the allocation: an agent of an earlier version does not know the request.
		return &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("the agent of node %s cannot do this for allocation %s", a.Node, a.ID), Err: err}
	case kind == muster.FaultConflict, kind == muster.FaultNotFound:
		// Not found: the set that names it has not come to the agent yet.
		return muster.Faultf(muster.FaultConflict, "%s", isStarting(now))
	case kind == muster.FaultUnavailable:
		// What the transport says names a socket of the node: whoever asked for an allocation needs that first.
		return &muster.Fault{Kind: kind, Message: fmt.Sprintf("allocation %s on node %s cannot be reached now (see `muster node show %s`)", a.ID, a.Node, a.Node), Err: err}
	}
	return ofNode(a.Node, err)
}

// hasEnded says how an allocation did.
func hasEnded(a *state.Alloc) string {
	s := fmt.Sprintf("allocation %s has ended", a.ID)
	if a.Live() {
		return s // its agent knows it, the log not yet
	}
	switch {
	case a.Failure != nil:
		s += fmt.Sprintf(": %s (%s)", a.Outcome, a.Failure.Message)
	case a.StopCause != "":
		s += fmt.Sprintf(": %s (%s)", a.Outcome, a.StopCause)
	default:
		s += ": " + string(a.Outcome)
	}
	if a.Ended != 0 {
		s += ", at " + a.Ended.Std().UTC().Format(time.RFC3339)
	}
	return s
}

// isStarting says what the start of an allocation is at.
func isStarting(a *state.Alloc) string {
	switch {
	case a.Desired == muster.AllocStop:
		return fmt.Sprintf("allocation %s is stopping on node %s", a.ID, a.Node)
	case a.Detail != "":
		return fmt.Sprintf("allocation %s is starting on node %s: %s", a.ID, a.Node, a.Detail)
	}
	return fmt.Sprintf("allocation %s is starting on node %s", a.ID, a.Node)
}
