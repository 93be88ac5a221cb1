package broker

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// giveUpFactor is after how many times PassFor an insufficient reservation is given up for another node.
const giveUpFactor = 6

// reserve looks regularly for starved jobs, and for reservations that are of no use.
//
// Small jobs fill room as it becomes free, so a large job that needs it all at once could starve. A
// job that has been passed over for PassFor gets room reserved on one node, for one member, by a
// fact; the room fills up as work there ends. How long a job was passed over is in the leader's
// memory only: a new leader counts from the start.
func (b *Broker) reserve(ctx context.Context) error {
	tick := time.NewTicker(max(b.cfg.PassFor/16, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, f := range b.reservations() {
			_, _, err := b.cfg.Proposer.Propose(ctx, f)
			switch r, made := f.(*state.RoomReserved); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				b.log.Info("a reservation was not made or not released; it is tried again", "fact", f, "error", err)
			case made:
				b.mu.Lock()
				b.stats.Reserved++
				b.mu.Unlock()
				b.log.Info("capacity reserved", "node", r.Node, "job", r.UID, "after", b.cfg.PassFor)
			}
		}
	}
}

// reservations returns the facts that are due: releases if there are any, otherwise at most one new
// reservation.
func (b *Broker) reservations() (facts []state.Fact) {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	heads := b.headsLocked()
	active := 0
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Reserved == nil {
			return true
		}
		why := releaseReason(n, heads, now, b.cfg.PassFor)
		if e := b.entries[n.Reserved.UID]; why == "" && e != nil && e.stage == blocked && e.limitedIn != "" {
			why = "a limit of its namespace keeps the job from using it"
		}
		if why != "" {
			facts = append(facts, &state.RoomReleased{Node: n.ID, UID: n.Reserved.UID, Reason: why})
			if e := b.entries[n.Reserved.UID]; e != nil {
				// It has to wait its full time before it gets another one.
				e.since = now
			}
		} else {
			active++
		}
		return true
	})
	if len(facts) > 0 {
		// New reservations are made the next time, when the state has the released room.
		return facts
	}
	for _, e := range heads {
		j := snap.JobByUID(e.uid)
		if active >= b.cfg.Reservations || j == nil || j.Version != e.version || j.Reserved != "" || now.Sub(e.since) < b.cfg.PassFor {
			continue
		}
		if id := place.Reserve(snap, e.group.shape, place.Occupied(snap, e.group.shape, j.UID, e.avoid)); id != "" {
			// One at a time: the next one is chosen on a state that has this one.
			return []state.Fact{&state.RoomReserved{Node: id, UID: e.uid, Version: e.version}}
		}
	}
	return nil
}

// headsLocked returns the first job of each blocked shape, in the order of service.
func (b *Broker) headsLocked() (heads []*entry) {
	for _, g := range b.groups {
		if e, ok := g.entries.Min(); ok {
			heads = append(heads, e)
		}
	}
	slices.SortFunc(heads, func(x, y *entry) int { return x.rank(y) })
	return heads
}

// releaseReason returns why a reservation is given up; empty if it stays. It is given up if its node
// takes no work, if it has not been enough for too long, or if work of a higher priority waits for
// exactly this room.
func releaseReason(n *state.Node, heads []*entry, now muster.Time, passFor time.Duration) string {
	r := n.Reserved
	switch {
	case !n.Schedulable():
		return "the node takes no new work"
	case now.Sub(r.Since) > giveUpFactor*passFor && !r.Room.Fits(n.Free()):
		return "it did not come free"
	}
	for _, e := range heads {
		s := e.group.shape
		if e.priority > r.Priority && e.uid != r.UID && !s.Ask.Fits(fit.Room(n)) && fit.Check(s, n, n.Free(), e.avoid).Kind == fit.None {
			return "work of higher priority comes first"
		}
	}
	return ""
}

// offerReservedLocked wakes the job for which room is reserved on a node, if the room is sufficient
// by now.
func (b *Broker) offerReservedLocked(n *state.Node) {
	if n.Reserved == nil {
		return
	}
	e := b.entries[n.Reserved.UID]
	// A job that a namespace's limit blocks is in no group. Room does not help it, and its
	// reservation is released soon.
	if e == nil || e.stage != blocked || e.group == nil || fit.Check(e.group.shape, n, n.Free(), e.avoid).Kind != fit.None {
		return
	}
	b.stats.Woken++
	b.setTimerLocked(e, 0)
	e.wants = 1
	b.moveLocked(e, ready)
}
