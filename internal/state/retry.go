package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
)

// maxFailedNodes is how many distinct nodes may fail a member before it fails.
const maxFailedNodes = 5

// next is the restart policy: what a member does after its allocation ended.
// It changes the member and the job's counts. serving is how many nodes of the allocation's pool are in service.
func (m *Member) next(j *Job, a *Alloc, serving int, now muster.Time) {
	wait := func(d time.Duration, reason string) {
		m.Status, m.RetryAt, m.Reason = muster.MemberWaiting, now.Add(d), reason
		j.Retrying++
	}
	fail := func(reason string) {
		m.Status, m.Reason = muster.MemberFailed, reason
		j.Failed++
		if j.Reason == "" && j.Count() == 1 {
			j.Reason = reason
		}
	}
	switch {
	case a.Outcome == muster.OutcomeSucceeded:
		m.Status, m.Reason = muster.MemberSucceeded, ""
		j.Succeeded++
		return
	case j.Stage != muster.JobLive:
		m.Status, m.Reason = muster.MemberStopped, a.StopCause
		j.Stopped++
		return
	case a.Outcome == muster.OutcomeStopped && a.Failure == nil, a.Desired == muster.AllocStop:
		// Moved, not failed: a drain or a preemption uses up nothing, with whatever
		// exit its command answers TERM.
		wait(0, a.StopCause)
		return
	}
	f := a.Failure
	if f == nil {
		f = &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: "ended without a reason"}
	}
	spec := j.Run.Spec.Restart
	giveUp := func() bool {
		if m.OutsideFailures == 0 {
			m.OutsideSince = a.Placed
		}
		m.OutsideFailures++
		if now.Sub(m.OutsideSince) < spec.GiveUp.Std() {
			return false
		}
		fail(fmt.Sprintf("given up after %s: %s", spec.GiveUp, f.Message))
		return true
	}
	if full(f) {
		switch reason := fmt.Sprintf("node %s: %s", a.Node, f.Message); {
		case giveUp():
		case m.avoidFull(a.Node, serving):
			wait(0, reason)
		default:
			wait(backoff(time.Second, spec.BackoffMax.Std(), m.OutsideFailures), reason)
		}
		return
	}
	switch f.Class {
	case muster.FailureUser:
		m.UserFailures++
		if m.UserFailures < spec.Attempts && j.Run.retry.Matches(f.Reason, a.ExitCode) {
			wait(backoff(spec.Backoff.Std(), spec.BackoffMax.Std(), m.UserFailures),
				fmt.Sprintf("attempt %d of %d: %s", m.UserFailures, spec.Attempts, f.Message))
			return
		}
		if m.UserFailures > 1 {
			fail(fmt.Sprintf("attempt %d of %d: %s", m.UserFailures, spec.Attempts, f.Message))
			return
		}
		fail(f.Message)
	case muster.FailureOutside:
		if !giveUp() {
			wait(backoff(time.Second, spec.BackoffMax.Std(), m.OutsideFailures), f.Message)
		}
	default:
		if !slices.Contains(m.FailedNodes, a.Node) {
			m.FailedNodes = append(slices.Clone(m.FailedNodes), a.Node)
		}
		if len(m.FailedNodes) >= maxFailedNodes {
			fail(fmt.Sprintf("failed on %d nodes, the last time: %s", len(m.FailedNodes), f.Message))
			return
		}
		wait(0, fmt.Sprintf("node %s: %s", a.Node, f.Message))
	}
}

// backoff is first × 2^(n-1), at most limit.
func backoff(first, limit time.Duration, n int) time.Duration {
	d := first
	for i := 1; i < n && d < limit; i++ {
		d *= 2
	}
	return min(d, max(limit, first))
}

// full reports whether a start failed because other work uses the node's room: nothing is wrong with the node, and that passes.
func full(f *muster.Failure) bool {
	return f != nil && f.Class == muster.FailureNode && f.Reason == muster.ReasonNodeFull
}

// avoidFull has the member's next attempt avoid a node that is full. It never fails the member: when few other nodes of the
// pool are left, it may use all of them again, and avoidFull returns false.
func (m *Member) avoidFull(node muster.NodeID, serving int) bool {
	if !slices.Contains(m.FailedNodes, node) && len(m.FailedNodes)+1 < min(serving, maxFailedNodes) {
		m.FailedNodes = append(slices.Clone(m.FailedNodes), node)
		return true
	}
	m.FailedNodes = nil
	return false
}

// serving is how many nodes of a node's pool are in service.
func (t *tables) serving(id muster.NodeID) int {
	if n := get(t.nodes, &Node{ID: id}); n != nil {
		return cmp.Or(get(t.tallies, &Tally{Pool: n.Pool}), &Tally{}).Serving
	}
	return 0
}
