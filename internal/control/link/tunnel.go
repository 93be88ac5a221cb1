package link

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// reach returns the link to a node, or a fault if there is none.
func (l *Link) reach(id muster.NodeID) (*nodeLink, error) {
	if nl := l.node(id); nl != nil {
		return nl, nil
	}
	return nil, muster.Faultf(muster.FaultUnavailable, "node %s cannot be reached", id)
}

// Tunnel connects to the init of an allocation's sandbox until ctx ends. It sends first, which may
// be empty. The server neither reads nor keeps the bytes. Faults: FaultConflict (the sandbox does
// not run yet) and FaultTooOld (it has ended), both with a message about its actual status;
// FaultUnavailable (its node cannot be reached).
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

// AllocStats measures an allocation's sandbox now. It has the faults of Tunnel.
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

// toSandbox returns the link to the node of an allocation that has not ended. An allocation that is
// starting in the log may run already: only its agent knows, so it is asked.
func (l *Link) toSandbox(a *state.Alloc) (*nodeLink, error) {
	if !a.Live() {
		return nil, muster.Faultf(muster.FaultTooOld, "%s", hasEnded(a))
	}
	return l.reach(a.Node)
}

// sandboxFault turns an agent's answer into a fault for the caller that asked for a sandbox. It
// reads the row again, because the allocation may have ended since the request began.
func (l *Link) sandboxFault(a *state.Alloc, err error) error {
	now := l.cfg.State.Latest().Alloc(a.ID)
	if now == nil {
		now = a
	}
	switch kind := muster.KindOf(err); {
	case kind == muster.FaultUnavailable && !now.Live(), kind == muster.FaultTooOld, kind == muster.FaultNotFound && !now.Live():
		return muster.Faultf(muster.FaultTooOld, "%s", hasEnded(now))
	case kind == muster.FaultNotFound && now.Status == muster.AllocRunning:
		// The allocation runs, so the agent means the request: an older agent does not know it.
		return &muster.Fault{Kind: muster.FaultUnavailable, Message: fmt.Sprintf("the agent of node %s cannot do this for allocation %s", a.Node, a.ID), Err: err}
	case kind == muster.FaultConflict, kind == muster.FaultNotFound:
		// NotFound here means that the set with this allocation has not reached the agent yet.
		return muster.Faultf(muster.FaultConflict, "%s", isStarting(now))
	case kind == muster.FaultUnavailable:
		// The transport's error names a socket on the node. A caller that asked for an allocation
		// needs the allocation and its node first.
		return &muster.Fault{Kind: kind, Message: fmt.Sprintf("allocation %s on node %s cannot be reached now (see `muster node show %s`)", a.ID, a.Node, a.Node), Err: err}
	}
	return ofNode(a.Node, err)
}

// hasEnded describes how an allocation ended.
func hasEnded(a *state.Alloc) string {
	s := fmt.Sprintf("allocation %s has ended", a.ID)
	if a.Live() {
		// Its agent knows that, the log does not yet.
		return s
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

// isStarting describes which step the start of an allocation has reached.
func isStarting(a *state.Alloc) string {
	switch {
	case a.Desired == muster.AllocStop:
		return fmt.Sprintf("allocation %s is stopping on node %s", a.ID, a.Node)
	case a.Detail != "":
		return fmt.Sprintf("allocation %s is starting on node %s: %s", a.ID, a.Node, a.Detail)
	}
	return fmt.Sprintf("allocation %s is starting on node %s", a.ID, a.Node)
}
