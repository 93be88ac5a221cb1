package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/decide/warm"
	"github.com/musterhq/muster/internal/state"
)

// What is due happens within its time plus slack, by the bubble's own clock: the log's clock is one of the things under test.
const slack = time.Second

// moving is for how long the runners of a node that drains are kept for successors; see package warm.
const moving = time.Minute

// within checks after d that what is due has happened. overdue says what has not; "" means that all is well. While no leader led for
// the whole last part of the time, nobody could have done it, and the check comes again. The watch is locked for each check.
func (c *Cluster) within(d time.Duration, overdue func(snap *state.Snapshot) string) {
	if d < 0 {
		d = 0
	}
	// After a step of the system's clock the log's time may pass by a tenth slower.
	c.mu.Lock()
	if c.stepped {
		d += d / 10
	}
	was := c.late
	c.mu.Unlock()
	time.AfterFunc(d+slack, func() {
		c.mu.Lock()
		led, prevented, closed, behind := c.ledSince, c.prevented, c.closed, c.late-was
		c.mu.Unlock()
		if behind > 0 && !closed {
			// Before anything is asked: a check that waits for something else comes again by itself, and would forget this.
			c.within(behind, overdue)
			return
		}
		c.watch.mu.Lock()
		why := overdue(c.Log.Latest())
		c.watch.mu.Unlock()
		switch now := time.Now(); {
		case why == "" || closed:
		case led.IsZero():
			c.within(10*time.Second, overdue)
		case now.Sub(led) < 2*slack || now.Sub(prevented) < 2*slack:
			c.within(2*slack, overdue)
		default:
			c.fail(fmt.Errorf("overdue: %s", why))
		}
	})
}

// changed looks at each change of a row.
func (w *watch) changed(snap *state.Snapshot) {
	changes, last, err := w.c.Log.Feed().After(w.seen, 1<<20)
	w.seen = state.AfterIndex(last)
	if err != nil {
		return // the state was restored as a whole
	}
	for i := range changes {
		switch ch := &changes[i]; {
		case ch.Claim != nil:
			w.claim(snap, ch.ClaimBefore, ch.Claim)
		case ch.Node != nil:
			w.node(snap, ch.NodeBefore, ch.Node)
		case ch.Alloc != nil:
			w.alloc(snap, ch.AllocBefore, ch.Alloc)
		case ch.Job != nil && ch.Verb == state.VerbJobRetried:
			w.jobRetried(ch.JobBefore, ch.Job)
		case ch.Job != nil && w.jobEnded(ch.Job):
			w.c.fail(fmt.Errorf("job %s had ended (%s) and is %s %s", ch.Job.Key, w.jobs[ch.Job.UID], ch.Job.Stage, ch.Job.Result))
		case ch.Job != nil && ch.Job.Env != nil && ch.JobBefore != nil && ch.JobBefore.Env != nil:
			w.stock(snap, ch.JobBefore, ch.Job)
		}
	}
}

// alloc: what has ended stays as it ended, a runner is warm once, and a member that failed is tried again when that is due.
func (w *watch) alloc(snap *state.Snapshot, before, a *state.Alloc) {
	switch was, ended := w.allocs[a.ID]; {
	case ended && (a.Live() || a.Outcome != was):
		w.c.fail(fmt.Errorf("allocation %s had ended (%s) and is %s %s", a.ID, was, a.Status, a.Outcome))
	case !a.Live():
		w.allocs[a.ID] = a.Outcome
	}
	if before == nil {
		return
	}
	if before.Runner != a.Runner && a.Runner == muster.RunnerWarm && before.Runner != muster.RunnerStarting {
		w.c.fail(fmt.Errorf("runner %s was %s and is warm again", a.ID, before.Runner))
	}
	if before.Output.Stage == state.OutputOpen && a.Output.Stage != state.OutputOpen {
		w.needed[a.Node] = time.Now()
	}
	if m := snap.Member(a.UID, a.Index); before.Live() && !a.Live() && m != nil && m.UID == a.UID && m.Attempt == a.Attempt && m.Status == muster.MemberWaiting {
		w.retry(snap, m)
	}
}

// jobEnded notes how a job ended, and reports whether it had ended otherwise.
func (w *watch) jobEnded(j *state.Job) bool {
	was, ended := w.jobs[j.UID]
	if j.Stage == muster.JobEnded && !ended {
		w.jobs[j.UID] = j.Result
		for i := range w.c.cfg.Offerings {
			if !w.offered[w.c.cfg.Offerings[i].Name] {
				w.excused[j.UID] = true
			}
		}
	}
	return ended && (j.Stage != muster.JobEnded || j.Result != was)
}

// jobRetried: a retry lets a job that had ended live again, and no member that had succeeded is run again.
func (w *watch) jobRetried(before, j *state.Job) {
	delete(w.jobs, j.UID)
	if j.Stage != muster.JobLive || j.Succeeded != before.Succeeded || j.Waiting() <= before.Waiting() {
		w.c.fail(fmt.Errorf("job %s was %s with %d members done and %d waiting, and a retry made that %s with %d and %d",
			j.Key, before.Stage, before.Succeeded, before.Waiting(), j.Stage, j.Succeeded, j.Waiting()))
	}
}

// retry: a member whose back-off is over is placed, once a node has had room for it for some seconds.
func (w *watch) retry(snap *state.Snapshot, m *state.Member) {
	uid, index, attempt, seen := m.UID, m.Index, m.Attempt, 0
	var check func(snap *state.Snapshot) string
	check = func(snap *state.Snapshot) string {
		j, m := snap.JobByUID(uid), snap.Member(uid, index)
		if j == nil || j.Env != nil || j.Stage != muster.JobLive || m == nil || m.UID != uid || m.Attempt != attempt || m.Status != muster.MemberWaiting || snap.Limits(j.Key.Namespace) != nil {
			return ""
		}
		room := muster.NodeID("")
		if m.RetryAt <= snap.Meta().Time && j.Parked == "" && !w.c.paused() && !w.c.preventedWithin(planBackoff+slack) {
			room = roomFor(snap, j, m.FailedNodes)
		}
		if room == "" {
			seen = 0
		} else if seen++; seen > 3 {
			return fmt.Sprintf("member %d of job %s may be tried again, node %s has capacity for it, and it is not placed", index, j.Key, room)
		}
		w.c.within(0, check)
		return ""
	}
	w.c.within(m.RetryAt.Sub(snap.Meta().Time), check)
}

// planBackoff is the longest that the scheduler waits after plans that the log did not take.
const planBackoff = 5 * time.Second

// preventedWithin reports whether something kept the loops from what is due within that time.
func (c *Cluster) preventedWithin(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.prevented.IsZero() && time.Since(c.prevented) < d
}

// roomFor is a node that has room for another member of a job, not counting what is reserved; empty: none.
func roomFor(snap *state.Snapshot, j *state.Job, avoid []muster.NodeID) (room muster.NodeID) {
	shape := fit.ShapeOf(j.Run)
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Reserved == nil && fit.Check(shape, n, fit.Room(n), avoid).Kind == fit.None {
			room = n.ID
		}
		return room == ""
	})
	return room
}

// claim: a runner has one claim in its life, none comes from a broken node, and each ends when it is due and not before.
func (w *watch) claim(snap *state.Snapshot, before, cl *state.Claim) {
	if before == nil {
		if other, had := w.claims[cl.Runner]; had && other != cl.ID {
			w.c.fail(fmt.Errorf("runner %s has claim %s and had claim %s", cl.Runner, cl.ID, other))
		}
		w.claims[cl.Runner] = cl.ID
		w.made[cl.ID] = time.Now()
		if a := snap.Alloc(cl.Runner); a != nil {
			if n := snap.Node(a.Node); n != nil && n.Health == muster.NodeBroken && time.Since(w.broken[n.ID]) > 100*time.Millisecond {
				w.c.fail(fmt.Errorf("claim %s was given runner %s on node %s, which is broken for %s", cl.ID, a.ID, n.ID, time.Since(w.broken[n.ID])))
			}
		}
	}
	switch {
	case cl.State == muster.ClaimHeld && cl.Deadline != 0 && (before == nil || before.Deadline != cl.Deadline):
		id, deadline := cl.ID, cl.Deadline
		w.c.within(deadline.Sub(snap.Meta().Time), func(snap *state.Snapshot) string {
			if now := snap.Claim(id); now != nil && now.State == muster.ClaimHeld && now.Deadline == deadline {
				return fmt.Sprintf("claim %s of runner %s is held after its deadline", id, now.Runner)
			}
			return ""
		})
	case cl.State == muster.ClaimHeld && cl.Idle != 0 && before == nil:
		w.idle(cl.ID, cl.Idle)
	}
	if cl.State == muster.ClaimExpired && before != nil && before.State == muster.ClaimHeld {
		used, idle := w.c.lastUse(cl.ID), muster.Time.Sub(cl.Idle, 0)
		if strings.HasPrefix(cl.Reason, "nothing was done") && !used.IsZero() && !w.c.jumpedSince(used) && time.Since(used) < idle*9/10 {
			w.c.fail(fmt.Errorf("claim %s expired as idle for %s, and was used %s ago", cl.ID, idle, time.Since(used)))
		}
		if ttl := before.Deadline.Sub(before.Made); strings.HasPrefix(cl.Reason, "its time") && !w.c.jumpedSince(w.made[cl.ID]) && time.Since(w.made[cl.ID]) < ttl*9/10-slack {
			w.c.fail(fmt.Errorf("claim %s expired after %s, and had %s", cl.ID, time.Since(w.made[cl.ID]), ttl))
		}
	}
}

// idle checks that a claim ends that nobody uses.
func (w *watch) idle(id muster.ClaimID, idle muster.Time) {
	d := muster.Time.Sub(idle, 0)
	w.c.within(d, func(snap *state.Snapshot) string {
		now := snap.Claim(id)
		if now == nil || now.State != muster.ClaimHeld || now.Idle != idle {
			return ""
		}
		// Under a new leader the time begins again, and it knows of uses that are not written down.
		last := w.made[id]
		w.c.mu.Lock()
		led := w.c.ledSince
		w.c.mu.Unlock()
		for _, t := range []time.Time{w.c.lastUse(id), led} {
			if t.After(last) {
				last = t
			}
		}
		late := time.Since(last)
		if used := snap.Meta().Time.Sub(now.Used); used < d {
			late = min(late, used)
		}
		if late <= d+d/8+2*slack {
			w.idle(id, idle)
			return ""
		}
		return fmt.Sprintf("claim %s is held, was not used for %s and may be idle for %s", id, late, d)
	})
}

// node: a held one survives, and one that is to go does so within its time.
func (w *watch) node(snap *state.Snapshot, before, n *state.Node) {
	id := n.ID
	if n.Health == muster.NodeBroken && (before == nil || before.Health != n.Health) {
		w.broken[id] = time.Now()
	}
	w.c.mu.Lock()
	releasing := w.c.releasing && n.Intent == muster.NodeHold && n.Stage != muster.NodeGone
	w.c.mu.Unlock()
	if releasing {
		time.AfterFunc(w.c.delay(slack, "release", id), func() {
			_ = w.c.propose(&state.NodeIntentSet{ID: id, Intent: muster.NodeRun, Who: "sim"})
		})
	}
	if before == nil {
		return
	}
	ending := n.Stage == muster.NodeTerminating || n.Stage == muster.NodeGone
	if ending && before.Stage != n.Stage && before.Stage != muster.NodeTerminating && before.Intent == muster.NodeHold && n.StageWho == "" {
		w.c.fail(fmt.Errorf("node %s is held and became %s: %s", id, n.Stage, n.StageReason))
	}
	if (ending || n.Stage == muster.NodeDraining) && before.Stage != n.Stage {
		w.unplaced(snap, n)
	}
	if leaves(n) && !leaves(before) {
		w.drains(snap, n)
	}
	if leaves(n) && !n.Busy() && (!leaves(before) || before.Busy()) {
		w.drained(n)
	}
	if before.Reserved != nil && n.Reserved == nil || before.Intent != n.Intent || before.Health != n.Health {
		w.needed[id] = time.Now()
	}
	if n.Health == muster.NodeLost && before.Health != muster.NodeLost {
		w.lost(snap, n)
	}
	if n.Stage == muster.NodeBooting && before.Stage != n.Stage {
		w.boots(snap, n)
	}
	if n.IdleSince != 0 && n.IdleSince != before.IdleSince && n.Stage == muster.NodeServing {
		w.empty(snap, n)
	}
}

// leaves reports whether a node drains, for whatever reason.
func leaves(n *state.Node) bool {
	return n.Stage == muster.NodeDraining || n.Stage == muster.NodeServing && n.Intent == muster.NodeDrain
}

// drained: a node that drains is destroyed once nothing runs on it and its output is stored.
func (w *watch) drained(n *state.Node) {
	id := n.ID
	w.needed[id] = time.Now()
	var check func(snap *state.Snapshot) string
	check = func(snap *state.Snapshot) string {
		now, open := snap.Node(id), false
		if now == nil || !leaves(now) || now.Busy() {
			return ""
		}
		snap.OpenOutputs(id, func(*state.Alloc) bool { open = true; return false })
		// One out of contact has its grace first; see lost. One that is held stays.
		if open || now.Health == muster.NodeLost || now.Intent == muster.NodeHold || time.Since(w.needed[id]) < 2*slack {
			w.c.within(2*slack, check)
			return ""
		}
		return fmt.Sprintf("node %s drains, nothing runs on it, and it is not destroyed", id)
	}
	w.c.within(slack, check)
}

// drains: runners that nobody has leave a node that drains, within a minute. With a deadline all work does.
func (w *watch) drains(snap *state.Snapshot, n *state.Node) {
	id, stage, intent := n.ID, n.StageSince, n.IntentSince
	w.c.within(moving+3*slack, func(snap *state.Snapshot) string {
		now := snap.Node(id)
		if now == nil || now.StageSince != stage || now.IntentSince != intent || now.Stage != muster.NodeDraining && now.Intent != muster.NodeDrain || now.Health == muster.NodeLost {
			return ""
		}
		why := ""
		snap.NodeAllocs(id, func(a *state.Alloc) bool {
			if (a.Runner == muster.RunnerWarm || a.Runner == muster.RunnerStarting) && a.Desired == muster.AllocRun {
				why = fmt.Sprintf("node %s drains, and runner %s of %s, which nobody has, is %s on it", id, a.ID, a.Run.Key, a.Runner)
			}
			return why == ""
		})
		return why
	})
	if until := n.IntentUntil; until != 0 && n.Intent == muster.NodeDrain {
		w.c.within(until.Sub(snap.Meta().Time), func(snap *state.Snapshot) string {
			now := snap.Node(id)
			if now == nil || now.Intent != muster.NodeDrain || now.IntentUntil != until || now.Stage == muster.NodeTerminating || now.Stage == muster.NodeGone {
				return ""
			}
			why := ""
			snap.NodeAllocs(id, func(a *state.Alloc) bool {
				if a.Desired == muster.AllocRun {
					why = fmt.Sprintf("the drain of node %s is past its deadline, and %s is to run on it", id, a.ID)
				}
				return why == ""
			})
			return why
		})
	}
}

// lost: a node that is out of contact is given up when its grace is over, unless its pool's breaker has tripped.
func (w *watch) lost(snap *state.Snapshot, n *state.Node) {
	id, since := n.ID, n.HealthSince
	q := snap.Pool(n.Pool)
	if q == nil {
		return
	}
	lostAt, grace := time.Now(), muster.Time.Sub(q.Grace, 0)
	var check func(snap *state.Snapshot) string
	check = func(snap *state.Snapshot) string {
		now := snap.Node(id)
		if now == nil || now.Health != muster.NodeLost || now.HealthSince != since || now.Intent == muster.NodeHold || now.Stage != muster.NodeServing && now.Stage != muster.NodeDraining || tripped(snap.Breaker(now.Pool), since) {
			return ""
		}
		w.c.mu.Lock()
		led := w.c.ledSince
		w.c.mu.Unlock()
		if led.After(lostAt) && time.Since(led) < grace+grace/10+2*slack {
			w.c.within(grace, check) // a new leader asks for itself first
			return ""
		}
		return fmt.Sprintf("node %s is out of contact for %s, and its grace is %s", id, time.Since(lostAt), grace)
	}
	w.c.within(grace, check)
}

// tripped reports whether a pool's breaker is tripped, or was since then.
func tripped(b *state.Breaker, since muster.Time) bool {
	return b != nil && (b.IsTripped() || b.Resumed > since)
}

// boots: a node comes into service within the time for that, or is given up.
func (w *watch) boots(snap *state.Snapshot, n *state.Node) {
	id, since := n.ID, n.StageSince
	if q := snap.Pool(n.Pool); q != nil {
		w.c.within(muster.Time.Sub(q.BootTimeout, 0), func(snap *state.Snapshot) string {
			if now := snap.Node(id); now != nil && now.Stage == muster.NodeBooting && now.StageSince == since && now.Intent != muster.NodeHold {
				return fmt.Sprintf("node %s boots for longer than the time-out of its pool", id)
			}
			return ""
		})
	}
}

// empty: a node that nothing is a reason for is destroyed: no work was on it for the idle time, and nothing waited anywhere.
func (w *watch) empty(snap *state.Snapshot, n *state.Node) {
	id, since := n.ID, n.IdleSince
	q := snap.Pool(n.Pool)
	if q == nil {
		return
	}
	var check func(snap *state.Snapshot) string
	check = func(snap *state.Snapshot) string {
		now := snap.Node(id)
		if now == nil || now.Stage != muster.NodeServing || now.IdleSince != since || now.Intent != muster.NodeRun || now.Busy() {
			return ""
		}
		q, open := snap.Pool(now.Pool), false
		snap.OpenOutputs(id, func(*state.Alloc) bool { open = true; return false })
		if q == nil {
			return ""
		}
		// While it is needed it stays, and for a moment after that.
		if open || q.Min > 0 || q.Spare > 0 || now.Health != muster.NodeGood || now.Reserved != nil || waits(snap) || w.c.paused() || w.waited(2*slack) || time.Since(w.needed[id]) < 2*slack {
			w.c.within(2*slack, check)
			return ""
		}
		return fmt.Sprintf("node %s is idle, nothing waits, and it is not destroyed", id)
	}
	w.c.within(muster.Time.Sub(q.IdleTimeout, 0), check)
}

// waits reports whether anything waits for a node, retries included.
func waits(snap *state.Snapshot) bool {
	found := snap.UnsettledCount() > 0
	if !found {
		snap.Jobs(muster.JobKey{}, func(j *state.Job) bool { found = j.Waiting() > 0; return !found })
	}
	return found
}

// waited reports whether something has waited for a node within that time.
func (w *watch) waited(d time.Duration) bool { return time.Since(w.unsettled) < d }

// unplaced: what a provider did not name in its answers of less than ten minutes is no reason to end a node.
func (w *watch) unplaced(snap *state.Snapshot, n *state.Node) {
	q := snap.Pool(n.Pool)
	if q == nil || !q.Covers(&n.Offering) || !strings.Contains(n.StageReason, "does not offer") {
		return
	}
	w.c.mu.Lock()
	since, lacked := w.c.lacked[n.Offering.Name]
	w.c.mu.Unlock()
	if !lacked || time.Since(since) < 9*time.Minute {
		w.c.fail(fmt.Errorf("node %s becomes %s (%s), and its offering was missing for no more than %s", n.ID, n.Stage, n.StageReason, time.Since(since)))
	}
}

// stock: what was warm before a server began is not given up because that server has seen no claims yet.
func (w *watch) stock(snap *state.Snapshot, before, j *state.Job) {
	was, e := before.Env, j.Env
	w.c.mu.Lock()
	led, start := w.c.ledSince, w.stocked[j.UID]
	w.c.mu.Unlock()
	switch {
	case e.Stock >= was.Stock, start.set != e.Set, e.Spec.Warm.Target != nil, e.Stock >= min(start.stock, e.Spec.Warm.Max), j.Stage != muster.JobLive,
		led.IsZero(), time.Since(led) > warm.Window*9/10-slack, snap.Meta().Time.Sub(e.LastClaim) >= e.Spec.Warm.Quiet.Std():
		return
	}
	w.c.fail(fmt.Errorf("environment %s wanted %d warm when the server began, %s ago, and wants %d (%s)", j.Key, start.stock, time.Since(led), e.Stock, e.Why))
}

// stocked is what an environment wanted when the loops began.
type stocked struct {
	stock int
	set   uint64
}

func stocks(snap *state.Snapshot) map[muster.JobUID]stocked {
	out := map[muster.JobUID]stocked{}
	snap.Environments(func(j *state.Job) bool {
		out[j.UID] = stocked{j.Env.Stock, j.Env.Set}
		return true
	})
	return out
}

// watched is the cloud as the loops see it, with an eye on what they ask of it.
type watched struct {
	cloud.Provider
	c *Cluster
	// offers: what its answers lack is noted.
	offers bool
}

// Unwrap is cloud.Wrapper's.
func (p *watched) Unwrap() cloud.Provider { return p.Provider }

// Offers notes which offerings an answer lacks, and since when.
func (p *watched) Offers(ctx context.Context) ([]muster.Offering, error) {
	offers, err := p.Provider.Offers(ctx)
	if err != nil || !p.offers {
		return offers, err
	}
	named := map[muster.OfferingName]bool{}
	for i := range offers {
		named[offers[i].Name] = true
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for i := range p.c.cfg.Offerings {
		name := p.c.cfg.Offerings[i].Name
		if _, lacked := p.c.lacked[name]; named[name] {
			delete(p.c.lacked, name)
		} else if !lacked {
			p.c.lacked[name] = time.Now()
		}
	}
	return offers, nil
}

// Create never is of what an earlier leader was refused until a time. What it had intended before is
// finished all the same: its token may have an instance already.
func (p *watched) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	snap := p.c.Log.Latest()
	p.c.mu.Lock()
	began, jumped := p.c.ledSince, p.c.jumped
	p.c.mu.Unlock()
	for i := range intents {
		n := snap.Node(intents[i].Node)
		// Where the log's time has gone ahead by itself, times of the log and of the bubble do not compare.
		if n == nil || !jumped.IsZero() || n.StageSince < snap.Meta().LeaderSince {
			continue
		}
		for _, b := range p.c.inherited(began) {
			if b.Covers(&n.Offering) && p.c.Log.Now() < b.Until && slices.Contains(size.BlocksOf(snap), b) {
				p.c.fail(fmt.Errorf("node %s is asked for %s after the leader has changed, and the provider has refused it until %s: %s", n.ID, time.Since(began), b.Until.Std(), b.Why))
			}
		}
	}
	return p.Provider.Create(ctx, intents)
}

// Destroy never is of an instance that an operator holds.
func (p *watched) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	snap := p.c.Log.Latest()
	for _, in := range p.c.Cloud.Instances() {
		for _, id := range ids {
			if in.ID != id || in.Tags.Intent != muster.NodeHold {
				continue
			}
			ours := false
			snap.LiveNodes(func(n *state.Node) bool {
				ours = ours || n.Instance == id && (n.Stage == muster.NodeTerminating || n.Intent != muster.NodeHold)
				return true
			})
			if n := snap.Node(in.Tags.Node); !ours && (n == nil || n.StageWho == "") {
				p.c.fail(fmt.Errorf("instance %s of node %s is to be destroyed, and its tags say that an operator holds it", id, in.Tags.Node))
			}
		}
	}
	return p.Provider.Destroy(ctx, ids)
}

// account is a second account in the cloud: what the cloud keeps under another owner, and the cluster takes for its own.
type account struct{ cloud.Provider }

// Create is cloud.Provider's.
func (a *account) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	made := a.Provider.Create(ctx, intents)
	for i := range made {
		if made[i].Err == nil {
			made[i].Instance.Tags.Owner = owner
		}
	}
	return made
}

// List is cloud.Provider's.
func (a *account) List(ctx context.Context, after string) (cloud.Listing, error) {
	l, err := a.Provider.List(ctx, after)
	for i := range l.Instances {
		l.Instances[i].Tags.Owner = owner
	}
	return l, err
}

// SetTags is cloud.Provider's.
func (a *account) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	tags.Owner = "of " + second
	return a.Provider.SetTags(ctx, id, tags)
}
