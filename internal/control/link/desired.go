package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/link/allocspec"
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// lazyFor is how long a change that is not urgent waits for others, to share a set with them.
	lazyFor = 25 * time.Millisecond
	// forgetAfter is how long an ended allocation stays on its node when nothing needs it there any
	// more. A client that follows its output may be a moment behind.
	forgetAfter = 2 * time.Second
	// These bound one message of a set: roughly the bytes of its specs, and its allocations.
	maxPartBytes, maxPartAllocs = 8 << 20, 4096
	// The delays before a set is sent again that the agent answered and did not accept.
	sendFirst, sendLongest = 50 * time.Millisecond, 5 * time.Second
)

// send sends sets to the agent: the whole set on a new contact, then what changed. It is the only
// goroutine that sends, so sets reach the agent in order.
func (s *session) send(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.began:
	}
	box, delay := s.n.box, sendFirst
	forget, beat := time.NewTimer(forgetAfter), time.NewTimer(beatEvery)
	defer forget.Stop()
	defer beat.Stop()
	for {
		if next := s.dueToForget(); next > 0 {
			forget.Reset(next)
		}
		if next := s.guardDue(); next > 0 {
			beat.Reset(next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-forget.C:
			continue
		case <-beat.C:
			beat.Reset(beatEvery)
			if err := s.beat(ctx); err != nil {
				return err
			}
			continue
		case <-box.urgent:
		case <-box.wake:
			lazy := time.NewTimer(lazyFor)
			select {
			case <-ctx.Done():
			case <-box.urgent:
			case <-lazy.C:
			}
			lazy.Stop()
		}
		ids, all := box.take()
		if len(ids) == 0 && !all {
			continue
		}
		err := s.sendSet(ctx, ids, all)
		var refusal *wire.Refusal
		switch {
		case err == nil:
			delay = sendFirst
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refusal), muster.IsKind(err, muster.FaultUnavailable), errors.Is(err, errDeposed):
			// The agent refuses this server, is gone, or this server leads no more. The contact is
			// over.
			return err
		}
		// The agent answers and cannot accept the set now. The next try is a whole set, since it is
		// unknown how much of this one was accepted.
		s.n.log.Warn("set not taken, sending again", "error", err)
		wait.For(ctx, delay)
		delay = min(2*delay, sendLongest)
		box.addAll()
	}
}

// beatEvery is how often an empty set is sent. It is shorter than what agents expect,
// wire.SetEvery, to leave time for the way.
const beatEvery = wire.SetEveryMillis * 4 / 5 * time.Millisecond

// beat sends an empty set. It shows the agent that it still has a server, and renews the lease.
func (s *session) beat(ctx context.Context) error {
	fence, leads := s.n.l.fence(s.n.l.cfg.State.Latest())
	if !leads {
		return errDeposed
	}
	_, err := s.sendDesired(ctx, wire.Desired{Fence: fence})
	if err == nil && s.exclusive {
		// Exclusive work needs a second set: the guard counts from the answer before.
		_, err = s.sendDesired(ctx, wire.Desired{Fence: fence})
	}
	return err
}

// sendDesired sends a set with the node's lease and guard. A held node gets no lease.
func (s *session) sendDesired(ctx context.Context, d wire.Desired) (wire.DesiredAnswer, error) {
	if row := s.n.row.Load(); row.Intent != muster.NodeHold {
		d.LeaseMillis = s.n.l.cfg.Lease(row).Milliseconds()
	}
	d.GuardMillis, d.Tick = s.guardNow().Milliseconds(), s.tick
	answer, err := s.n.client.SendDesired(ctx, d)
	if err == nil {
		s.guarded(&d, &answer)
	}
	return answer, err
}

var errDeposed = errors.New("another leader has begun")

// part is one message of a set.
type part struct {
	wire.Desired
	size int
	// strays are allocations to stop although the log has no cause for it. They go last.
	strays []muster.AllocID
}

// sendSet sends what the log wants of some allocations, or of all. A large set goes in several
// messages. An error leaves the rest unsent; the caller then sends everything again.
func (s *session) sendSet(ctx context.Context, ids []muster.AllocID, all bool) error {
	// The snapshot is taken after the mail, so it has the changes that brought the mail.
	snap := s.n.l.cfg.State.Latest()
	fence, leads := s.n.l.fence(snap)
	if !leads {
		return errDeposed
	}
	if all {
		ids = s.everything(snap)
	}
	sent := false
	var p part
	for i, id := range ids {
		s.want(ctx, snap, id, &p)
		full := p.size >= maxPartBytes || len(p.Allocs)+len(p.Forget) >= maxPartAllocs
		if len(p.Allocs)+len(p.Forget) == 0 || !full && i < len(ids)-1 {
			continue
		}
		p.Fence = fence
		answer, err := s.sendDesired(ctx, p.Desired)
		if err != nil {
			return err
		}
		s.n.l.stats.sets.Add(1)
		s.answered(snap, &p, &answer)
		p, sent = part{strays: p.strays}, true
	}
	// Strays go last, and alone: the agent may refuse to stop so many.
	if len(p.strays) > 0 {
		if err := s.stopStrays(ctx, fence, p.strays); err != nil {
			return err
		}
		sent = true
	}
	if all && !sent {
		// Nothing is wanted, but the agent must still hear the fence: else it would obey an earlier
		// server.
		_, err := s.sendDesired(ctx, wire.Desired{Fence: fence})
		return err
	}
	return nil
}

// stopStrays stops allocations that the log does not know. Without a cause an agent stops at most
// half of what it runs, as protection against a server that has lost its data. If it refuses, the
// strays run to their end and keep their node until then.
func (s *session) stopStrays(ctx context.Context, fence wire.Fence, ids []muster.AllocID) error {
	d := wire.Desired{Fence: fence}
	for _, id := range ids {
		d.Allocs = append(d.Allocs, wire.DesiredAlloc{ID: id, Desired: muster.AllocStop})
	}
	_, err := s.sendDesired(ctx, d)
	var refusal *wire.Refusal
	spared := errors.As(err, &refusal) && refusal.Code == wire.RefusedMassStop
	if err != nil && !spared {
		return err
	}
	s.n.l.stats.sets.Add(1)
	s.mu.Lock()
	for _, id := range ids {
		if k := s.known[id]; k != nil && !spared {
			k.sent = muster.AllocStop
		} else if k != nil {
			s.spared[id], s.strays[id] = true, true
		}
	}
	strays := len(s.strays)
	s.mu.Unlock()
	if !spared {
		s.n.log.Warn("unknown to the log: stopped", "allocs", len(ids), "first", muster.Truncate(string(ids[0]), maxWord))
	} else {
		s.n.log.Warn("unknown to the log, and too many to stop without a cause: left to end by themselves", "allocs", len(ids), "why", refusal.Message)
		s.n.touch(func(c *health.Contact) { c.Strays, c.Spared = strays, true })
	}
	return nil
}

// everything returns the allocations that the log or the agent has on the node. It forgets what was
// sent before, so that want adds all of them again.
func (s *session) everything(snap *state.Snapshot) []muster.AllocID {
	var ids []muster.AllocID
	live := map[muster.AllocID]bool{}
	snap.NodeAllocs(s.n.id, func(a *state.Alloc) bool {
		ids = append(ids, a.ID)
		live[a.ID] = true
		return true
	})
	var rest []muster.AllocID
	s.mu.Lock()
	for id, k := range s.known {
		k.sent = ""
		if !live[id] {
			rest = append(rest, id)
		}
	}
	s.mu.Unlock()
	slices.Sort(rest)
	return append(ids, rest...)
}

// want adds to p what the agent should do about an allocation, if anything. It compares the row
// with what this contact has shown. Each stop has its cause in the log, but for those of
// strayLocked.
func (s *session) want(ctx context.Context, snap *state.Snapshot, id muster.AllocID, p *part) {
	s.mu.Lock()
	unknown := s.wantLocked(ctx, snap, id, p)
	s.mu.Unlock()
	if unknown {
		s.n.log.Warn("unknown since a backup was restored: left to end by itself", "alloc", id)
	}
}

// wantLocked is want. It reports whether the allocation was found to be unknown since a restore.
func (s *session) wantLocked(ctx context.Context, snap *state.Snapshot, id muster.AllocID, p *part) (unknown bool) {
	row := snap.Alloc(id)
	k := s.known[id]
	// held: the agent has the allocation. ended: it says that it has ended.
	held := k != nil && k.report != nil
	ended := held && k.report.Status == muster.AllocEnded
	switch {
	case row == nil || row.Node != s.n.id:
		return s.strayLocked(snap, id, k, p)
	case row.Live() && row.Desired == muster.AllocStop:
		if !ended && (k == nil || k.sent != muster.AllocStop) {
			p.stop(id)
		}
	case row.Live() && !held && row.Status != muster.AllocPlaced:
		// The agent reported it once and keeps that on its disk. So the disk was lost.
		s.lostLocked(row, fmt.Sprintf("node %s no longer has it: the agent's directory was lost or emptied", s.n.id))
	case row.Live():
		frozen := mustFreeze(snap, row)
		if ended || k != nil && k.sent == muster.AllocRun && k.frozen == frozen || !held && isTerminating(snap, s.n.id) {
			return false
		}
		d := wire.DesiredAlloc{ID: id, Desired: muster.AllocRun, Frozen: frozen}
		if !held {
			d.Spec = allocspec.Of(row, snap.Node(row.Node))
			d.Spec.Image = state.LoadedImagesOf(snap).Ref(d.Spec.Image)
			d.Spec.PullScope = s.n.l.puller(d.Spec.Image, d.Spec.Namespace).Scope
			p.size += sizeOf(d.Spec)
		}
		p.Allocs = append(p.Allocs, d)
	case !held:
		delete(s.known, id)
	case !ended:
		// The log has given it up and may have placed its member elsewhere.
		if k.sent != muster.AllocStop {
			p.stop(id)
		}
	case row.Output.Stage == state.OutputOpen:
		// The agent must keep it until its output is stored.
		s.shipLocked(ctx, id)
	case k.forget.IsZero():
		// Everything is stored. Let followers of the output finish, then forget it.
		k.forget = time.Now().Add(forgetAfter)
		s.forgets = append(s.forgets, id)
	case time.Now().Before(k.forget):
		// dueToForget brings it back when its time has come.
	default:
		p.Forget = append(p.Forget, id)
	}
	return false
}

// dueToForget puts the allocations whose time has come into the mailbox. It returns in how long to
// call it again; 0 if nothing waits.
func (s *session) dueToForget() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.forgets) > 0 {
		id := s.forgets[0]
		if k := s.known[id]; k != nil {
			if delay := k.forget.Sub(now); delay > 0 {
				// Not sooner than that, to forget those that follow closely together with it.
				return max(delay, forgetAfter/10)
			}
			s.n.box.add(id, false)
		}
		s.forgets = s.forgets[1:]
	}
	s.forgets = nil
	return 0
}

// stop adds a stop that has a cause in the log. Naming the allocation tells the agent so: it does
// not count against the limit for stops without a cause.
func (p *part) stop(id muster.AllocID) {
	p.Allocs = append(p.Allocs, wire.DesiredAlloc{ID: id, Desired: muster.AllocStop})
	p.Named = append(p.Named, id)
}

// strayLocked decides about an allocation that the agent has and the log does not have there: its
// job was purged, or a restored backup does not know it. It reports whether the latter was found
// now. s.mu is held.
func (s *session) strayLocked(snap *state.Snapshot, id muster.AllocID, k *known, p *part) (unknown bool) {
	switch {
	case k == nil || k.report == nil:
		delete(s.known, id)
	case k.report.Status == muster.AllocEnded:
		p.Forget = append(p.Forget, id)
	case snap.Meta().Epoch > 1:
		// After a restore the log lacks what was submitted after the backup. A user submitted this
		// allocation, so it is not stopped and ends by itself.
		unknown = !k.stray
		k.stray = true
	case s.spared[id]:
		// The agent has refused to stop it. It is not asked again in this session.
	case k.sent != muster.AllocStop:
		p.strays = append(p.strays, id)
	}
	return unknown
}

// lostLocked queues the end of an allocation that the agent no longer has. If the log wanted it
// stopped, that is a stop, not a loss. s.mu is held.
func (s *session) lostLocked(row *state.Alloc, why string) {
	u := state.AllocUpdate{ID: row.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeLost,
		Failure: &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonSandboxDied, Message: why},
		Output:  &state.Output{Stage: state.OutputIncomplete, Why: why}}
	if row.Desired == muster.AllocStop {
		u.Outcome, u.Failure = muster.OutcomeStopped, nil
		if row.Status == muster.AllocPlaced {
			// It never ran, so it has no output to miss.
			u.Output = &state.Output{Stage: state.OutputComplete}
		}
	}
	s.updateLocked(u)
}

// answered records what became of one message.
func (s *session) answered(snap *state.Snapshot, p *part, answer *wire.DesiredAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range p.Allocs {
		k := s.known[d.ID]
		if k == nil {
			k = &known{}
			s.known[d.ID] = k
		}
		k.sent, k.frozen = d.Desired, d.Frozen
	}
	kept := map[muster.AllocID]bool{}
	for _, id := range answer.NotEnded {
		kept[id] = true
	}
	for _, id := range p.Forget {
		if !kept[id] {
			delete(s.known, id)
			s.n.dropShip(id)
		}
	}
	for _, id := range answer.Unknown {
		k, row := s.known[id], snap.Alloc(id)
		delete(s.known, id)
		switch {
		case row == nil || !row.Live() || k == nil:
		case k.sent == muster.AllocStop:
			// The agent has nothing of it, and no older set can bring it any more.
			s.lostLocked(row, fmt.Sprintf("node %s no longer has it", s.n.id))
		default:
			// The agent needs the spec, which this message left out.
			s.n.box.add(id, true)
		}
	}
	// The agent never starts again what it was told to forget.
	for _, id := range answer.Forgotten {
		if row := snap.Alloc(id); row != nil && row.Live() {
			s.lostLocked(row, fmt.Sprintf("node %s was told before to forget it", s.n.id))
		}
	}
}

// mustFreeze reports whether a runner is to be frozen: its environment asks for that, and it is
// unclaimed.
func mustFreeze(snap *state.Snapshot, row *state.Alloc) bool {
	if row.Runner != muster.RunnerStarting && row.Runner != muster.RunnerWarm {
		return false
	}
	j := snap.JobByUID(row.UID)
	return j != nil && j.Env != nil && j.Env.Spec.Frozen
}

// sizeOf is roughly how many bytes a spec takes on the wire.
func sizeOf(s *wire.AllocSpec) int { return 512 + api.TextBytes(s) }
