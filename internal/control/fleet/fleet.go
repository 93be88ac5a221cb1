package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// Proposer commits a fact and answers with its index and apply's value.
type Proposer interface {
	Propose(ctx context.Context, f state.Fact) (index uint64, value any, err error)
}

// Source is the state as it is applied.
type Source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config is what a Fleet needs.
type Config struct {
	State    Source
	Proposer Proposer
	// Providers by the name that pools and offerings know them by.
	Providers map[muster.ProviderName]cloud.Provider
	Logger    *slog.Logger
	// SweepEvery is how often everything is listed although nothing asks for it,
	// OffersEvery how often offerings are read; 0: a minute.
	SweepEvery, OffersEvery time.Duration
	// Draw makes the random part of ids and tokens; nil: from crypto/rand.
	Draw func() string
}

// Times of the loop.
const (
	// quiet is the shortest time between two passes; a pass that took long is
	// followed by restFactor times as much of rest, at most longestRest.
	quiet, restFactor, longestRest = 2 * time.Millisecond, 24, time.Second
	// lazyFor is how long changes that seldom matter wait for company.
	lazyFor = 100 * time.Millisecond
	resync  = 10 * time.Second
)

// Fleet is the loop. See the package comment.
type Fleet struct {
	cfg   Config
	log   *slog.Logger
	names []muster.ProviderName
	calls sync.WaitGroup // provider calls under way
	// wake holds a token when a pass is due, lazy when one is due soon.
	wake, lazy chan struct{}
	ids        ids

	mu        sync.Mutex
	memory    mend.Memory
	backoff   map[muster.NodeID]int // answers that said nothing or no, in a row
	blocks    blocks
	sights    map[muster.ProviderName]*mend.Sight
	listers   map[muster.ProviderName]*lister
	strays    map[muster.InstanceID]bool
	lost      map[muster.PoolName][]time.Time // when nodes were destroyed for lost contact
	tripped   map[muster.PoolName]bool
	decisions *size.Decisions
	stats     Stats
}

// New makes a Fleet; it does nothing before Run.
func New(cfg Config) (*Fleet, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("fleet: state and proposer are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = time.Minute
	}
	if cfg.OffersEvery == 0 {
		cfg.OffersEvery = time.Minute
	}
	f := &Fleet{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), lazy: make(chan struct{}, 1), ids: ids{draw: cfg.Draw},
		memory: mend.Memory{
			Creating: map[muster.NodeID]bool{}, Destroying: map[muster.NodeID]bool{}, Tried: map[muster.NodeID]muster.Time{},
			Destroyed: map[muster.NodeID]muster.Time{}, NotBefore: map[muster.NodeID]muster.Time{},
		},
		backoff: map[muster.NodeID]int{}, sights: map[muster.ProviderName]*mend.Sight{},
		listers: map[muster.ProviderName]*lister{}, strays: map[muster.InstanceID]bool{},
		lost: map[muster.PoolName][]time.Time{}, tripped: map[muster.PoolName]bool{},
	}
	for name, p := range cfg.Providers {
		f.names = append(f.names, name)
		f.sights[name] = &mend.Sight{Provider: name}
		f.listers[name] = newLister(f, name, p)
	}
	slices.Sort(f.names)
	return f, nil
}

// Run turns the fleet until ctx ends, and waits for its provider calls.
func (f *Fleet) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer f.calls.Wait()
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops.Go(func() { f.follow(ctx) })
	for _, name := range f.names {
		loops.Go(func() { f.listers[name].run(ctx) })
		loops.Go(func() { f.readOffers(ctx, name) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-f.lazy:
			if !f.linger(ctx) {
				return nil
			}
		case <-timer.C:
		}
		began := time.Now()
		next := f.step(ctx)
		took := time.Since(began)
		f.mu.Lock()
		f.stats.Passes++
		f.stats.PassTime += took
		f.mu.Unlock()
		if !sleep(ctx, min(max(quiet, restFactor*took), longestRest)) {
			return nil
		}
		timer.Reset(next)
	}
}

// linger waits for company; not ok when ctx ends.
func (f *Fleet) linger(ctx context.Context) bool {
	t := time.NewTimer(lazyFor)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-f.wake:
	case <-t.C:
	}
	return true
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// follow wakes the loop by the changes that may matter to it.
func (f *Fleet) follow(ctx context.Context) {
	feed := f.cfg.State.Feed()
	pos := state.AfterIndex(f.cfg.State.Latest().Index())
	for feed.Wait(ctx, pos.Index) == nil {
		const limit = 1024
		changes, last, err := feed.After(pos, limit)
		if err != nil {
			poke(f.wake)
			pos = state.AfterIndex(f.cfg.State.Latest().Index())
			continue
		}
		for i := range changes {
			switch urgent, soon := matters(&changes[i]); {
			case urgent:
				poke(f.wake)
			case soon:
				poke(f.lazy)
			}
		}
		if pos = state.AfterIndex(last); len(changes) == limit {
			pos = changes[limit-1].Position()
		}
	}
}

// matters reports whether a change calls for a pass, at once or soon.
func matters(c *state.Change) (urgent, soon bool) {
	switch {
	case c.Config, c.Job != nil, c.JobBefore != nil:
		return true, false
	case c.Verb == "node.used":
		// The scheduler may have placed otherwise than was thought.
		return false, true
	case c.Verb == "node.freed":
		return c.Node.LiveAllocs == 0, false
	case c.Node != nil:
		return true, false
	case c.Verb == "alloc.ended":
		return c.Alloc.Outcome != muster.OutcomeSucceeded, false
	case c.Verb == "alloc.output":
		return false, true
	}
	return false, false
}

// step is one pass: it decides on one snapshot, commits what is decided, and
// starts the calls. It returns when to come again if nothing happens.
func (f *Fleet) step(ctx context.Context) time.Duration {
	now := muster.At(time.Now())
	snap := f.cfg.State.Latest()
	f.mu.Lock()
	f.tidyLocked(snap)
	f.memory.Unexplained = f.unexplainedLocked()
	mending := mend.Plan(snap, f.sights, &f.memory, now)
	sizing := size.Plan(snap, f.blocks.now(now), now)
	f.decisions = sizing
	f.mu.Unlock()

	f.mend(ctx, snap, mending)
	f.size(ctx, sizing)

	next := now.Add(resync)
	for _, t := range []muster.Time{mending.Wake, sizing.Wake} {
		if t != 0 {
			next = min(next, t)
		}
	}
	return max(next.Sub(muster.At(time.Now())), 0)
}

// tidyLocked forgets calls of nodes that are gone.
func (f *Fleet) tidyLocked(snap *state.Snapshot) {
	gone := func(id muster.NodeID) bool {
		n := snap.Node(id)
		return n == nil || n.Stage == muster.NodeGone
	}
	for _, m := range []map[muster.NodeID]muster.Time{f.memory.Tried, f.memory.Destroyed, f.memory.NotBefore} {
		for id := range m {
			if gone(id) {
				delete(m, id)
			}
		}
	}
	for id := range f.backoff {
		if gone(id) {
			delete(f.backoff, id)
		}
	}
}

const unexplainedFor = 10 * time.Minute

func (f *Fleet) unexplainedLocked() map[muster.PoolName]int {
	out := map[muster.PoolName]int{}
	for pool, times := range f.lost {
		times = slices.DeleteFunc(times, func(t time.Time) bool { return time.Since(t) >= unexplainedFor })
		f.lost[pool] = times
		out[pool] = len(times)
	}
	return out
}

// mend carries out what package mend decided.
func (f *Fleet) mend(ctx context.Context, snap *state.Snapshot, d *mend.Decisions) {
	var b batch
	for _, found := range d.Launched {
		b.add(&state.NodeLaunched{ID: found.Node, Instance: found.Instance})
	}
	for _, t := range d.Gone {
		b.add(&state.NodeGone{ID: t.Node, Reason: t.Reason})
	}
	for _, t := range d.Terminate {
		b.add(&state.NodeTerminating{ID: t.Node, Reason: t.Reason})
	}
	f.commit(ctx, &b)
	f.mu.Lock()
	for _, t := range d.Terminate {
		if t.Unexplained && b.committed(t.Node) {
			pool := snap.Node(t.Node).Pool
			f.lost[pool] = append(f.lost[pool], time.Now())
		}
	}
	for _, pool := range f.poolsOf(snap) {
		trips := slices.Contains(d.Tripped, pool)
		if trips && !f.tripped[pool] {
			f.log.Error("too many nodes of the pool are out of contact: none is destroyed for it any more", "pool", pool, "within", unexplainedFor)
		}
		f.tripped[pool] = trips
	}
	f.mu.Unlock()
	f.create(ctx, snap, d.Create)
	f.destroy(ctx, snap, d.Destroy)
	for _, look := range d.Looks {
		if l := f.listers[look.Provider]; l != nil {
			l.want(look.At)
		}
	}
}

func (f *Fleet) poolsOf(snap *state.Snapshot) []muster.PoolName {
	var out []muster.PoolName
	snap.Pools(func(p *state.Pool) bool { out = append(out, p.Name); return true })
	return out
}

// size carries out what package size decided.
func (f *Fleet) size(ctx context.Context, d *size.Decisions) {
	var b batch
	for _, t := range d.Drain {
		b.add(&state.NodeDraining{ID: t.Node, Reason: t.Reason})
	}
	for _, t := range d.Terminate {
		b.add(&state.NodeTerminating{ID: t.Node, Reason: t.Reason, IfIdle: t.IfIdle})
	}
	for _, j := range d.Fail {
		b.add(&state.JobFailed{UID: j.UID, Reason: j.Reason, Modified: j.Modified})
	}
	f.commit(ctx, &b)
	f.launch(ctx, d.Launch)
}
