package broker

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// followBatch bounds how long the lock is held for one batch of changes.
const followBatch = 1024

// follow advances the queue by the change feed, from the entry after index on.
func (b *Broker) follow(ctx context.Context, index uint64) error {
	feed := b.cfg.State.Feed()
	at := state.AfterIndex(index)
	for {
		changes, last, err := feed.After(at, followBatch)
		switch {
		case err != nil && muster.IsKind(err, muster.FaultTooOld):
			b.mu.Lock()
			// Under the lock: one taken before could fall behind as well while it is waited for.
			snap := b.cfg.State.Latest()
			b.stats.Resyncs++
			b.resyncLocked(snap)
			b.tellWorkersLocked()
			b.mu.Unlock()
			b.log.Warn("fell behind the change feed, queue is built anew", "index", snap.Index())
			at, last = state.AfterIndex(snap.Index()), snap.Index()
		case err != nil:
			return err
		case len(changes) == followBatch:
			b.step(changes)
			at = changes[len(changes)-1].Position()
			continue
		default:
			b.step(changes)
			at = state.AfterIndex(last)
		}
		if feed.Wait(ctx, last) != nil {
			return nil
		}
	}
}

// step takes in some changes, oldest first.
func (b *Broker) step(changes []state.Change) {
	if len(changes) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Rows as they are now, not as they were at each change: deciding on the
	// newest is what makes it right to see a change twice or late.
	snap := b.cfg.State.Latest()
	now := clock(snap)
	var jobs touched[muster.JobUID]
	var nodes touched[muster.NodeID]
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Job != nil:
			jobs.add(c.Job.UID)
			if c.JobBefore != nil && c.JobBefore.Parked == "" && c.Job.Parked != "" {
				jobs.moved[c.Job.UID] = false // what came before does not unpark it
			}
		case c.JobBefore != nil:
			jobs.add(c.JobBefore.UID)
		case c.Alloc != nil && c.AllocBefore != nil && c.AllocBefore.Live() && !c.Alloc.Live():
			b.endedLocked(c.Alloc, snap, &jobs)
		case c.NodeBefore != nil && (c.Node == nil || c.Node.Stage == muster.NodeGone):
			b.shrankForGoodLocked(c.NodeBefore.ID)
		case c.Node != nil && fit.Grew(c.NodeBefore, c.Node):
			b.grewLocked(c.Node.ID, c.Index)
			nodes.add(c.Node.ID)
		}
	}
	for _, uid := range jobs.order {
		b.reviewLocked(uid, snap, now)
		if e := b.entries[uid]; e != nil && e.stage == parked && jobs.moved[uid] {
			b.toParkLocked(e, &state.JobParked{UID: uid})
		}
	}
	for _, id := range nodes.order {
		if el := b.grownAt[id]; el != nil {
			b.offerLocked(el.Value.(growth), snap)
		}
	}
	b.tellWorkersLocked()
}

// endedLocked notes the job of an allocation that ended. One that succeeded
// leaves its member with nothing to want; but of a parked job every end is a change that may
// help.
func (b *Broker) endedLocked(a *state.Alloc, snap *state.Snapshot, jobs *touched[muster.JobUID]) {
	j := snap.JobByUID(a.UID)
	if j == nil || j.Waiting() == 0 && b.entries[a.UID] == nil {
		return
	}
	if j.Parked != "" {
		jobs.add(a.UID)
		jobs.moved[a.UID] = true
	} else if a.Outcome != muster.OutcomeSucceeded {
		jobs.add(a.UID)
	}
}

// touched is a set in order of first mention.
type touched[K comparable] struct {
	order []K
	moved map[K]bool // present: mentioned; true: its job moved by itself
}

func (t *touched[K]) add(k K) {
	if t.moved == nil {
		t.moved = map[K]bool{}
	}
	if _, ok := t.moved[k]; !ok {
		t.moved[k] = false
		t.order = append(t.order, k)
	}
}
