package link

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// A provider may refuse to destroy an instance, or take long. Work there may finish meanwhile, so
// the link to a terminating node stays while allocations run. It starts nothing, and it believes
// fewer reports: once the machine shuts down, a failed sandbox does not mean a failed command.
const (
	// endingFor bounds the contact to a terminating node. endingOutput bounds the part of it after
	// the last allocation has ended, for output. The bound is necessary: contact renews the lease
	// of the node, and a machine that nobody destroys ends itself only when its lease expires.
	endingFor, endingOutput = 15 * time.Minute, 30 * time.Second
	// aliveFor is how long after a reported success the agent must still answer for it to count. A
	// program may also exit with 0 because its machine shuts down; the agent is gone soon then.
	aliveFor = 5 * time.Second
)

// endingUntil returns when the link to a terminating node ends.
func endingUntil(n *state.Node) muster.Time {
	until := n.StageSince.Add(endingFor)
	if n.LiveAllocs == 0 {
		until = min(until, max(n.StageSince, n.IdleSince).Add(endingOutput))
	}
	return until
}

// hasOpenOutput reports whether output of an ended allocation on the node is not stored yet.
func hasOpenOutput(snap *state.Snapshot, id muster.NodeID) (has bool) {
	snap.OpenOutputs(id, func(*state.Alloc) bool {
		has = true
		return false
	})
	return has
}

// isTerminating reports whether the state has the node as terminating.
func isTerminating(snap *state.Snapshot, id muster.NodeID) bool {
	n := snap.Node(id)
	return n != nil && n.Stage == muster.NodeTerminating
}

// countsAtTheEnd reports whether a terminating node's report about a live allocation counts. A stop
// counts if the log asked for it. A success counts if the agent still answers a while later. A
// failure never counts, because the shutdown may be its cause: the allocation is lost with its node
// and runs again elsewhere.
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
	// The first report of a success starts the wait. Later reports find the entry.
	s.finished[r.ID] = false
	report := *r
	s.g.Go(func() error {
		if !s.stillAnswers(ctx) {
			return nil
		}
		s.mu.Lock()
		s.finished[report.ID] = true
		s.mu.Unlock()
		// The same report again: now it counts, since finished is true.
		s.compare(ctx, s.n.l.cfg.State.Latest(), &report)
		return nil
	})
	return false
}

// stillAnswers asks the agent until it answers, first after aliveFor. It reports false if the
// session ended before. An open session proves nothing: the server notices a silent machine only
// after several missed heartbeats.
func (s *session) stillAnswers(ctx context.Context) bool {
	for {
		wait.For(ctx, aliveFor)
		askCtx, cancel := context.WithTimeout(ctx, aliveFor)
		hello, err := s.n.client.Hello(askCtx)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && hello.Run == s.agentRun:
			// The same boot: the machine has not been restarted in between.
			return true
		}
	}
}
