package runners

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is where environments, runners and claims are read. *state.State implements it.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config configures Runners. State and Proposer are required; zero durations and numbers mean the
// defaults.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock clock.Clock
	// Reached reports whether a node is in contact. Runners on other nodes are handed out last. It
	// must not block. Nil means that all are in contact.
	Reached func(muster.NodeID) bool
	Logger  *slog.Logger
	// Draw makes the random part of a claim's id. Nil means crypto/rand.
	Draw func() string

	// Keep is how long ended runners are remembered, KeepMost how many of them at most in each
	// environment. Defaults: 10 minutes, 5,000.
	Keep     time.Duration
	KeepMost int
}

// Runners is the control loop. Its methods may be called from any goroutine. Before Run and after
// it, claims are refused as unavailable.
type Runners struct {
	cfg Config
	log *slog.Logger

	// mu guards the fields below, up to stats. It is never held during a proposal or a wait.
	// Methods whose names end in Locked need it.
	mu sync.Mutex
	// up is true while Run runs. began is when it began, by the log's clock.
	up    bool
	began muster.Time
	pools map[muster.JobUID]*pool
	// uses has the claims that were used under this leadership. The log learns of a use now and
	// then only: recent has the claims that were used since it was told.
	uses   map[muster.ClaimID]*use
	recent []muster.ClaimID
	// counted has the environments of which claims came since the log was told of the demand.
	counted map[muster.JobUID]bool
	// dirty has the environments to decide about.
	dirty map[muster.JobUID]bool
	// wakes has the pools whose wake is set, by wake.
	wakes *btree.BTreeG[*pool]
	// left has claims that no client knows, with the time since when; see leave.
	left  map[muster.ClaimID]muster.Time
	stats Stats

	// wake holds a token when something has changed. press holds one when the decision should not
	// wait for more changes. claims holds one when claims have changed.
	wake, press, claims chan struct{}
	// ready is closed by Run. Run is called once.
	ready chan struct{}
}

// New makes the loop. It does nothing before Run.
func New(cfg Config) (*Runners, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("runners: state and proposer are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Reached == nil {
		cfg.Reached = func(muster.NodeID) bool { return true }
	}
	if cfg.Draw == nil {
		cfg.Draw = func() string { return strings.ToLower(rand.Text()) }
	}
	cfg.Keep = cmp.Or(cfg.Keep, 10*time.Minute)
	cfg.KeepMost = cmp.Or(cfg.KeepMost, 5000)
	return &Runners{
		cfg: cfg, log: cfg.Logger.With("loop", "runners"), pools: map[muster.JobUID]*pool{},
		uses: map[muster.ClaimID]*use{}, dirty: map[muster.JobUID]bool{}, wakes: newWakes(), left: map[muster.ClaimID]muster.Time{}, counted: map[muster.JobUID]bool{}, stats: newStats(),
		wake: make(chan struct{}, 1), press: make(chan struct{}, 1), claims: make(chan struct{}, 1),
		ready: make(chan struct{}),
	}, nil
}

const (
	// debounce is how long changes are collected before a decision.
	debounce = 5 * time.Millisecond
	// linger is how much longer they are collected while no claim waits and enough runners are
	// warm. A client that has just got a runner uses it now, and the start of its replacement would
	// take processor time from it. One decision then replaces all that was claimed in that time.
	linger = 50 * time.Millisecond
	// resync is the longest time between two looks at everything.
	resync = 5 * time.Second
	// batch bounds the length of the lists in facts.
	batch = 1024
)

// Run keeps environments stocked until ctx ends. It returns nil then.
func (r *Runners) Run(ctx context.Context) error {
	snap := r.cfg.State.Latest()
	r.mu.Lock()
	r.up, r.began = true, r.cfg.Clock.Now()
	r.allLocked(snap)
	r.mu.Unlock()
	close(r.ready)
	defer r.down()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.follow(ctx, snap.Index()) })
	// These two have goroutines of their own, so that claims end on time whatever the decisions
	// wait for.
	wg.Go(func() { r.endClaims(ctx) })
	wg.Go(func() { r.forgetGone(ctx) })
	wg.Go(func() { r.record(ctx) })
	r.decideLoop(ctx)
	return nil
}

// Ready returns a channel that is closed once claims are accepted. A server that calls itself ready
// before that would refuse the claims of clients that waited for it.
func (r *Runners) Ready() <-chan struct{} { return r.ready }

// down refuses all waiting claims and forgets everything: another leader may hand out the same
// runners now.
func (r *Runners) down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = false
	for _, p := range r.pools {
		p.refuse(leaderGone())
	}
	r.recent, r.counted = nil, map[muster.JobUID]bool{}
	r.pools, r.uses, r.dirty, r.left = map[muster.JobUID]*pool{}, map[muster.ClaimID]*use{}, map[muster.JobUID]bool{}, map[muster.ClaimID]muster.Time{}
	r.wakes.Clear()
}

// allLocked takes everything from a snapshot. It keeps waiting claims and the runners of claims
// that are being committed. r.mu is held.
func (r *Runners) allLocked(snap *state.Snapshot) {
	seen := map[muster.JobUID]bool{}
	snap.Environments(func(j *state.Job) bool {
		if j.Stage == muster.JobLive {
			seen[j.UID] = true
			p := r.poolLocked(j.UID)
			p.refill(snap)
			r.handOutLocked(p)
			r.dirty[j.UID] = true
		}
		return true
	})
	for uid, p := range r.pools {
		if !seen[uid] {
			r.dropLocked(p)
		}
	}
	for id := range r.uses {
		if !isHeld(snap, id) {
			delete(r.uses, id)
		}
	}
}

// isHeld reports whether a claim exists and has not ended.
func isHeld(snap *state.Snapshot, id muster.ClaimID) bool {
	c := snap.Claim(id)
	return c != nil && c.State == muster.ClaimHeld
}

// poolLocked returns the pool of an environment and makes it if needed.
func (r *Runners) poolLocked(uid muster.JobUID) *pool {
	p := r.pools[uid]
	if p == nil {
		p = newPool(uid)
		r.pools[uid] = p
	}
	return p
}

// dropLocked ends the pool of a deleted environment and refuses its waiting claims.
func (r *Runners) dropLocked(p *pool) {
	p.refuse(muster.Faultf(muster.FaultNotFound, "the environment was deleted"))
	delete(r.pools, p.uid)
	delete(r.dirty, p.uid)
	r.wakes.Delete(p)
}

// follow keeps the stock in line with the log.
func (r *Runners) follow(ctx context.Context, index uint64) {
	r.cfg.State.Feed().Follow(ctx, state.AfterIndex(index), r.applyChanges, func() state.Position {
		r.mu.Lock()
		defer r.mu.Unlock()
		// The snapshot is taken under the lock. So a claim that Use has found in the state is in
		// this snapshot too, and its use is kept.
		snap := r.cfg.State.Latest()
		r.allLocked(snap)
		wait.Poke(r.claims)
		return state.AfterIndex(snap.Index())
	})
}

// applyChanges applies changes to the stock, the oldest first.
func (r *Runners) applyChanges(changes []state.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// some: there is something to decide about. press: it should not wait.
	some, press := false, false
	for i := range changes {
		switch c := &changes[i]; {
		case c.Alloc != nil && c.Alloc.Runner != "":
			some = true
			p := r.pools[c.Alloc.UID]
			if p == nil {
				// Its environment is deleted.
				continue
			}
			r.dirty[p.uid] = true
			p.see(c.AllocBefore, c.Alloc, c.At, &r.stats)
			r.handOutLocked(p)
			press = press || p.pressing()
		case c.Job != nil && c.Job.Env != nil:
			some, press = true, true
			if p := r.pools[c.Job.UID]; c.Job.Stage == muster.JobLive {
				r.dirty[r.poolLocked(c.Job.UID).uid] = true
			} else if p != nil {
				r.dropLocked(p)
			}
		case c.Node != nil:
			if goesAway(c.NodeBefore, c.Node) {
				some = true
				r.moveLocked(c.Node)
			}
		case c.Claim != nil:
			wait.Poke(r.claims)
			if c.Claim.State != muster.ClaimHeld {
				delete(r.uses, c.Claim.ID)
			}
		}
	}
	if some {
		r.signal(press)
	}
}

// standing returns how good a node is for a runner that is handed out now.
func (r *Runners) standing(id muster.NodeID) standing {
	return standingOf(r.cfg.State.Latest().Node(id), r.cfg.Reached)
}

// moveLocked marks the environments that have runners on a node that should be given to no claim
// any more.
func (r *Runners) moveLocked(n *state.Node) {
	r.cfg.State.Latest().NodeAllocs(n.ID, func(a *state.Alloc) bool {
		if a.Runner == muster.RunnerWarm || a.Runner == muster.RunnerStarting {
			r.dirty[a.UID] = true
		}
		return true
	})
}

// goesAway reports whether a change of a node means that its runners should be replaced elsewhere.
func goesAway(before, n *state.Node) bool {
	bad := func(n *state.Node) bool {
		return n != nil && (n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain || n.Health == muster.NodeBroken)
	}
	return bad(n) && !bad(before)
}

// signal wakes the loop to decide about the marked environments; with press at once.
func (r *Runners) signal(press bool) {
	wait.Poke(r.wake)
	if press {
		wait.Poke(r.press)
	}
}

// handOutLocked gives warm runners to the waiting claims, in order.
func (r *Runners) handOutLocked(p *pool) {
	for p.waiters.Len() > 0 {
		id := p.pop(r.standing)
		if id == "" {
			return
		}
		first := p.waiters.Front()
		p.waiters.Remove(first)
		first.Value.(*waiter).given <- id
	}
}

// decideLoop decides about environments until ctx ends.
func (r *Runners) decideLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
			// Claims come in bursts. One decision serves many.
			if !r.gather(ctx) {
				return
			}
		}
		r.resetTimer(timer, r.stock(ctx, r.now()))
	}
}

// endClaims ends claims on time.
func (r *Runners) endClaims(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.claims:
			// Most changes are new claims, which are not due yet.
			if !wait.For(ctx, linger) {
				return
			}
		}
		r.resetTimer(timer, r.expire(ctx, r.now()))
	}
}

// resetTimer sets a timer to the next deadline, but not later than resync; 0 means no deadline.
func (r *Runners) resetTimer(timer *time.Timer, next muster.Time) {
	wait := resync
	if next != 0 {
		wait = min(max(next.Sub(r.cfg.Clock.Now()), time.Millisecond), resync)
	}
	timer.Reset(wait)
}

// forgetGone purges ended runners at regular times.
func (r *Runners) forgetGone(ctx context.Context) {
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		r.purge(ctx, r.now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// now returns the log's time, which is never before that of the state.
func (r *Runners) now() muster.Time { return max(r.cfg.Clock.Now(), r.cfg.State.Latest().Meta().Time) }

// gather waits for further changes, first for debounce, then for linger unless the matter presses.
// It reports false if ctx ends first.
func (r *Runners) gather(ctx context.Context) bool {
	for _, wait := range []struct {
		d     time.Duration
		press <-chan struct{}
	}{{debounce, nil}, {linger, r.press}} {
		select {
		case <-ctx.Done():
			return false
		case <-wait.press:
		case <-time.After(wait.d):
		}
	}
	return true
}
