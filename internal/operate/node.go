package operate

import (
	"cmp"
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Nodes are machines. Orders to them are facts; the loops carry them out.
type Nodes struct{ *desk }

// Get returns the row of a node, also of one that is gone and still remembered.
func (s *Nodes) Get(id string) (*state.Node, error) { return s.node(id) }

// Show shows a node with its history. What only the loops know of it, such as its usage, is shown
// while it lives.
func (s *Nodes) Show(n *state.Node) api.Node {
	out := present.NodeWithHistory(n, s.cfg.Clock.Now())
	if n.Stage.Live() {
		loops := s.cfg.Loops()
		out.Trouble = loops.Troubles()(n)
		out.Usage, out.Problems = loops.Usage(n.ID)
		// A held node does not end itself: its lease does not run.
		if n.Intent != muster.NodeHold {
			out.Lease = s.lease(n.Pool)
		}
	}
	return out
}

// Hold has a node get no new work, and nothing destroys it, until it is set to run or the time is
// over.
func (s *Nodes) Hold(ctx context.Context, id string, b *api.NodeHold) (*state.Node, error) {
	until, err := s.untilAfter("body.for", b.For)
	if err != nil {
		return nil, err
	}
	return s.setIntent(ctx, id, &state.NodeIntentSet{Intent: muster.NodeHold, Reason: b.Reason, Who: b.Who, Until: until})
}

// Drain has a node get no new work, and end when nothing runs there any more. After the deadline
// what is left is stopped.
func (s *Nodes) Drain(ctx context.Context, id string, b *api.NodeDrain) (*state.Node, error) {
	until, err := s.untilAfter("body.deadline", b.Deadline)
	if err != nil {
		return nil, err
	}
	return s.setIntent(ctx, id, &state.NodeIntentSet{Intent: muster.NodeDrain, Reason: b.Reason, Who: b.Who, Until: until})
}

// Run lets a node get work again: the end of a hold, or of a drain.
func (s *Nodes) Run(ctx context.Context, id string, b *api.NodeOrder) (*state.Node, error) {
	return s.setIntent(ctx, id, &state.NodeIntentSet{Intent: muster.NodeRun, Reason: b.Reason, Who: b.Who})
}

// untilAfter returns when a time that begins now is over; 0 if no time is given. field names it in
// the problem of one that is too long.
func (s *Nodes) untilAfter(field string, d api.Duration) (muster.Time, error) {
	switch {
	case d.Std() < 0 || d.Std() > longestHold:
		return 0, problem.Invalid(field, "is %s; give a time above 0s and below ten years, or leave it out", d)
	case d == 0:
		return 0, nil
	}
	return s.cfg.Clock.Now().Add(d.Std()), nil
}

// setIntent proposes an intent of the operator for a node.
func (s *Nodes) setIntent(ctx context.Context, id string, f *state.NodeIntentSet) (*state.Node, error) {
	if err := checkSaid(f.Reason, f.Who); err != nil {
		return nil, err
	}
	n, err := s.node(id)
	if err != nil {
		return nil, err
	}
	if f.ID = n.ID; f.Who == "" {
		f.Who = anOperator
	}
	if err := s.propose(ctx, f); err != nil {
		return nil, err
	}
	return s.after(n), nil
}

// after returns a node as it is after what was done to it. It may have been forgotten since.
func (s *Nodes) after(n *state.Node) *state.Node {
	if now := s.cfg.State.Latest().Node(n.ID); now != nil {
		return now
	}
	return n
}

// Destroy drains a node for good, or with Now destroys it at once: then what runs there is lost.
// One that is held is refused. On one that is being destroyed already it changes nothing.
func (s *Nodes) Destroy(ctx context.Context, id string, b *api.NodeDestroy) (*state.Node, error) {
	if err := checkSaid(b.Reason, b.Who); err != nil {
		return nil, err
	}
	n, err := s.node(id)
	if err != nil {
		return nil, err
	}
	who := b.Who
	who = cmp.Or(who, anOperator)
	reason := "destroyed by an operator" + muster.Because(b.Reason)
	var f state.Fact
	switch served := n.Stage == muster.NodeServing || n.Stage == muster.NodeDraining; {
	case n.Stage == muster.NodeGone || n.Stage == muster.NodeTerminating:
	case n.Intent == muster.NodeHold:
		return nil, muster.Faultf(muster.FaultConflict, "node %s is held%s; set it to run or drain first", n.ID, muster.Because(n.IntentReason))
	case b.Now || !served:
		f = &state.NodeTerminating{ID: n.ID, Reason: reason, Who: who}
	case n.Stage == muster.NodeServing:
		// The fleet ends it when nothing runs there and its output is stored: now, if that is so.
		f = &state.NodeDraining{ID: n.ID, Reason: reason, Who: who}
	}
	if f != nil {
		if err := s.propose(ctx, f); err != nil {
			return nil, err
		}
	}
	return s.after(n), nil
}
