package broker

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tidwall/btree"
	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is where the broker learns what the jobs want. *state.State is one.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config of a broker. Zero durations and numbers mean the defaults.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock  clock.Clock
	Logger *slog.Logger

	// DeliveryTimeout is how long a worker may take to answer, the time in the
	// applier's queue not counted. Default: a minute.
	DeliveryTimeout time.Duration
	// DeliveryLimit is after how many nacks in a row a job is parked. Default: 3.
	DeliveryLimit int
	// NackDelay is how long a job is held back after its first nack; four times
	// as long after each further one. Default: 250 ms.
	NackDelay time.Duration
	// ParkFor is after which time a parked job is tried again if nothing changed
	// it before. Default: ten minutes.
	ParkFor time.Duration
	// PassFor is how long others may be placed past a job that fits nowhere, before room
	// is reserved for it. Default: five minutes.
	PassFor time.Duration
	// Reservations is on how many nodes room may be reserved at once. Default: 8.
	Reservations int
}

// Broker is the queue of evaluations. Its methods may be called from any
// goroutine; they have something to say only while Run runs.
type Broker struct {
	cfg Config
	log *slog.Logger

	// earlier tells the timer loop that its next deadline has moved; toPark
	// tells the parker that there is work. Each holds one.
	earlier chan struct{}
	toPark  chan struct{}

	mu      sync.Mutex
	entries map[muster.JobUID]*entry
	ready   *btree.BTreeG[*entry] // by rank
	timers  *btree.BTreeG[*entry] // by time, uid: entries whose at is set
	parking []*entry
	windows map[uint64]*window
	// bands sums up what is ready.
	bands bands
	// at is how far the feed is taken in, followed the index up to which that is all.
	at       state.Position
	followed uint64
	// tokens are unique over leaderships: the term, then a running number.
	term, serial uint64
	// armed is the deadline that the timer loop waits for; 0: none.
	armed muster.Time
	// Who waits in Dequeue, and in DequeueAhead.
	workers, standby waiters

	// groups are the blocked by shape, promised is room kept for those that were
	// woken for it and are not answered yet.
	groups map[state.ShapeID]*group
	// bounded are those blocked by a limit, by whose it is.
	bounded  map[muster.Namespace]bound
	promised map[muster.NodeID]pledges
	// grown has the nodes whose room grew since Run began, the newest last;
	// grownAt finds a node's element. blind is the index up to which growth may have been missed.
	grown   *list.List
	grownAt map[muster.NodeID]*list.Element
	blind   uint64

	stats Stats
}

// New makes a broker. It starts nothing.
func New(cfg Config) (*Broker, error) {
	if cfg.State == nil || cfg.Proposer == nil {
		return nil, errors.New("broker: state and proposer are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.DeliveryTimeout <= 0 {
		cfg.DeliveryTimeout = time.Minute
	}
	if cfg.DeliveryLimit <= 0 {
		cfg.DeliveryLimit = 3
	}
	if cfg.NackDelay <= 0 {
		cfg.NackDelay = 250 * time.Millisecond
	}
	if cfg.ParkFor <= 0 {
		cfg.ParkFor = 10 * time.Minute
	}
	if cfg.PassFor <= 0 {
		cfg.PassFor = 5 * time.Minute
	}
	if cfg.Reservations <= 0 {
		cfg.Reservations = 8
	}
	b := &Broker{
		cfg: cfg, log: cfg.Logger,
		earlier: make(chan struct{}, 1), toPark: make(chan struct{}, 1),
		workers: waiters{wake: make(chan struct{})}, standby: waiters{wake: make(chan struct{})},
	}
	b.clearLocked()
	return b, nil
}

// Run holds the queue for as long as ctx lasts: one leadership. It returns nil
// when ctx ends; what was handed out before is worth nothing from then on. It may
// be run again.
func (b *Broker) Run(ctx context.Context) error {
	b.mu.Lock()
	b.clearLocked()
	snap := b.cfg.State.Latest()
	b.term = snap.Meta().Term
	b.resyncLocked(snap)
	b.tellWorkersLocked()
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.clearLocked()
		b.mu.Unlock()
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.follow(gctx) })
	g.Go(func() error { return b.tick(gctx) })
	g.Go(func() error { return b.park(gctx) })
	g.Go(func() error { return b.reserve(gctx) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (b *Broker) clearLocked() {
	b.entries = map[muster.JobUID]*entry{}
	b.ready = btree.NewBTreeGOptions(func(x, y *entry) bool { return x.rank(y) < 0 }, btree.Options{NoLocks: true})
	b.timers = btree.NewBTreeGOptions(earlierEntry, btree.Options{NoLocks: true})
	b.parking = nil
	b.windows = map[uint64]*window{}
	b.bands = bands{}
	b.armed = 0
	b.groups = map[state.ShapeID]*group{}
	b.bounded = map[muster.Namespace]bound{}
	b.promised = map[muster.NodeID]pledges{}
	b.grown, b.grownAt, b.blind = list.New(), map[muster.NodeID]*list.Element{}, 0
	b.stats.clear()
}

// clock is the time by which deadlines in the state are due: never before what
// the log has seen, so that a deadline that the log has passed is over here too.
func (b *Broker) clock(snap *state.Snapshot) muster.Time {
	return max(b.cfg.Clock.Now(), snap.Meta().Time)
}

// tellWorkersLocked wakes those who wait for something that is ready now.
func (b *Broker) tellWorkersLocked() {
	for _, ws := range [...]*waiters{&b.workers, &b.standby} {
		if ws.count > 0 && b.servesLocked(ws) {
			close(ws.wake)
			ws.wake = make(chan struct{})
		}
	}
}

// tick fires deadlines: of entries, and of deliveries without an answer.
func (b *Broker) tick(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		b.mu.Lock()
		over, wait, some := b.fireLocked()
		b.tellWorkersLocked()
		b.mu.Unlock()
		if over > 0 {
			b.log.Warn("no answer for deliveries", "deliveries", over, "after", b.cfg.DeliveryTimeout)
		}
		var due <-chan time.Time
		if some {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-due:
		case <-b.earlier:
		}
	}
}

// fireLocked handles what is due, and tells how many deliveries timed out and
// how long it is to the next deadline, if there is one.
func (b *Broker) fireLocked() (over int, wait time.Duration, some bool) {
	snap := b.cfg.State.Latest()
	now := b.clock(snap)
	for {
		e, ok := b.timers.Min()
		if !ok || e.at > now {
			break
		}
		b.setTimerLocked(e, 0)
		b.dueLocked(e, snap, now)
	}
	b.armed = 0
	for _, w := range b.timedOutLocked(now) {
		b.timeOutLocked(w, snap, now)
		over++
	}
	if e, ok := b.timers.Min(); ok {
		b.armed = e.at
	}
	for _, w := range b.windows {
		if !w.paused && (b.armed == 0 || w.deadline < b.armed) {
			b.armed = w.deadline
		}
	}
	if b.armed == 0 {
		return over, 0, false
	}
	return over, max(b.armed.Sub(b.cfg.Clock.Now()), 0), true
}

// rearmLocked tells the timer loop of a deadline that comes before the one it waits for.
func (b *Broker) rearmLocked(at muster.Time) {
	if b.armed == 0 || at < b.armed {
		b.armed = at
		wait.Poke(b.earlier)
	}
}
