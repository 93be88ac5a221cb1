package roll

import (
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

// State is where jobs are read. *state.State is one.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config of a Roll. Logger may be nil.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock  clock.Clock
	Logger *slog.Logger
	// Paused: nobody is stopped for a successor, as none would be placed.
	Paused bool
}

// Roll is the loop. See the package comment.
type Roll struct {
	cfg Config
	log *slog.Logger

	mu sync.Mutex
	// dirty are jobs to be decided about.
	dirty map[muster.JobUID]bool

	// wakes is when to look at a job again; of the goroutine that decides.
	wakes map[muster.JobUID]muster.Time
	wake  chan struct{}
}

const (
	// debounce gathers changes before jobs are decided about.
	debounce = 10 * time.Millisecond
	// resync is how often all jobs are looked at again; retryAfter is for what could not be committed.
	resync     = 30 * time.Second
	retryAfter = time.Second
)

// New makes the loop; it does nothing before Run.
func New(cfg Config) (*Roll, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("roll: state and proposer are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Roll{cfg: cfg, log: cfg.Logger.With("loop", "roll"), dirty: map[muster.JobUID]bool{},
		wakes: map[muster.JobUID]muster.Time{}, wake: make(chan struct{}, 1)}, nil
}

// Run decides again and again until ctx ends. It returns nil then.
func (r *Roll) Run(ctx context.Context) error {
	snap := r.cfg.State.Latest()
	r.all(snap)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { r.follow(ctx, snap.Index()) })
	r.turn(ctx)
	return nil
}

// follow marks the jobs that the feed speaks of.
func (r *Roll) follow(ctx context.Context, index uint64) {
	r.cfg.State.Feed().Follow(ctx, state.AfterIndex(index), r.take, func() state.Position {
		snap := r.cfg.State.Latest()
		r.all(snap)
		return state.AfterIndex(snap.Index())
	})
}

func (r *Roll) all(snap *state.Snapshot) {
	snap.StandingJobs(func(j *state.Job) bool { r.mark(j.UID); return true })
}

func (r *Roll) mark(uid muster.JobUID) {
	r.mu.Lock()
	r.dirty[uid] = true
	r.mu.Unlock()
	wait.Poke(r.wake)
}

// take marks jobs whose members or whose row has changed, and those that a change of a node is about.
func (r *Roll) take(changes []state.Change) {
	var nodes []muster.NodeID
	for i := range changes {
		switch c := &changes[i]; {
		case c.Config:
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
	snap := r.cfg.State.Latest()
	snap.StandingJobs(func(j *state.Job) bool {
		if j.Run.System() {
			r.mark(j.UID)
		}
		return true
	})
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

// turn decides about jobs that are marked, or due.
func (r *Roll) turn(ctx context.Context) {
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

// step looks at each job that is marked or due, and returns when the next is due.
func (r *Roll) step(ctx context.Context, now muster.Time) (next muster.Time) {
	r.mu.Lock()
	uids := make([]muster.JobUID, 0, len(r.dirty))
	for uid := range r.dirty {
		uids = append(uids, uid)
	}
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

// job has one decided about, and returns when to look at it again if nothing changes.
func (r *Roll) job(ctx context.Context, uid muster.JobUID, now muster.Time) muster.Time {
	snap := r.cfg.State.Latest()
	j := snap.JobByUID(uid)
	if j == nil || j.Standing == nil || j.Stage != muster.JobLive {
		return 0
	}
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
		r.mark(uid) // it changed meanwhile
	case err != nil:
		r.log.Warn("not committed; tried again", "job", j.Key.String(), "error", err)
		return now.Add(retryAfter)
	default:
		r.log.Info(says, "job", j.Key.String(), "version", j.Version)
	}
	return v.Wake
}

// factOf is what a verdict means for the log, and in words; nil: nothing is to be done.
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
