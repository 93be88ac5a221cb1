package runners

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Request asks for a runner.
type Request struct {
	// UID is the uid of the environment.
	UID muster.JobUID
	// TTL and Idle are those of the claim; 0 means none. Wait is how long to wait if no runner is
	// warm.
	TTL, Idle, Wait time.Duration
	Note            string
	// Key and Digest belong to a request that may be repeated; they are empty if it may not.
	Key, Digest string
}

// commitTime bounds how long a claim that has a runner waits for the log.
const commitTime = 30 * time.Second

// Claim gives a runner to the caller. Faults: capacity (no runner is warm, and the claim does not
// wait or has waited long enough), not-found (the environment is deleted), conflict (the key was
// used for another claim), unavailable (Run does not run), and those of the log.
//
// The order is: take a runner out of the stock, commit the claim, answer. A crash before the commit
// leaves the runner warm for the next leader; a crash after it leaves a claim that a repeated
// request finds by its key. If ctx ends while the fact is being committed, the claim is released
// again, unless it has a key.
func (r *Runners) Claim(ctx context.Context, q Request) (*state.Claim, error) {
	began := time.Now()
	deadline := began.Add(q.Wait)
	if c := r.repeated(q); c != nil {
		return c, nil
	}
	for tries := 0; ; tries++ {
		id, err := r.next(ctx, q, deadline, tries == 0)
		if err != nil {
			return nil, err
		}
		c, again, err := r.commit(ctx, q, id)
		if again {
			// The runner had ended, and the log knew that before the stock did.
			continue
		}
		if err == nil {
			r.waited(time.Since(began))
		}
		return c, err
	}
}

// repeated returns the claim that an earlier request with the same key and digest made.
func (r *Runners) repeated(q Request) *state.Claim {
	if q.Key == "" {
		return nil
	}
	c := r.cfg.State.Latest().ClaimByKey(q.UID, q.Key)
	if c == nil || c.Digest != q.Digest {
		// commit gets the fault from the log.
		return nil
	}
	return c
}

// waited records how long a claim took.
func (r *Runners) waited(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Claims++
	r.stats.Wait.Observe(took.Seconds())
}

// next takes a runner out of the stock, or waits in order until the claim gets one, its wait is
// over or ctx ends. No lock is held while it waits.
func (r *Runners) next(ctx context.Context, q Request, deadline time.Time, first bool) (muster.AllocID, error) {
	id, w, err := r.popOrQueue(q, deadline, first)
	if w == nil {
		return id, err
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case id, ok := <-w.given:
		if !ok {
			return "", w.why
		}
		return id, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = noneWarm(q, 0, 0)
	}
	if id := r.endWait(ctx, q.UID, w); id != "" {
		return id, nil
	}
	return "", err
}

// popOrQueue takes a warm runner for a claim or, if there is none and the claim may wait, puts the
// claim into the queue of its environment and returns its place there. Both happen under one lock:
// a runner that becomes warm afterwards finds the claim in the queue. first says that it is the
// claim's first try, which alone counts as demand.
func (r *Runners) popOrQueue(q Request, deadline time.Time, first bool) (muster.AllocID, *waiter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.up {
		return "", nil, leaderGone()
	}
	p := r.takeInLocked(q.UID)
	if p == nil {
		return "", nil, muster.Faultf(muster.FaultNotFound, "the environment was deleted")
	}
	if first {
		p.demand.came(r.cfg.Clock.Now())
		r.counted[q.UID] = true
	}
	// Claims that wait come first, even if a runner is warm now.
	if p.waiters.Len() == 0 {
		if id := p.pop(r.standing); id != "" {
			// The pool is not marked as dirty: the runner is replaced once the feed shows its
			// claim.
			if first {
				r.stats.Hits++
			}
			return id, nil, nil
		}
	}
	r.dirty[q.UID] = true
	r.signal(true)
	if time.Until(deadline) <= 0 {
		r.stats.Refused++
		starting := 0
		if j := r.cfg.State.Latest().JobByUID(q.UID); j != nil {
			starting = j.Runners().Starting
		}
		return "", nil, noneWarm(q, len(p.warm), starting)
	}
	w := &waiter{given: make(chan muster.AllocID, 1), pool: p}
	w.place = p.waiters.PushBack(w)
	return "", w, nil
}

// endWait takes a claim that gives up waiting out of the queue. A runner may have been handed to it
// at the last moment. If the client is still there, the claim gets that runner; else the runner
// goes back into the stock.
func (r *Runners) endWait(ctx context.Context, uid muster.JobUID, w *waiter) muster.AllocID {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case id, ok := <-w.given:
		if ok && ctx.Err() == nil {
			return id
		}
		if ok {
			r.putBackLocked(uid, id)
		}
	default:
		w.pool.waiters.Remove(w.place)
		r.stats.Refused++
	}
	return ""
}

// leaderGone is the fault of a claim whose server does not lead, or has just ceased to. It wants to
// be repeated: another server leads soon, or this one again.
func leaderGone() error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: "the server hands out no runners now, because it does not lead any more; repeat the claim", After: time.Second}
}

// takeInLocked returns the pool of a live environment, even if the feed has not shown the
// environment yet; nil if it is not live. r.mu is held.
func (r *Runners) takeInLocked(uid muster.JobUID) *pool {
	if p := r.pools[uid]; p != nil {
		return p
	}
	snap := r.cfg.State.Latest()
	j := snap.JobByUID(uid)
	if j == nil || j.Env == nil || j.Stage != muster.JobLive {
		return nil
	}
	p := r.poolLocked(uid)
	p.refill(snap)
	r.dirty[uid] = true
	return p
}

// noneWarm is the fault for a claim that gets no runner. warm and starting are how many runners the
// environment has in these states.
func noneWarm(q Request, warm, starting int) error {
	what := "no runner is warm"
	if q.Wait > 0 {
		return muster.Faultf(muster.FaultCapacity, "%s, and none became so within %s", what, q.Wait)
	}
	if warm > 0 {
		what = "each warm runner is wanted by a claim that came before"
	}
	switch starting {
	case 0:
		return muster.Faultf(muster.FaultCapacity, "%s, and none is starting", what)
	case 1:
		return muster.Faultf(muster.FaultCapacity, "%s; 1 is starting", what)
	}
	return muster.Faultf(muster.FaultCapacity, "%s; %d are starting", what, starting)
}

// commit commits the claim. again reports that the runner is gone and that another one should be
// tried.
func (r *Runners) commit(ctx context.Context, q Request, id muster.AllocID) (c *state.Claim, again bool, err error) {
	f := &state.RunnerClaimed{
		Claim: muster.ClaimID("c" + r.cfg.Draw()[:12]), UID: q.UID, Runner: id,
		TTL: muster.Time(q.TTL.Microseconds()), Idle: muster.Time(q.Idle.Microseconds()), Note: q.Note, Idempotency: q.Key, Digest: q.Digest,
	}
	// The commit does not end with the client's request: otherwise it would be open whether the
	// fact is in the log.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTime)
	defer cancel()
	_, done, err := state.Propose(bounded, r.cfg.Proposer, f)
	if err != nil {
		if q.Key == "" && !isRefusal(err) {
			// The fact may still be committed. Remember to release it then.
			r.leave(f.Claim)
		}
		a := r.cfg.State.Latest().Alloc(id)
		if a == nil || a.Runner != muster.RunnerWarm {
			r.forget(q.UID, id)
			return nil, muster.IsKind(err, muster.FaultConflict), err
		}
		// This is safe even if the fact is still on its way: the state refuses the second claim of
		// a runner.
		r.putBack(q.UID, id)
		return nil, false, err
	}
	// The state found the claim of an earlier request, which has a runner of its own.
	if done.Repeated {
		r.putBack(q.UID, id)
		return done.Claim, false, nil
	}
	r.forget(q.UID, id)
	if ctx.Err() != nil && q.Key == "" {
		// The client does not know the claim, and nobody can ask for it again.
		if _, _, err := r.cfg.Proposer.Propose(bounded, &state.ClaimReleased{Claim: done.Claim.ID, Reason: clientLeft}); err != nil {
			r.leave(done.Claim.ID)
		}
		return nil, false, ctx.Err()
	}
	return done.Claim, false, nil
}

// isRefusal reports whether an error says for certain that a fact has changed nothing, because the
// state refused it.
func isRefusal(err error) bool {
	for _, k := range []muster.FaultKind{muster.FaultConflict, muster.FaultNotFound, muster.FaultInvalid, muster.FaultAlreadyExists, muster.FaultDiskLow} {
		if muster.IsKind(err, k) {
			return true
		}
	}
	return false
}

// forget removes a runner from the stock for good.
func (r *Runners) forget(uid muster.JobUID, id muster.AllocID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pools[uid]; p != nil {
		delete(p.warm, id)
		delete(p.out, id)
	}
}

// putBack returns a runner that was not claimed to the stock.
func (r *Runners) putBack(uid muster.JobUID, id muster.AllocID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putBackLocked(uid, id)
}

// putBackLocked is putBack with r.mu held. Waiting claims get the runner first.
func (r *Runners) putBackLocked(uid muster.JobUID, id muster.AllocID) {
	if p := r.pools[uid]; p != nil {
		delete(p.out, id)
		r.handOutLocked(p)
	}
}

// Waiting is how many claims wait for a runner of an environment.
func (r *Runners) Waiting(uid muster.JobUID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pools[uid]; p != nil {
		return p.waiters.Len()
	}
	return 0
}
