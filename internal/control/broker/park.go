package broker

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// parkRetry is the delay after a fact could not be proposed.
const parkRetry = time.Second

// toParkLocked has a fact proposed that parks the job or, without a reason, unparks it.
func (b *Broker) toParkLocked(e *entry, fact *state.JobParked) {
	b.setTimerLocked(e, 0)
	b.moveLocked(e, parking)
	e.fact = fact
	b.parking = append(b.parking, e)
	wait.Poke(b.toPark)
}

// parkedLocked handles a job that the state has as parked.
func (b *Broker) parkedLocked(e *entry, j *state.Job, snap *state.Snapshot) {
	if e.stage == parking && e.fact.Reason == "" {
		// The fact that unparks it is being proposed.
		return
	}
	e.nacks = 0
	b.moveLocked(e, parked)
	b.setTimerLocked(e, j.ParkedUntil)
	b.releaseLocked(e, snap)
}

// park proposes the facts that park and unpark jobs, one after the other: there are few. The lock
// is released during a proposal, and the entry may change meanwhile.
func (b *Broker) park(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.toPark:
		}
		for {
			b.mu.Lock()
			e := b.nextToParkLocked()
			var fact *state.JobParked
			var key muster.JobKey
			if e != nil {
				fact, key = e.fact, e.key
			}
			b.mu.Unlock()
			if e == nil {
				break
			}
			_, _, err := b.cfg.Proposer.Propose(ctx, fact)
			if ctx.Err() != nil {
				return nil
			}
			b.mu.Lock()
			b.proposedLocked(e, fact, err)
			b.tellWorkersLocked()
			b.mu.Unlock()
			switch {
			case err != nil && fact.Reason == "":
				b.log.Warn("a job could not be unparked", "job", key, "error", err)
			case err != nil:
				b.log.Warn("a job could not be parked", "job", key, "reason", fact.Reason, "error", err)
			case fact.Reason != "":
				b.log.Warn("job parked", "job", key, "reason", fact.Reason, "until", fact.Until.Std())
			}
		}
	}
}

// nextToParkLocked takes the next entry from the list. It skips those that the feed has moved on,
// and those that wait for a retry.
func (b *Broker) nextToParkLocked() *entry {
	for len(b.parking) > 0 {
		e := b.parking[0]
		b.parking[0] = nil
		if b.parking = b.parking[1:]; e.stage == parking && e.at == 0 {
			return e
		}
	}
	return nil
}

// proposedLocked handles the result of a proposal. If the feed has already shown the fact, the
// entry has moved on and there is nothing to do.
func (b *Broker) proposedLocked(e *entry, fact *state.JobParked, err error) {
	if e.stage != parking || e.fact != fact {
		return // the feed has shown it already
	}
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	// No refusal: the log could not take it now. Try again later, and keep the stage.
	if err != nil && !muster.IsKind(err, muster.FaultConflict) && !muster.IsKind(err, muster.FaultNotFound) {
		b.setTimerLocked(e, now.Add(parkRetry))
		return
	}
	if err == nil && fact.Reason != "" {
		b.stats.ParkFacts++
	}
	// Any stage but parking, for reviewLocked sets the right one.
	b.moveLocked(e, delayed)
	b.reviewLocked(e.uid, snap, now)
}
