package broker

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// parkRetry is how long a fact that could not be proposed waits for the next try.
const parkRetry = time.Second

// toParkLocked has a fact proposed that parks or, with no reason, unparks the job.
func (b *Broker) toParkLocked(e *entry, fact *state.JobParked) {
	b.setTimerLocked(e, 0)
	b.moveLocked(e, parking)
	e.fact = fact
	b.parking = append(b.parking, e)
	wait.Poke(b.toPark)
}

// parkedLocked: the state says that the job is parked.
func (b *Broker) parkedLocked(e *entry, j *state.Job, snap *state.Snapshot) {
	if e.stage == parking && e.fact.Reason == "" {
		return // the fact that unparks it is on its way
	}
	e.nacks = 0
	b.moveLocked(e, parked)
	b.setTimerLocked(e, j.ParkedUntil)
	b.releaseLocked(e, snap)
}

// park proposes what parks and unparks jobs, one by one: there are few.
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
			case err != nil:
				b.log.Warn("park a job", "job", key, "reason", fact.Reason, "error", err)
			case fact.Reason != "":
				b.log.Warn("job parked", "job", key, "reason", fact.Reason, "until", fact.Until.Std())
			}
		}
	}
}

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

func (b *Broker) proposedLocked(e *entry, fact *state.JobParked, err error) {
	if e.stage != parking || e.fact != fact {
		return // the feed was faster
	}
	snap := b.cfg.State.Latest()
	now := b.clock(snap)
	if err != nil && !muster.IsKind(err, muster.FaultConflict) && !muster.IsKind(err, muster.FaultNotFound) {
		b.setTimerLocked(e, now.Add(parkRetry))
		return
	}
	if err == nil && fact.Reason != "" {
		b.stats.ParkFacts++
	}
	b.moveLocked(e, delayed) // until the next line
	b.reviewLocked(e.uid, snap, now)
}
