package runners

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/warm"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// together is how many environments are decided about at the same time. The log commits their facts
// together, so that thousands of environments that change at once wait for few writes of the disk.
const together = 256

// stock decides about the environments that have changed or whose time has come. It returns when
// the next one's time comes; 0 if none has one.
func (r *Runners) stock(ctx context.Context, now muster.Time) (next muster.Time) {
	var due []*pool
	r.mu.Lock()
	r.wakes.Scan(func(p *pool) bool {
		if p.wake <= now && !r.dirty[p.uid] {
			due = append(due, p)
		}
		return p.wake <= now
	})
	for uid := range r.dirty {
		if p := r.pools[uid]; p != nil {
			due = append(due, p)
		}
	}
	// The marks are cleared before the decisions: a change during them marks the environment again.
	clear(r.dirty)
	r.mu.Unlock()
	slices.SortFunc(due, func(a, b *pool) int { return compareUIDs(a.uid, b.uid) })
	var g errgroup.Group
	g.SetLimit(together)
	for _, p := range due {
		g.Go(func() error { r.decide(ctx, p, now); return nil })
	}
	_ = g.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.wakes.Min(); ok {
		next = p.wake
	}
	return next
}

func compareUIDs(a, b muster.JobUID) int { return cmp.Compare(a, b) }

// decide decides about one environment. The demand and the snapshot are at least as new as the
// change that marked it; a later change marks it again.
func (r *Runners) decide(ctx context.Context, p *pool, now muster.Time) {
	r.mu.Lock()
	demand := p.picture(now, r.began)
	r.mu.Unlock()
	snap := r.cfg.State.Latest()
	var d warm.Decision
	if j := snap.JobByUID(p.uid); j != nil && j.Env != nil && j.Stage == muster.JobLive {
		d = warm.Plan(snap, j, demand, now)
		alert := r.alert(p, j, &d, now)
		// The demand that raised the stock goes with it: the next leader must not lower it again.
		var seen *state.WarmDemand
		if meta := snap.Meta(); d.Stock > j.Env.Stock && meta.LogFormat() >= state.FormatDemand {
			seen = warm.Record(demand, now)
		}
		if err := r.carryOut(ctx, j, &d, alert, seen); err != nil && ctx.Err() == nil {
			if !muster.IsKind(err, muster.FaultConflict) {
				r.log.Warn("what an environment wants cannot be written down", "environment", j.Key.String(), "error", err)
			}
			// Nothing was committed. Try again soon.
			d.Wake = now.Add(time.Second)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.stock = d.Stock
	r.wakeAtLocked(p, d.Wake)
}

// wakeAtLocked sets when a pool is decided about even if nothing changes; 0 means not by time. The
// pool leaves the tree before its key changes.
func (r *Runners) wakeAtLocked(p *pool, at muster.Time) {
	r.wakes.Delete(p)
	p.wake = at
	if at != 0 && r.pools[p.uid] == p {
		r.wakes.Set(p)
	}
}

// alert returns since when too few runners are warm, once that has lasted as long as the
// environment allows; else 0.
func (r *Runners) alert(p *pool, j *state.Job, d *warm.Decision, now muster.Time) muster.Time {
	if !d.Short {
		p.shortSince = 0
		return 0
	}
	if p.shortSince == 0 {
		p.shortSince = now
	}
	if j.Env.Alert != 0 {
		return j.Env.Alert
	}
	due := p.shortSince.Add(j.Env.Spec.Alert.For.Std())
	if now >= due {
		r.log.Warn("too few runners are warm", "environment", j.Key.String(), "warm", j.Env.Warm, "wanted", d.Stock)
		return p.shortSince
	}
	if d.Wake == 0 || due < d.Wake {
		d.Wake = due
	}
	return 0
}

// carryOut commits a decision: the wanted numbers first, then the stops. Nothing is proposed if
// nothing changes. After an error the rest is left for the next decision. seen is the demand to be
// recorded with them, nil for none.
func (r *Runners) carryOut(ctx context.Context, j *state.Job, d *warm.Decision, alert muster.Time, seen *state.WarmDemand) error {
	e := j.Env
	if d.Count != e.Wanted || d.Priority != e.Priority && d.Count > j.NextIndex || d.Stock != e.Stock || d.Floor != e.Floor || d.Why != e.Why || d.Drop || alert != e.Alert {
		if d.Stock != e.Stock {
			r.log.Info("environment wants another number warm", "environment", j.Key.String(), "warm", d.Stock, "before", e.Stock, "why", d.Why)
		}
		f := &state.RunnersWanted{UID: j.UID, Count: d.Count, Priority: d.Priority, Stock: d.Stock, Floor: d.Floor, Why: d.Why, Drop: d.Drop, Alert: alert, Demand: seen}
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil {
			return err
		}
	}
	if len(d.Unready) > 0 {
		r.log.Warn("runners do not become ready", "environment", j.Key.String(), "runners", len(d.Unready), "why", d.UnreadyWhy)
		if _, _, err := r.cfg.Proposer.Propose(ctx, &state.RunnersStopped{UID: j.UID, Runners: d.Unready, Why: d.UnreadyWhy, Unready: true}); err != nil {
			return err
		}
	}
	if len(d.Stop) > 0 {
		r.log.Info("runners are ended", "environment", j.Key.String(), "runners", len(d.Stop), "why", d.StopWhy)
		if _, _, err := r.cfg.Proposer.Propose(ctx, &state.RunnersStopped{UID: j.UID, Runners: d.Stop, Why: d.StopWhy}); err != nil {
			return err
		}
	}
	return nil
}

// expire ends the claims whose time is over or whose client has left, and commits uses now and
// then. It returns when the next claim is due.
func (r *Runners) expire(ctx context.Context, now muster.Time) (next muster.Time) {
	var over []state.Expiry
	var used []state.Touch
	later := func(at muster.Time) {
		if next == 0 || at < next {
			next = at
		}
	}
	r.mu.Lock()
	snap := r.cfg.State.Latest()
	snap.DueClaims(func(c *state.Claim) bool {
		if c.Due() > now {
			later(c.Due())
			// They come in the order of their deadlines, so all later ones are not due either.
			return false
		}
		last, known := r.lastLocked(c, now)
		switch {
		case len(over) == batch:
			later(now)
			return false
		case c.Deadline != 0 && c.Deadline <= now:
			over = append(over, state.Expiry{Claim: c.ID, Modified: c.Modified, Reason: fmt.Sprintf("its time of %s is over", c.Deadline.Sub(c.Made).Round(time.Millisecond))})
		case last+c.Idle <= now:
			over = append(over, state.Expiry{Claim: c.ID, Modified: c.Modified, Reason: fmt.Sprintf("nothing was done with its runner for %s", muster.Time.Sub(c.Idle, 0))})
		default:
			// It was used since the log's last entry about it, or may have been, so it is not idle
			// yet.
			later(last + c.Idle)
			if c.Deadline != 0 {
				later(c.Deadline)
			}
			if known && last-c.Used >= writeEvery(c.Idle) {
				used = append(used, state.Touch{Claim: c.ID, At: last})
			}
		}
		return true
	})
	left := r.leftLocked(snap, now)
	if len(r.left) > 0 {
		later(now.Add(time.Second))
	}
	r.mu.Unlock()
	var facts []state.Fact
	for part := range slices.Chunk(used, batch) {
		facts = append(facts, &state.ClaimsTouched{Claims: part})
	}
	if len(over) > 0 {
		facts = append(facts, &state.ClaimsExpired{Claims: over})
	}
	for _, id := range left {
		facts = append(facts, &state.ClaimReleased{Claim: id, Reason: clientLeft})
	}
	for _, f := range facts {
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil && ctx.Err() == nil && !muster.IsKind(err, muster.FaultTooOld) {
			r.log.Warn("claims cannot be written down", "error", err)
			later(now.Add(time.Second))
		}
	}
	return next
}

// clientLeft is the reason for the release of a claim that no client knows.
const clientLeft = "its client left before it had the answer"

// leftTime is for how long a claim is looked for that may still get into the log.
const leftTime = 10 * time.Minute

// leave remembers a claim that no client knows: expire releases it once it is in the log.
func (r *Runners) leave(id muster.ClaimID) {
	r.mu.Lock()
	r.left[id] = r.cfg.Clock.Now()
	r.mu.Unlock()
	wait.Poke(r.claims)
}

// leftLocked returns the claims to release whose clients have left. It forgets those that have
// ended, and those that did not get into the log in time.
func (r *Runners) leftLocked(snap *state.Snapshot, now muster.Time) (release []muster.ClaimID) {
	for id, since := range r.left {
		switch c := snap.Claim(id); {
		case c != nil && c.State == muster.ClaimHeld:
			release = append(release, id)
		case c != nil, now.Sub(since) >= leftTime:
			delete(r.left, id)
		}
	}
	slices.Sort(release)
	return release
}

// purge forgets runners that have ended long ago. It looks only at those.
func (r *Runners) purge(ctx context.Context, now muster.Time) {
	var ids []muster.AllocID
	taken := map[*pool][]gone{}
	r.mu.Lock()
	for _, p := range r.pools {
		if past := p.past(r.cfg.KeepMost, now.Add(-r.cfg.Keep)); len(past) > 0 {
			taken[p] = past
		}
		for _, g := range taken[p] {
			ids = append(ids, g.id)
		}
	}
	r.mu.Unlock()
	for part := range slices.Chunk(ids, batch) {
		if _, _, err := r.cfg.Proposer.Propose(ctx, &state.RunnersPurged{Runners: part}); err != nil {
			if ctx.Err() == nil {
				r.log.Warn("runners that are gone were not forgotten; retried later", "error", err)
			}
			r.mu.Lock()
			// Put all back. The state refuses those that were purged all the same the next time.
			for p, past := range taken {
				p.gone = append(past, p.gone...)
			}
			r.mu.Unlock()
			return
		}
	}
}
