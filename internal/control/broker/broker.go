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

// State is where the broker reads jobs, nodes and changes. *state.State implements it.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config configures a broker. State and Proposer are required; zero durations and numbers mean the
// defaults.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock  clock.Clock
	Logger *slog.Logger

	// DeliveryTimeout is how long a worker may take to answer, without the time in the applier's
	// queue. Default: a minute.
	DeliveryTimeout time.Duration
	// DeliveryLimit is after how many failures (nacks) in a row a job is parked. Default: 3.
	DeliveryLimit int
	// NackDelay is the delay of a job after its first nack; each further one makes it four times as
	// long. Default: 250 ms.
	NackDelay time.Duration
	// ParkFor is after how long a parked job is tried again if nothing has changed it. Default: ten
	// minutes.
	ParkFor time.Duration
	// PassFor is how long other jobs may be placed while a job fits nowhere, before room is
	// reserved for it. Default: five minutes.
	PassFor time.Duration
	// Reservations is on how many nodes room may be reserved at the same time. Default: 8.
	Reservations int
}

// Broker is the queue of evaluations. Its methods may be called from any goroutine. They are useful
// only while Run runs: before it and after it the queue is empty.
type Broker struct {
	cfg Config
	log *slog.Logger

	// earlier tells the timer loop that its next deadline has moved forward. toPark tells the
	// parker that there is work. Each has room for one token.
	earlier chan struct{}
	toPark  chan struct{}

	// mu guards everything below. It is never held during a proposal or a wait. Methods whose names
	// end in Locked need it.
	mu      sync.Mutex
	entries map[muster.JobUID]*entry
	// ready is ordered by rank.
	ready *btree.BTreeG[*entry]
	// timers has the entries whose field at is set, by time and uid.
	timers *btree.BTreeG[*entry]
	// parking has the entries whose fact is to be proposed; windows the deliveries that are out, by
	// token.
	parking []*entry
	windows map[uint64]*window
	// bands sums up what is ready.
	bands bands
	// at is the position in the feed up to which the queue has read. followed is the index up to
	// which it has read all changes.
	at       state.Position
	followed uint64
	// term and serial make tokens that no other leadership uses.
	term, serial uint64
	// armed is the deadline that the timer loop waits for; 0 means none.
	armed muster.Time
	// workers wait in Dequeue, standby workers in DequeueAhead.
	workers, standby waiters

	// groups has the blocked jobs by shape.
	groups map[state.ShapeID]*group
	// limited has the jobs that a limit blocks, by the namespace whose limit it is.
	limited map[muster.Namespace]limited
	// promised is the room for which jobs were woken that are not answered yet, by node.
	promised map[muster.NodeID]pledges
	// grown lists the nodes whose room grew since Run began, the newest last. grownAt finds a node
	// in it. Growth up to the index blind may have been missed.
	grown   *list.List
	grownAt map[muster.NodeID]*list.Element
	blind   uint64

	stats Stats
}

// New makes a broker. It does nothing before Run.
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

// Run holds the queue during one leadership, until ctx ends; then it returns nil. It returns an
// error if the feed fails. Deliveries from before are void when it returns. It may be run again.
func (b *Broker) Run(ctx context.Context) error {
	b.mu.Lock()
	// The queue is built from a snapshot before any worker is served.
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

// clearLocked empties the queue. mu is held, or the broker is not shared yet.
func (b *Broker) clearLocked() {
	b.entries = map[muster.JobUID]*entry{}
	b.ready = btree.NewBTreeGOptions(func(x, y *entry) bool { return x.rank(y) < 0 }, btree.Options{NoLocks: true})
	b.timers = btree.NewBTreeGOptions(earlierEntry, btree.Options{NoLocks: true})
	b.parking = nil
	b.windows = map[uint64]*window{}
	b.bands = bands{}
	b.armed = 0
	b.groups = map[state.ShapeID]*group{}
	b.limited = map[muster.Namespace]limited{}
	b.promised = map[muster.NodeID]pledges{}
	b.grown, b.grownAt, b.blind = list.New(), map[muster.NodeID]*list.Element{}, 0
	b.stats.clear()
}

// now returns the time by which deadlines of the state are due. It is never before the newest
// time in the log, so a deadline that the log treats as over is over here too.
func (b *Broker) now(snap *state.Snapshot) muster.Time {
	return max(b.cfg.Clock.Now(), snap.Meta().Time)
}

// tellWorkersLocked wakes the workers if something is ready for them. Closing the channel wakes all
// of one kind; those that find nothing wait on the new channel.
func (b *Broker) tellWorkersLocked() {
	for _, ws := range [...]*waiters{&b.workers, &b.standby} {
		if ws.count > 0 && b.servesLocked(ws) {
			close(ws.wake)
			ws.wake = make(chan struct{})
		}
	}
}

// tick handles deadlines: of entries, and of deliveries without an answer.
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

// fireLocked handles what is due. It returns how many deliveries have timed out, and how long it is
// to the next deadline, if there is one (some).
func (b *Broker) fireLocked() (over int, wait time.Duration, some bool) {
	snap := b.cfg.State.Latest()
	now := b.now(snap)
	for {
		e, ok := b.timers.Min()
		if !ok || e.at > now {
			break
		}
		// The timer is off before the entry is handled, for that may set a new one.
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

// rearmLocked wakes the timer loop if a deadline is before the one it waits for.
func (b *Broker) rearmLocked(at muster.Time) {
	if b.armed == 0 || at < b.armed {
		b.armed = at
		wait.Poke(b.earlier)
	}
}
