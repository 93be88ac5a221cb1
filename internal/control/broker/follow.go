package broker

import (
	"context"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// followBatch bounds how many changes are read under one lock, and so how long it is held.
const followBatch = 1024

// follow advances the queue by the change feed until ctx ends.
func (b *Broker) follow(ctx context.Context) error {
	for {
		b.mu.Lock()
		resyncs := b.stats.Resyncs
		n, err := b.followLocked()
		b.tellWorkersLocked()
		last, behind := b.followed, b.stats.Resyncs != resyncs
		b.mu.Unlock()
		switch {
		case err != nil:
			return err
		case behind:
			b.log.Warn("fell behind the change feed; the queue is rebuilt", "index", last)
		case n == followBatch:
			// More changes are there. The lock was free in between.
			continue
		}
		if b.cfg.State.Feed().Wait(ctx, last) != nil {
			return nil
		}
	}
}

// followLocked takes the next batch of changes and returns its size. It may hold the lock during
// the read: the feed's own lock is never held for long.
func (b *Broker) followLocked() (int, error) {
	changes, last, err := b.cfg.State.Feed().After(b.at, followBatch)
	switch {
	case err != nil && muster.IsKind(err, muster.FaultTooOld):
		// The snapshot is taken under the lock. One taken before could fall behind the feed too
		// while this waits for the lock.
		b.stats.Resyncs++
		b.resyncLocked(b.cfg.State.Latest())
		return 0, nil
	case err != nil:
		return 0, err
	}
	b.stepLocked(changes)
	if len(changes) == followBatch {
		// The batch may end inside an entry, so only the entry before is known to be complete.
		b.at = changes[len(changes)-1].Position()
		b.followed = max(b.followed, b.at.Index-1)
	} else {
		b.at, b.followed = state.AfterIndex(last), last
	}
	return len(changes), nil
}

// stepLocked processes a batch of changes. It first collects what they touch, then reviews each
// job, limit and node once.
func (b *Broker) stepLocked(changes []state.Change) {
	if len(changes) == 0 {
		return
	}
	// The rows are read from the newest snapshot, not from the changes. So it is harmless to see a
	// change twice or late.
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	var jobs touched[muster.JobUID]
	var nodes touched[muster.NodeID]
	var limits touched[muster.Namespace]
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Job != nil:
			jobs.add(c.Job.UID)
			if c.JobBefore != nil && c.JobBefore.Parked == "" && c.Job.Parked != "" {
				// Changes before the parking do not unpark the job.
				jobs.retryParked[c.Job.UID] = false
			}
		case c.JobBefore != nil:
			jobs.add(c.JobBefore.UID)
		case c.Alloc != nil && c.AllocBefore != nil && c.AllocBefore.Live() && !c.Alloc.Live():
			b.endedLocked(c.Alloc, snap, &jobs)
			limits.add(c.Alloc.Run.Key.Namespace)
			limits.add(muster.AllNamespaces)
		case c.Limits != nil:
			limits.add(c.Limits.Name)
		case c.NodeBefore != nil && (c.Node == nil || c.Node.Stage == muster.NodeGone):
			b.shrankForGoodLocked(c.NodeBefore.ID)
		case c.Node != nil && (fit.Grew(c.NodeBefore, c.Node) || c.Verb == state.VerbNodeReserved):
			b.grewLocked(c.Node.ID, c.Index)
			nodes.add(c.Node.ID)
		}
	}
	// Jobs come first: a job that is gone must not be woken for room.
	for _, uid := range jobs.order {
		b.reviewLocked(uid, snap, now)
		if e := b.entries[uid]; e != nil && e.stage == parked && jobs.retryParked[uid] {
			b.toParkLocked(e, &state.JobParked{UID: uid})
		}
	}
	for _, ns := range limits.order {
		b.offerLimitLocked(ns, snap)
	}
	for _, id := range nodes.order {
		if el := b.grownAt[id]; el != nil {
			b.offerLocked(el.Value.(growth), snap)
		}
	}
}

// endedLocked notes the job of an allocation that has ended. A success leaves its member with
// nothing to want, so it is ignored. But for a parked job every end is a change that may help.
func (b *Broker) endedLocked(a *state.Alloc, snap *state.Snapshot, jobs *touched[muster.JobUID]) {
	j := snap.JobByUID(a.UID)
	if j == nil || j.Waiting() == 0 && b.entries[a.UID] == nil {
		return
	}
	if j.Parked != "" {
		jobs.add(a.UID)
		jobs.retryParked[a.UID] = true
	} else if a.Outcome != muster.OutcomeSucceeded || a.Run.Standing() {
		jobs.add(a.UID)
	}
}

// touched is a set that keeps the order of first mention.
type touched[K comparable] struct {
	order []K
	// retryParked has a key for each mention. The value is true if a parked job should be tried again.
	retryParked map[K]bool
}

// add mentions a key.
func (t *touched[K]) add(k K) {
	if t.retryParked == nil {
		t.retryParked = map[K]bool{}
	}
	if _, ok := t.retryParked[k]; !ok {
		t.retryParked[k] = false
		t.order = append(t.order, k)
	}
}
