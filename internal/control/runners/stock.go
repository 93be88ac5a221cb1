package runners

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/warm"
	"github.com/musterhq/muster/internal/state"
)

// stock decides about the environments that have changed, or whose time has come, and tells when the next one's does.
func (r *Runners) stock(ctx context.Context, now muster.Time) (next muster.Time) {
	type look struct {
		p *pool
		d warm.Demand
	}
	var looks []look
	r.mu.Lock()
	// Under the lock: what was marked before is in the snapshot.
	snap := r.cfg.State.Latest()
	for uid, p := range r.pools {
		if r.dirty[uid] || p.wake != 0 && p.wake <= now {
			looks = append(looks, look{p, p.picture(now, r.began)})
		}
	}
	clear(r.dirty)
	r.mu.Unlock()
	slices.SortFunc(looks, func(a, b look) int { return cmp.Compare(a.p.uid, b.p.uid) })
	for _, l := range looks {
		j := snap.JobByUID(l.p.uid)
		if j == nil || j.Env == nil || j.Stage != muster.JobLive {
			continue
		}
		d := warm.Plan(snap, j, l.d, now)
		alert := r.alert(l.p, j, &d, now)
		if err := r.carryOut(ctx, j, &d, alert); err != nil && ctx.Err() == nil {
			if !muster.IsKind(err, muster.FaultConflict) {
				r.log.Warn("what an environment wants cannot be written down", "environment", j.Key.String(), "error", err)
			}
			d.Wake = now.Add(time.Second)
		}
		r.mu.Lock()
		l.p.wake, l.p.stock = d.Wake, d.Stock
		r.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		if p.wake != 0 && (next == 0 || p.wake < next) {
			next = p.wake
		}
	}
	return next
}

// alert is since when too few are warm, once that has lasted; 0: it has not.
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

func (r *Runners) carryOut(ctx context.Context, j *state.Job, d *warm.Decision, alert muster.Time) error {
	e := j.Env
	if d.Count != e.Wanted || d.Priority != e.Priority && d.Count > j.NextIndex || d.Stock != e.Stock || d.Floor != e.Floor || d.Why != e.Why || d.Drop || alert != e.Alert {
		if d.Stock != e.Stock {
			r.log.Info("environment wants another number warm", "environment", j.Key.String(), "warm", d.Stock, "before", e.Stock, "why", d.Why)
		}
		f := &state.RunnersWanted{UID: j.UID, Count: d.Count, Priority: d.Priority, Stock: d.Stock, Floor: d.Floor, Why: d.Why, Drop: d.Drop, Alert: alert}
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

// expire ends claims whose time is over, and tells when the next one's is.
func (r *Runners) expire(ctx context.Context, now muster.Time) (next muster.Time) {
	var over state.ClaimsExpired
	var used state.ClaimsTouched
	later := func(at muster.Time) {
		if next == 0 || at < next {
			next = at
		}
	}
	snap := r.cfg.State.Latest()
	r.mu.Lock()
	snap.DueClaims(func(c *state.Claim) bool {
		if c.Due() > now {
			later(c.Due())
			return false
		}
		last := r.lastLocked(c, now)
		switch {
		case len(over.Claims) == batch:
			later(now)
			return false
		case c.Deadline != 0 && c.Deadline <= now:
			over.Claims = append(over.Claims, state.Expiry{Claim: c.ID, Modified: c.Modified, Reason: fmt.Sprintf("its time of %s is over", c.Deadline.Sub(c.Made).Round(time.Millisecond))})
		case last+c.Idle <= now:
			over.Claims = append(over.Claims, state.Expiry{Claim: c.ID, Modified: c.Modified, Reason: fmt.Sprintf("nothing was done with its runner for %s", muster.Time.Sub(c.Idle, 0))})
		default:
			later(last + c.Idle)
			if c.Deadline != 0 {
				later(c.Deadline)
			}
			if last-c.Used >= writeEvery(c.Idle) {
				used.Claims = append(used.Claims, state.Touch{Claim: c.ID, At: last})
			}
		}
		return true
	})
	r.mu.Unlock()
	for _, f := range []state.Fact{&used, &over} {
		if u, ok := f.(*state.ClaimsTouched); ok && len(u.Claims) == 0 || len(over.Claims) == 0 && f == state.Fact(&over) {
			continue
		}
		if _, _, err := r.cfg.Proposer.Propose(ctx, f); err != nil && ctx.Err() == nil {
			r.log.Warn("claims cannot be written down", "error", err)
			later(now.Add(time.Second))
		}
	}
	return next
}

// writeEvery is how much later than what is written down a use must be to be written down.
func writeEvery(idle muster.Time) muster.Time {
	return max(idle/4, muster.Time((5 * time.Second).Microseconds()))
}

// lastLocked is when a claim's runner was last used. What was used under another leader is not
// known here, so it counts from the beginning of this one.
func (r *Runners) lastLocked(c *state.Claim, now muster.Time) muster.Time {
	last := max(c.Used, r.began)
	if u := r.uses[c.ID]; u != nil {
		if u.busy > 0 {
			return now
		}
		last = max(last, u.last)
	}
	return last
}

// purge forgets runners that are long gone.
func (r *Runners) purge(ctx context.Context, now muster.Time) {
	snap := r.cfg.State.Latest()
	var gone []muster.AllocID
	snap.Environments(func(j *state.Job) bool {
		var ended []*state.Alloc
		snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			if !a.Live() && a.Runner == muster.RunnerGone && a.Output.Stage != state.OutputOpen {
				ended = append(ended, a)
			}
			return true
		})
		slices.SortStableFunc(ended, func(a, b *state.Alloc) int { return cmp.Compare(a.Ended, b.Ended) })
		for i, a := range ended {
			if len(ended)-i > r.cfg.KeepMost || now.Sub(a.Ended) >= r.cfg.Keep {
				gone = append(gone, a.ID)
			}
		}
		return true
	})
	for part := range slices.Chunk(gone, batch) {
		if _, _, err := r.cfg.Proposer.Propose(ctx, &state.RunnersPurged{Runners: part}); err != nil {
			if ctx.Err() == nil {
				r.log.Warn("runners that are gone cannot be forgotten", "error", err)
			}
			return
		}
	}
}
