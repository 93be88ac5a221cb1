package runners

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Uses of claims are counted in memory: a fact for each request to a runner would cost more than the
// request. What the next leader has to know is recorded in the log in coarse steps, for all claims
// that were used together, so that claims in use do not expire when the leader changes, and idle
// ones still do.

const (
	// recordEvery is how often uses of claims and the demand for runners are recorded in the log, if
	// there is something to record.
	recordEvery = 5 * time.Second
	// recordSlack is how much longer a record may take to get into the log.
	recordSlack = 5 * time.Second
	// reconnect is how long a holder has after a change of the leader until its claim may expire for
	// idleness: its requests have just failed, and are to be made again.
	reconnect = 30 * time.Second
)

// use is what memory knows about the use of a claim.
type use struct {
	// last is when the last request that used its runner ended.
	last muster.Time
	// busy is how many requests use its runner now.
	busy int
	// recent says that the claim is among Runners.recent.
	recent bool
}

// Use records that a claim's runner is in use until end is called. Meanwhile the claim does not
// become idle.
func (r *Runners) Use(id muster.ClaimID) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.uses[id]
	if u == nil {
		u = &use{}
		if !isHeld(r.cfg.State.Latest(), id) {
			// The claim has ended. An entry would stay for ever.
			return func() {}
		}
		r.uses[id] = u
	}
	u.busy++
	r.usedLocked(id, u)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		u.busy--
		u.last = r.cfg.Clock.Now()
		// A claim that has ended meanwhile, or under another leader, is recorded no more.
		if r.uses[id] == u {
			r.usedLocked(id, u)
		}
	}
}

// usedLocked marks a claim as used since the log was told. r.mu is held.
func (r *Runners) usedLocked(id muster.ClaimID, u *use) {
	if !u.recent {
		u.recent = true
		r.recent = append(r.recent, id)
	}
}

// record tells the log, in coarse steps, what the next leader must know of uses and demand.
func (r *Runners) record(ctx context.Context) {
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, f := range append(r.recentUses(r.now()), r.recentDemand(r.now())...) {
			if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
				if ctx.Err() == nil {
					r.log.Warn("uses of claims and the demand for runners are not recorded; retried later", "error", err)
				}
				break
			}
		}
	}
}

// recentUses returns the facts that record the uses since the last call. A claim of which the log
// knows a use that is nearly as late is left out.
func (r *Runners) recentUses(now muster.Time) (out []state.Fact) {
	var touched []state.Touch
	r.mu.Lock()
	snap := r.cfg.State.Latest()
	keep := r.recent[:0]
	for _, id := range r.recent {
		u, c := r.uses[id], snap.Claim(id)
		if u == nil || c == nil || c.State != muster.ClaimHeld || c.Idle == 0 {
			if u != nil {
				u.recent = false
			}
			continue
		}
		last := u.last
		if u.busy > 0 {
			last = now
		}
		if last-c.Used >= writeEvery(c.Idle) {
			touched = append(touched, state.Touch{Claim: id, At: last})
		}
		// A claim stays as long as a request uses it, and once more after that: if the log refuses
		// the record, the next time makes up for it.
		if u.recent = u.busy > 0 || last-c.Used >= writeEvery(c.Idle); u.recent {
			keep = append(keep, id)
		}
	}
	clear(r.recent[len(keep):])
	r.recent = keep
	r.mu.Unlock()
	for part := range slices.Chunk(touched, batch) {
		out = append(out, &state.ClaimsTouched{Claims: part})
	}
	return out
}

// writeEvery is by how much a use must be later than the one in the log to be recorded. It is a part
// of the idle time: claims that are used all the time cost the log little.
func writeEvery(idle muster.Time) muster.Time {
	return max(idle/4, muster.Time(recordEvery.Microseconds()))
}

// mostBehind is by how much the log may be behind with the last use of a claim: a use that is just
// too early to be recorded, followed by one that the leader did not live to record.
func mostBehind(idle muster.Time) muster.Time {
	return writeEvery(idle) + muster.Time((recordEvery + recordSlack).Microseconds())
}

// lastLocked returns when a claim's runner was last used, as far as its idleness goes. known says
// that it is not an estimate: only then it may be recorded. An estimate that was recorded would be
// the base of the next leader's, and no idle claim would end while leaders change.
//
// What an earlier leader knew and had not recorded is taken for the latest that it can be. A holder
// has some time to come back after a change of the leader. When a claim became due while nobody led,
// its holder could not use it, so it has its whole idle time again.
func (r *Runners) lastLocked(c *state.Claim, now muster.Time) (last muster.Time, known bool) {
	if u := r.uses[c.ID]; u != nil {
		if u.busy > 0 {
			return now, true
		}
		if u.last > 0 {
			return max(u.last, c.Used), true
		}
	}
	if c.Used >= r.began {
		return c.Used, true
	}
	last = min(c.Used+mostBehind(c.Idle), r.began)
	switch due := last + c.Idle; {
	case due <= r.began:
		return r.began, true
	case due < r.began.Add(reconnect):
		return min(r.began.Add(reconnect)-c.Idle, r.began), false
	}
	return last, false
}
