package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is where jobs are read. *state.State implements it.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config configures a Roll. State and Proposer are required; Logger may be nil.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock  clock.Clock
	Logger *slog.Logger
	// Paused says that the scheduler is paused. Then no member is stopped for a successor, because
	// none would be placed.
	Paused bool
}

// Roll is the control loop. See the package comment.
type Roll struct {
	cfg Config
	log *slog.Logger

	// mu guards dirty, the jobs to decide about. The feed's goroutine fills it, the deciding one
	// empties it.
	mu sync.Mutex
	// dirty are jobs to be decided about.
	dirty map[muster.JobUID]bool

	// wakes is when to look at a job again even if nothing changes. Only the deciding goroutine
	// uses it.
	wakes map[muster.JobUID]muster.Time
	// wake holds a token when dirty is not empty.
	wake chan struct{}
}

const (
	// debounce is how long changes are collected before a decision.
	debounce = 10 * time.Millisecond
	// resync is the longest time between two looks at all jobs. retryAfter is the delay after a
	// fact was not committed.
	resync     = 30 * time.Second
	retryAfter = time.Second
)

// New makes the loop. It does nothing before Run.
func New(cfg Config) (*Roll, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("roll: state and proposer are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	return &Roll{cfg: cfg, log: cfg.Logger.With("loop", "roll"), dirty: map[muster.JobUID]bool{},
		wakes: map[muster.JobUID]muster.Time{}, wake: make(chan struct{}, 1)}, nil
}

// Run decides about jobs until ctx ends. It returns nil then.
func (r *Roll) Run(ctx context.Context) error {
	snap := r.cfg.State.Latest()
	// All jobs are marked before the feed is followed from the same snapshot, so no change is
	// missed.
	r.all(snap)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.follow(ctx, snap.Index()) })
	r.decideLoop(ctx)
	return nil
}

// follow marks the jobs that changes of the feed concern.
func (r *Roll) follow(ctx context.Context, index uint64) {
	r.cfg.State.Feed().Follow(ctx, state.AfterIndex(index), r.markChanged, func() state.Position {
		snap := r.cfg.State.Latest()
		r.all(snap)
		return state.AfterIndex(snap.Index())
	})
}

// all marks all standing jobs.
func (r *Roll) all(snap *state.Snapshot) {
	snap.StandingJobs(func(j *state.Job) bool { r.mark(j.UID); return true })
}

// mark marks a job for a decision and wakes the loop.
func (r *Roll) mark(uid muster.JobUID) {
	r.mu.Lock()
	r.dirty[uid] = true
	r.mu.Unlock()
	wait.Poke(r.wake)
}

// markChanged marks the jobs whose row or members have changed, and those that a change of a node
// concerns.
func (r *Roll) markChanged(changes []state.Change) {
	var nodes []muster.NodeID
	for i := range changes {
		switch c := &changes[i]; {
		case c.Config:
			// The configuration may change the number of nodes that a job may use.
			r.all(r.cfg.State.Latest())
		case c.Alloc != nil:
			if c.Alloc.Run.Standing() {
				r.mark(c.Alloc.UID)
			}
		case c.Job != nil:
			if c.Job.Standing != nil {
				r.mark(c.Job.UID)
			}
		case c.Node != nil && c.Verb != state.VerbNodeUsed && c.Verb != state.VerbNodeFreed:
			nodes = append(nodes, c.Node.ID)
		}
	}
	if len(nodes) == 0 {
		return
	}
	// System jobs have a member for each node, so any change of a node may concern them.
	snap := r.cfg.State.Latest()
	snap.StandingJobs(func(j *state.Job) bool {
		if j.Run.System() {
			r.mark(j.UID)
		}
		return true
	})
	// Other jobs are concerned if they have members there: a node that drains must lose them.
	slices.Sort(nodes)
	for _, id := range slices.Compact(nodes) {
		snap.NodeAllocs(id, func(a *state.Alloc) bool {
			if a.Run.Standing() {
				r.mark(a.UID)
			}
			return true
		})
	}
}

// decideLoop decides about the jobs that are marked or due.
func (r *Roll) decideLoop(ctx context.Context) {
	timer := time.NewTimer(resync)
	defer timer.Stop()
	synced := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wake:
			if !wait.For(ctx, debounce) {
				return
			}
		}
		if time.Since(synced) >= resync {
			synced = time.Now()
			r.all(r.cfg.State.Latest())
		}
		next := r.step(ctx, r.cfg.Clock.Now())
		timer.Reset(min(max(next.Sub(r.cfg.Clock.Now()), time.Millisecond), resync))
	}
}

// step decides about each job that is marked or due, and returns when the next one is due. Jobs are
// taken in order, so that the same state gives the same facts.
func (r *Roll) step(ctx context.Context, now muster.Time) (next muster.Time) {
	r.mu.Lock()
	uids := make([]muster.JobUID, 0, len(r.dirty))
	for uid := range r.dirty {
		uids = append(uids, uid)
	}
	// The marks are cleared before the decisions: a change meanwhile marks the job again.
	clear(r.dirty)
	r.mu.Unlock()
	for uid, at := range r.wakes {
		if at <= now {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	for _, uid := range slices.Compact(uids) {
		if ctx.Err() != nil {
			break
		}
		delete(r.wakes, uid)
		if at := r.job(ctx, uid, now); at != 0 {
			r.wakes[uid] = at
		}
	}
	next = now.Add(resync)
	for _, at := range r.wakes {
		next = min(next, at)
	}
	return next
}

// job decides about one job and commits the decision. It returns when to look at the job again if
// nothing changes. Each step of a rollout is one fact, and the next step is decided from the state
// that it leaves. So a crash between two steps loses nothing.
func (r *Roll) job(ctx context.Context, uid muster.JobUID, now muster.Time) muster.Time {
	snap := r.cfg.State.Latest()
	j := snap.JobByUID(uid)
	if j == nil || j.Standing == nil || j.Stage != muster.JobLive {
		return 0
	}
	// The clock may lag behind the log. A deadline that the log treats as over is over here too.
	v := roll.Plan(snap, j, max(now, snap.Meta().Time))
	if r.cfg.Paused {
		v.Stops = nil
	}
	fact, says := factOf(j, &v)
	if fact == nil {
		return v.Wake
	}
	_, _, err := r.cfg.Proposer.Propose(ctx, fact)
	switch {
	case ctx.Err() != nil:
	case muster.IsKind(err, muster.FaultConflict), muster.IsKind(err, muster.FaultNotFound):
		// The job has changed since the snapshot. Decide again.
		r.mark(uid)
	case err != nil:
		r.log.Warn("not committed; tried again", "job", j.Key.String(), "error", err)
		return now.Add(retryAfter)
	default:
		r.log.Info(says, "job", j.Key.String(), "version", j.Version)
	}
	return v.Wake
}

// factOf returns the fact for a verdict, and what it does in words; nil if there is nothing to do.
// A verdict asks for one thing at a time.
func factOf(j *state.Job, v *roll.Verdict) (state.Fact, string) {
	switch {
	case v.Size != nil:
		return v.Size, fmt.Sprintf("a member for each node: %d wanted", v.Size.Count-j.NextIndex+j.Placed+j.Retrying-len(v.Size.Drop))
	case v.Stage != "":
		says := "rollout " + string(v.Stage)
		if v.Reason != "" {
			says += ": " + v.Reason
		}
		return &state.RolloutMoved{UID: j.UID, Version: j.Version, Stage: v.Stage, Reason: v.Reason}, says
	case v.Revert != nil:
		return roll.Revert(j, v.Revert, fmt.Sprintf("version %d failed: %s", j.Version, j.Standing.Reason)), fmt.Sprintf("back to version %d", v.Revert.Version)
	case len(v.Stops) > 0:
		return &state.PlanCommitted{Stops: v.Stops}, fmt.Sprintf("%s stopped: %s", muster.Counted(len(v.Stops), "member"), v.Stops[0].Why)
	}
	return nil, ""
}
