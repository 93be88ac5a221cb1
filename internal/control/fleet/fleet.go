package fleet

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// Source is the applied state: the newest snapshot, and the feed of changes.
type Source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config holds what a Fleet needs. State and Proposer are required.
type Config struct {
	State    Source
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock clock.Clock
	// Providers has the providers by the name that pools and offerings use for them.
	Providers map[muster.ProviderName]cloud.Provider
	Logger    *slog.Logger
	// Paused says that the scheduler is paused. Then nothing is launched for waiting jobs.
	Paused bool
	// SweepEvery is how often everything is listed although nothing asks for it. OffersEvery is how
	// often offerings are read. Zero means a minute.
	SweepEvery, OffersEvery time.Duration
	// Heard returns the time from which the silence of a node's agent counts; see link.Link.Heard.
	// It must not block. If it is nil, broken nodes wait for their work however long that takes.
	Heard func(muster.NodeID) muster.Time
	// Draw makes the random part of ids and tokens. Nil means crypto/rand.
	Draw func() string
	// Boot returns what the instance of an intent gets for its first start, where its provider is
	// cloud.Bootable. Equal intents must give equal bytes. If it is nil, none gets anything.
	Boot func(muster.ProviderName, muster.Token) (cloud.Boot, error)
}

// Times of the loop.
const (
	// quiet is the shortest time between two passes. A pass is followed by a rest of restFactor
	// times its own length, at most longestRest, so that a large fleet does not use a whole
	// processor.
	quiet, restFactor, longestRest = 2 * time.Millisecond, 24, time.Second
	// lazyFor is how long a change that seldom matters waits for others.
	lazyFor = 100 * time.Millisecond
	// resync is the longest time between two passes.
	resync = 10 * time.Second
)

// Fleet is the control loop. See the package comment.
//
// One goroutine, that of Run, makes the passes. Others read the feed, list the providers, read
// offers and notices, and make calls. They meet in the fields that mu guards.
type Fleet struct {
	cfg   Config
	log   *slog.Logger
	names []muster.ProviderName
	// providers are those of the configuration. Each counts its calls and hides the instances of
	// other clusters.
	providers map[muster.ProviderName]cloud.Provider
	counts    map[muster.ProviderName]*cloud.Counted
	// calls are the provider calls under way. Run waits for them.
	calls sync.WaitGroup
	// keeper has blocks and delays in the log as well.
	keeper keeper
	// wake holds a token when a pass is due now, lazy when one is due soon.
	wake, lazy chan struct{}
	ids        ids

	// mu guards the fields below. It is never held during a call, a proposal or a log line.
	mu sync.Mutex
	// memory is what package mend has to know beside the state: calls under way, and times of
	// calls. A new leader starts with an empty one.
	memory mend.Memory
	// refused holds nodes whose instance was listed as failed: that is one refusal, however often it
	// is listed.
	refused map[muster.NodeID]bool
	// atRisk is since when the cloud says that it may take a node's instance soon.
	atRisk map[muster.NodeID]muster.Time
	// fromAgent are the nodes whose notice in memory is from their agent.
	fromAgent map[muster.NodeID]bool
	// leftovers is how many each provider had at its last sweep.
	leftovers map[muster.ProviderName]int
	// broken holds nodes that were seen broken and are not gone.
	broken map[muster.NodeID]bool
	// backoff counts answers in a row that failed or were unclear.
	backoff map[muster.NodeID]int
	blocks  blocks
	// delays are the calls that providers have forbidden for a time.
	delays delays
	// sights holds what the lists of each provider have shown.
	sights  map[muster.ProviderName]*mend.Sight
	listers map[muster.ProviderName]*lister
	// strays and tagging hold the instances with a call under way.
	strays   map[muster.InstanceID]bool
	tagging  map[muster.InstanceID]bool
	troubles troubles
	// unsold holds the providers whose offerings cannot be read.
	unsold map[muster.ProviderName]Blind
	// stopped is when live allocations were told to stop.
	stopped map[muster.AllocID]muster.Time
	// overdue holds the overdue nodes that were logged.
	overdue map[muster.NodeID]bool
	boots   *boots
	// sheltered is until when an instance, by token, is left alone. See Shelter.
	sheltered map[muster.Token]muster.Time
	// sizing is the view of package size, decisions its last result.
	sizing    sizeView
	decisions *size.Decisions
	stats     Stats
}

// New makes a Fleet. It does nothing before Run.
func New(cfg Config) (*Fleet, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("fleet: state and proposer are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.SweepEvery = cmp.Or(cfg.SweepEvery, time.Minute)
	cfg.OffersEvery = cmp.Or(cfg.OffersEvery, time.Minute)
	f := &Fleet{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), lazy: make(chan struct{}, 1), ids: ids{draw: cfg.Draw},
		delays: delays{},
		memory: mend.Memory{
			Creating: map[muster.NodeID]bool{}, Destroying: map[muster.NodeID]bool{}, Switching: map[muster.NodeID]bool{}, Off: map[muster.NodeID]bool{}, Tried: map[muster.NodeID]muster.Time{},
			Destroyed: map[muster.NodeID]muster.Time{}, NotBefore: map[muster.NodeID]muster.Time{},
			Due: map[muster.AllocID]muster.Time{}, Notices: map[muster.NodeID]mend.Notice{},
		},
		broken: map[muster.NodeID]bool{}, leftovers: map[muster.ProviderName]int{}, refused: map[muster.NodeID]bool{}, atRisk: map[muster.NodeID]muster.Time{}, fromAgent: map[muster.NodeID]bool{}, backoff: map[muster.NodeID]int{}, sights: map[muster.ProviderName]*mend.Sight{},
		listers: map[muster.ProviderName]*lister{}, strays: map[muster.InstanceID]bool{}, tagging: map[muster.InstanceID]bool{}, troubles: troubles{}, unsold: map[muster.ProviderName]Blind{},
		stopped: map[muster.AllocID]muster.Time{}, overdue: map[muster.NodeID]bool{}, boots: newBoots(),
		providers: map[muster.ProviderName]cloud.Provider{}, counts: map[muster.ProviderName]*cloud.Counted{},
	}
	f.keeper = keeper{f, wait.NewTurn()}
	// The wrapper keeps instances of other clusters, which may share the account, out of every
	// list.
	owner := cfg.State.Latest().Meta().Cluster
	for name, p := range cfg.Providers {
		f.names = append(f.names, name)
		if owner != "" {
			p = cloud.NewOwned(p, owner)
		}
		f.counts[name] = cloud.NewCounted(p)
		f.providers[name], p = f.counts[name], f.counts[name]
		lag := cloud.ConsistencyOf(p)
		f.sights[name] = &mend.Sight{Provider: name, ListLag: lag.ListLag, Agreement: lag.Agreement}
		f.listers[name] = newLister(f, name, p)
	}
	slices.Sort(f.names)
	return f, nil
}

// Run makes passes until ctx ends, and then waits for its provider calls.
func (f *Fleet) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer f.calls.Wait()
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The whole state is read before the first pass. What is committed in between comes as a change
	// and wakes the loop.
	at := f.survey()
	f.keeper.recall(f.cfg.State.Latest())
	f.warnUnmanaged()
	loops.Go(func() { f.follow(ctx, at) })
	for _, name := range f.names {
		loops.Go(func() { f.listers[name].run(ctx) })
		loops.Go(func() { f.readOffers(ctx, name) })
		loops.Go(func() { f.readNotices(ctx, name) })
		loops.Go(func() { f.sweepLeftovers(ctx, name) })
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
		// A pass looks at everything, so it answers both. Drain them before the pass: a change
		// during the pass sets them again.
		wait.Drain(f.wake)
		wait.Drain(f.lazy)
		began := time.Now()
		next := f.step(ctx)
		took := time.Since(began)
		f.mu.Lock()
		f.stats.Passes++
		f.stats.PassTime += took
		f.mu.Unlock()
		if !wait.For(ctx, min(max(quiet, restFactor*took), longestRest)) {
			return nil
		}
		timer.Reset(next)
	}
}

// linger waits for more changes, or for an urgent one. It reports false when ctx ends.
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

// follow reads the changes after a position and wakes the loop for those that may matter.
func (f *Fleet) follow(ctx context.Context, at state.Position) {
	f.cfg.State.Feed().Follow(ctx, at, func(changes []state.Change) {
		f.watch(changes)
		for i := range changes {
			switch urgent, soon := matters(&changes[i]); {
			case urgent:
				wait.Poke(f.wake)
			case soon:
				wait.Poke(f.lazy)
			}
		}
	}, func() state.Position {
		wait.Poke(f.wake)
		return f.survey()
	})
}

// survey takes the newest state as a whole and returns the position after it.
func (f *Fleet) survey() state.Position {
	snap := f.cfg.State.Latest()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.surveyLocked(snap, f.cfg.Clock.Now())
	return state.AfterIndex(snap.Index())
}

// watch takes from the changes what the fleet remembers beside the state.
func (f *Fleet) watch(changes []state.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if c.Alloc != nil || c.AllocBefore != nil {
			f.watchWorkLocked(c.AllocBefore, c.Alloc, c.At)
		}
		if c.Node == nil {
			continue
		}
		f.boots.change(c)
		if c.Node.Health == muster.NodeBroken {
			f.broken[c.Node.ID] = true
		}
		if n := c.Node; n != nil && n.Joined != 0 && (c.NodeBefore == nil || c.NodeBefore.Joined == 0) {
			f.blocks.booted(&n.Offering)
		}
		if before := c.NodeBefore; before != nil && before.Intent != c.Node.Intent {
			// The node's tags are outdated now. Ask for a list, which shows that and has them set.
			if l := f.listers[c.Node.Offering.Provider]; l != nil {
				l.want(c.At)
			}
		}
	}
}

// matters reports whether a change calls for a pass, at once or soon.
func matters(c *state.Change) (urgent, soon bool) {
	switch {
	case c.Config, c.Job != nil, c.JobBefore != nil:
		return true, false
	case c.Verb == state.VerbNodeUsed:
		// The scheduler may have placed work on another node than package size expected.
		return false, true
	case c.Verb == state.VerbNodeFreed:
		return !c.Node.Busy(), false
	case c.Node != nil:
		return true, false
	case c.Verb == state.VerbAllocEnded:
		return c.Alloc.Outcome != muster.OutcomeSucceeded || c.Alloc.Run.Standing(), false
	case c.Verb == state.VerbAllocOutput:
		return false, true
	}
	return false, false
}

// step is one pass: it decides on one snapshot, commits the decisions and starts the calls. It
// returns in how long to come again if nothing happens.
//
// Intent comes before effect. If the server crashes between a commit and a call, the next leader
// finds the node in the state and makes the call, or finds the instance by its token.
func (f *Fleet) step(ctx context.Context) time.Duration {
	now := f.cfg.Clock.Now()
	// Asked before the snapshot is taken, which then has what those lists made known.
	listed := f.listedOnce()
	snap := f.cfg.State.Latest()
	// The link is asked before the lock is taken.
	heard := f.heard(snap)
	f.mu.Lock()
	f.tidyLocked(snap)
	f.memory.Heard = heard
	f.blocks.watch(snap, now)
	mending := mend.Plan(snap, f.sights, &f.memory, now)
	sizing := size.Plan(f.sizing.to(snap, f.cfg.State.Feed()), f.blocks.now(now), now, f.cfg.Paused)
	f.decisions = sizing
	f.mu.Unlock()

	f.keeper.keep(ctx)
	f.mend(ctx, snap, mending)
	f.size(ctx, sizing, listed)

	next := now.Add(resync)
	for _, t := range []muster.Time{mending.Wake, sizing.Wake} {
		if t != 0 {
			next = min(next, t)
		}
	}
	return max(next.Sub(f.cfg.Clock.Now()), 0)
}

// tidyLocked forgets what is remembered about nodes that are gone. f.mu is held.
func (f *Fleet) tidyLocked(snap *state.Snapshot) {
	gone := func(id muster.NodeID) bool {
		n := snap.Node(id)
		return n == nil || n.Stage == muster.NodeGone
	}
	forget(f.memory.Tried, gone)
	maps.DeleteFunc(f.memory.Off, func(id muster.NodeID, _ bool) bool {
		n := snap.Node(id)
		return n == nil || n.Stage != muster.NodeStopped
	})
	forget(f.memory.Destroyed, gone)
	forget(f.memory.NotBefore, gone)
	forget(f.memory.Notices, gone)
	forget(f.atRisk, gone)
	forget(f.fromAgent, gone)
	forget(f.refused, gone)
	forget(f.broken, gone)
	forget(f.backoff, gone)
	forget(f.troubles, gone)
	forget(f.overdue, gone)
}

// forget deletes the entries of nodes that are gone.
func forget[M ~map[muster.NodeID]V, V any](of M, gone func(muster.NodeID) bool) {
	maps.DeleteFunc(of, func(id muster.NodeID, _ V) bool { return gone(id) })
}

// mend carries out what package mend decided.
func (f *Fleet) mend(ctx context.Context, snap *state.Snapshot, d *mend.Decisions) {
	var b batch
	for _, found := range d.Launched {
		f.createdAfterAll(found.Node)
		b.add(&state.NodeLaunched{ID: found.Node, Instance: found.Instance})
	}
	for _, t := range d.Gone {
		b.add(&state.NodeGone{ID: t.Node, Reason: t.Reason, UnlessHeld: true, IfUnchangedSince: t.UnchangedSince})
	}
	for _, t := range d.Drain {
		b.add(&state.NodeDraining{ID: t.Node, Reason: t.Reason})
	}
	var unbooted []size.Block
	// A silent node may have reported since the decision.
	terminate := slices.DeleteFunc(slices.Clone(d.Terminate), f.reported)
	f.mu.Lock()
	for _, t := range terminate {
		b.add(&state.NodeTerminating{ID: t.Node, Reason: t.Reason, Unexplained: t.Unexplained, GiveUp: t.GiveUp, IfLostSince: t.LostSince})
		if t.Failed {
			f.boots.failed(t.Node)
			if n := snap.Node(t.Node); n != nil && n.Stage != muster.NodeLaunching {
				if b, ok := f.blocks.unbooted(&n.Offering, t.Reason, f.cfg.Clock.Now(), snap); ok {
					unbooted = append(unbooted, b)
				}
			}
		}
	}
	f.stats.Overdue = len(d.Overdue)
	var overdue []mend.Turn
	for _, t := range d.Overdue {
		if !f.overdue[t.Node] {
			f.overdue[t.Node] = true
			overdue = append(overdue, t)
		}
	}
	f.mu.Unlock()
	for _, b := range unbooted {
		f.log.Warn("a new instance is given up; the next is launched later", "offering", b.Scope.Offering, "why", b.Why, "again", b.Until.Sub(f.cfg.Clock.Now()))
	}
	for _, t := range overdue {
		f.log.Error("only its provider or an operator can help a node", "node", t.Node, "instance", snap.Node(t.Node).Instance, "why", t.Reason)
	}
	for _, r := range d.Release {
		b.add(&state.NodeIntentSet{ID: r.Node, Intent: muster.NodeRun, Reason: "the time of its hold is over", IfUntil: r.Until})
	}
	for _, r := range d.Evict {
		b.add(&state.NodeEvicted{ID: r.Node, Reason: "the deadline of its drain is over", IfUntil: r.Until})
	}
	f.commit(ctx, &b)
	// The breaker's facts go in a second batch, after the first is committed. Facts of one batch
	// have no order, and a tripped breaker refuses the terminations that it still allows in this
	// pass.
	var trips batch
	for _, t := range d.Tripped {
		trips.add(&state.PoolTripped{Pool: t.Pool, Reason: t.Reason})
	}
	f.commit(ctx, &trips)
	// The calls come last, when their intents are in the log.
	f.create(ctx, snap, d.Create)
	f.destroy(ctx, snap, d.Destroy)
	power{f}.off(ctx, snap, d.SwitchOff)
	power{f}.on(ctx, snap, d.SwitchOn)
	for _, look := range d.Looks {
		if l := f.listers[look.Provider]; l != nil {
			l.look(look.At)
		}
	}
}

// size carries out what package size decided. listed holds the providers that had been listed when
// it decided.
func (f *Fleet) size(ctx context.Context, d *size.Decisions, listed map[muster.ProviderName]bool) {
	var b batch
	for _, t := range d.Drain {
		b.add(&state.NodeDraining{ID: t.Node, Reason: t.Reason, Unplaced: t.Unplaced})
	}
	for _, t := range d.Terminate {
		b.add(&state.NodeTerminating{ID: t.Node, Reason: t.Reason, IfIdle: t.IfIdle})
	}
	for _, t := range d.Stop {
		b.add(&state.NodeStopped{ID: t.Node, Reason: t.Reason})
	}
	for _, t := range d.Start {
		b.add(&state.NodeStarting{ID: t.Node, Reason: t.Reason})
	}
	for _, t := range d.Keep {
		b.add(&state.NodeKept{ID: t.Node, Reason: t.Reason})
	}
	f.warnUnplaced(d)
	for _, j := range d.Fail {
		b.add(&state.JobFailed{UID: j.UID, Reason: j.Reason, Modified: j.Modified})
	}
	f.commit(ctx, &b)
	f.launch(ctx, d.Launch, listed)
}

// warnUnplaced logs loudly when nodes end because the configuration has changed: a pool may have
// been left out by mistake.
func (f *Fleet) warnUnplaced(d *size.Decisions) {
	drain, end := map[string]int{}, map[string]int{}
	for _, t := range d.Drain {
		if t.Unplaced {
			drain[t.Reason]++
		}
	}
	for _, t := range d.Terminate {
		if t.Unplaced {
			end[t.Reason]++
			// This makes an entry, so that the loop below finds the reason.
			drain[t.Reason] += 0
		}
	}
	for _, why := range slices.Sorted(maps.Keys(drain)) {
		f.log.Error("nodes are not in the configuration; put it back to keep those that drain", "why", why, "drain", drain[why], "destroyed", end[why])
	}
}
