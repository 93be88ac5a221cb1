package link

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A provider may refuse to destroy an instance, or take long. What runs there may finish meanwhile, so the link to a
// terminating node stays while something does. It starts nothing and believes less: once the machine goes down, what
// its sandboxes meet is not their own doing.
const (
	// endingFor bounds the contact to a terminating node, and endingOutput the part of it after its last allocation has
	// ended, for output. Contact renews the lease of the node, by which a machine that nobody destroys ends itself.
	endingFor, endingOutput = 15 * time.Minute, 30 * time.Second
	// aliveFor is how long after a success the agent must still answer for it to count. A program that a shutdown of its
	// machine ends may exit with 0 as well, and the agent is gone within moments then.
	aliveFor = 5 * time.Second
)

// endingUntil is when the link to a terminating node ends.
func endingUntil(n *state.Node) muster.Time {
	until := n.StageSince.Add(endingFor)
	if n.LiveAllocs == 0 {
		until = min(until, max(n.StageSince, n.IdleSince).Add(endingOutput))
	}
	return until
}

// hasOpenOutput reports whether output of an allocation that has ended on the node is not stored yet.
func hasOpenOutput(snap *state.Snapshot, id muster.NodeID) (has bool) {
	snap.OpenOutputs(id, func(*state.Alloc) bool {
		has = true
		return false
	})
	return has
}

func isTerminating(snap *state.Snapshot, id muster.NodeID) bool {
	n := snap.Node(id)
	return n != nil && n.Stage == muster.NodeTerminating
}

// countsAtTheEnd reports whether what a terminating node reports of a live allocation counts: that it has stopped as
// it was told to, and that it has succeeded if its agent still answers a while later. A failure may come of the shutdown: such an
// allocation is lost with its node, and runs again elsewhere.
func (s *session) countsAtTheEnd(ctx context.Context, row *state.Alloc, r *wire.AllocReport) bool {
	switch {
	case r.Status != muster.AllocEnded:
		return false
	case r.Outcome == muster.OutcomeStopped:
		return row.Desired == muster.AllocStop
	case r.Outcome != muster.OutcomeSucceeded:
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts, waits := s.finished[r.ID]
	if waits {
		return counts
	}
	s.finished[r.ID] = false
	report := *r
	s.g.Go(func() error {
		if !s.stillAnswers(ctx) {
			return nil
		}
		s.mu.Lock()
		s.finished[report.ID] = true
		s.mu.Unlock()
		s.compare(ctx, s.n.l.cfg.State.Latest(), &report)
		return nil
	})
	return false
}

// stillAnswers asks the agent until it answers, first after aliveFor; false if the session ended before. That the session
// goes on shows nothing: a machine that falls silent is noticed after several heartbeats.
func (s *session) stillAnswers(ctx context.Context) bool {
	for {
		wait.For(ctx, aliveFor)
		askCtx, cancel := context.WithTimeout(ctx, aliveFor)
		hello, err := s.n.client.Hello(askCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && hello.Boot == s.boot:
			return true
		}
	}
}
