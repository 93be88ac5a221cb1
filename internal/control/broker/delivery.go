package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// window is a delivery: the jobs that one worker has. It ends when all are answered.
type window struct {
	token    uint64
	priority int
	// jobs are those not answered yet.
	jobs   map[muster.JobUID]*entry
	shapes map[state.ShapeID]*fit.Shape
	// deadline is when it times out, unless paused is true. began is for statistics.
	deadline muster.Time
	began    time.Time
	paused   bool
}

// Dequeue waits until something is ready and hands out up to limit jobs, all of the highest ready
// priority, the oldest first. A job that was nacked before comes alone, so that whatever is wrong
// with it does not affect others. It fails only when ctx ends.
func (b *Broker) Dequeue(ctx context.Context, limit int) (place.Window, error) {
	return b.dequeue(ctx, &b.workers, limit)
}

// DequeueAhead is Dequeue for a standby worker. It hands out only jobs of a higher priority than
// everything that is out, and waits while nothing is out. Without it, urgent work would wait until
// a whole window of lower priority is planned and committed.
func (b *Broker) DequeueAhead(ctx context.Context, limit int) (place.Window, error) {
	return b.dequeue(ctx, &b.standby, limit)
}

// waiters are the workers that wait for the same kind of work. wake is closed when there is some,
// and then replaced.
type waiters struct {
	count int
	wake  chan struct{}
}

// dequeue waits until there is work for workers of this kind and takes it.
func (b *Broker) dequeue(ctx context.Context, ws *waiters, limit int) (place.Window, error) {
	for {
		if err := ctx.Err(); err != nil {
			return place.Window{}, err
		}
		b.mu.Lock()
		if b.servesLocked(ws) {
			w := b.deliverLocked(max(limit, 1))
			b.mu.Unlock()
			return w, nil
		}
		ws.count++
		// The channel is read under the lock that showed that nothing is ready, so no wake is
		// missed.
		wake := ws.wake
		b.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		b.mu.Lock()
		ws.count--
		b.mu.Unlock()
	}
}

// servesLocked reports whether there is work for workers of this kind.
func (b *Broker) servesLocked(ws *waiters) bool {
	head, ok := b.ready.Min()
	if !ok || ws == &b.workers {
		return ok
	}
	for _, w := range b.windows {
		if w.priority >= head.priority {
			return false
		}
	}
	return len(b.windows) > 0
}

// deliverLocked moves the first ready entries out and makes a window of them. At least one must be
// ready.
func (b *Broker) deliverLocked(limit int) place.Window {
	snap := b.cfg.State.Latest()
	b.serial++
	w := &window{token: b.term<<32 | b.serial, jobs: map[muster.JobUID]*entry{}, deadline: b.now(snap).Add(b.cfg.DeliveryTimeout)}
	var take []*entry
	b.ready.Scan(func(e *entry) bool {
		if len(take) > 0 && (len(take) == limit || e.priority != take[0].priority || e.nacks > 0) {
			return false
		}
		take = append(take, e)
		return e.nacks == 0
	})
	w.priority = take[0].priority
	jobs := make([]muster.JobUID, len(take))
	w.began = time.Now()
	for i, e := range take {
		b.stats.Waited += w.began.Sub(e.readyAt)
		b.moveLocked(e, out)
		e.window = w
		w.jobs[e.uid] = e
		jobs[i] = e.uid
	}
	b.windows[w.token] = w
	b.stats.Delivered += uint64(len(take))
	b.rearmLocked(w.deadline)
	return place.Window{Token: w.token, Index: snap.Index(), Jobs: jobs}
}

// outLocked returns the entries of jobs that are out by this token. It fails with FaultConflict,
// and names the job, if the delivery of one is over.
func (b *Broker) outLocked(token uint64, jobs []muster.JobUID) ([]*entry, error) {
	w := b.windows[token]
	if w == nil {
		return nil, muster.Faultf(muster.FaultConflict, "delivery %d is over", token)
	}
	entries := make([]*entry, 0, len(jobs))
	for _, uid := range jobs {
		e := w.jobs[uid]
		if e == nil {
			return nil, muster.Faultf(muster.FaultConflict, "delivery %d of job %s is over", token, uid)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Ack says that a worker is done with jobs of a delivery. A job that still wants something by the
// newest state becomes ready again: members left over, and changes meanwhile. Ack fails and changes
// nothing if the delivery of any of the jobs is over.
func (b *Broker) Ack(token uint64, jobs ...muster.JobUID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	entries, err := b.outLocked(token, jobs)
	if err != nil {
		return err
	}
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	for _, e := range entries {
		b.stats.Acked++
		e.nacks = 0
		b.answeredLocked(e, snap, now)
		b.releaseLocked(e, snap)
	}
	b.tellWorkersLocked()
	return nil
}

// answeredLocked takes an entry back from its worker and reviews its job.
func (b *Broker) answeredLocked(e *entry, snap *state.Snapshot, now muster.Time) {
	// Any stage but out, for reviewLocked sets the right one.
	b.moveLocked(e, delayed)
	b.reviewLocked(e.uid, snap, now)
}

// Block says that a worker placed what it could of jobs, and that the rest fitted nowhere in the
// state at index tried, plus what the worker committed since. They wait until room grows that their
// shape could use. If such room grew after tried, they become ready at once. Block fails like Ack.
func (b *Broker) Block(token uint64, tried uint64, jobs []place.Blocked) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	uids := make([]muster.JobUID, len(jobs))
	for i := range jobs {
		uids[i] = jobs[i].UID
	}
	entries, err := b.outLocked(token, uids)
	if err != nil {
		return err
	}
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	for i, e := range entries {
		b.stats.Acked++
		e.nacks = 0
		b.answerBlockedLocked(e, &jobs[i], tried, snap, now)
	}
	// The order matters: first all jobs are blocked, then growth that they missed is offered, by
	// priority, and only then are their old promises canceled.
	b.missedLocked(tried, snap)
	b.missedLimitsLocked(entries, snap)
	for _, e := range entries {
		b.releaseLocked(e, snap)
	}
	b.tellWorkersLocked()
	return nil
}

// answerBlockedLocked handles the answer of Block for one job.
func (b *Broker) answerBlockedLocked(e *entry, job *place.Blocked, tried uint64, snap *state.Snapshot, now muster.Time) {
	j := snap.JobByUID(e.uid)
	switch {
	case j == nil || j.Waiting() == 0 || j.Parked != "" || j.Version != e.version || tried < b.blind,
		!settled(job) && e.changed:
		// The job has changed, so the worker has answered another question; or growth may have been
		// missed.
		b.answeredLocked(e, snap, now)
		return
	}
	b.blockLocked(e, tried, job)
	if e.settled {
		return
	}
	// There is room, or may be later, that the members due now cannot use. The next member that
	// becomes due may be able to.
	if m := snap.Retries(e.uid).Next(now); m != nil {
		b.setTimerLocked(e, m.RetryAt)
	}
}

// Nack says that a worker failed to work on jobs, and why. They are delayed, longer each time, and
// at the limit parked by a fact. Nack fails like Ack.
func (b *Broker) Nack(token uint64, reason string, jobs ...muster.JobUID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	entries, err := b.outLocked(token, jobs)
	if err != nil {
		return err
	}
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	for _, e := range entries {
		b.nackLocked(e, reason, snap, now)
	}
	b.tellWorkersLocked()
	return nil
}

// nackLocked delays one job, or has it parked.
func (b *Broker) nackLocked(e *entry, reason string, snap *state.Snapshot, now muster.Time) {
	b.stats.Nacked++
	e.nacks++
	if e.nacks >= b.cfg.DeliveryLimit {
		b.toParkLocked(e, &state.JobParked{UID: e.uid, Until: now.Add(b.cfg.ParkFor),
			Reason: fmt.Sprintf("given up after %d tries: %s", e.nacks, reason)})
	} else {
		b.moveLocked(e, delayed)
		e.held = true
		b.setTimerLocked(e, now.Add(b.cfg.NackDelay<<min(2*(e.nacks-1), 16)))
		// The job may have a new version or want nothing any more.
		b.reviewLocked(e.uid, snap, now)
	}
	b.releaseLocked(e, snap)
}

// Over returns those of the jobs that are not, or no longer, out by this token.
func (b *Broker) Over(token uint64, jobs []muster.JobUID) []muster.JobUID {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.windows[token]
	if w == nil {
		return jobs
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(uid muster.JobUID) bool { return w.jobs[uid] != nil })
}

// Pause stops the time limit of a delivery while its plan waits for the applier. resume starts it
// again, with the full time. Both fail with FaultConflict if the delivery is over.
func (b *Broker) Pause(token uint64) (resume func() error, err error) {
	if err := b.setPaused(token, true); err != nil {
		return nil, err
	}
	return func() error { return b.setPaused(token, false) }, nil
}

// setPaused stops or restarts the time limit of a delivery.
func (b *Broker) setPaused(token uint64, paused bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.windows[token]
	if w == nil {
		return muster.Faultf(muster.FaultConflict, "delivery %d is over", token)
	}
	w.paused = paused
	if !paused {
		w.deadline = b.now(b.cfg.State.Latest()).Add(b.cfg.DeliveryTimeout)
		b.rearmLocked(w.deadline)
	}
	return nil
}

// timedOutLocked returns the deliveries whose time is over, by token.
func (b *Broker) timedOutLocked(now muster.Time) []*window {
	var over []*window
	for _, w := range b.windows {
		if !w.paused && w.deadline <= now {
			over = append(over, w)
		}
	}
	slices.SortFunc(over, func(x, y *window) int { return cmp.Compare(x.token, y.token) })
	return over
}

// timeOutLocked treats the open jobs of a delivery as nacked, in the order of service, so that the
// result does not depend on the order of a map.
func (b *Broker) timeOutLocked(w *window, snap *state.Snapshot, now muster.Time) {
	entries := make([]*entry, 0, len(w.jobs))
	for _, e := range w.jobs {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y *entry) int { return x.rank(y) })
	for _, e := range entries {
		b.stats.TimedOut++
		b.nackLocked(e, "no answer from a worker within "+b.cfg.DeliveryTimeout.String(), snap, now)
	}
}
