package schedule

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is where workers read. *state.State is one.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Queue hands out evaluations; the broker does: Dequeue the first in line, DequeueAhead only what is of a
// higher priority than all that is out. A job is out with one worker at
// a time, and each that was handed out is answered by exactly one of Ack, Nack and
// Block, which fail when the delivery is over: then the job is somebody else's. Pause stops
// the delivery's time-out until resume is called.
type Queue interface {
	Dequeue(ctx context.Context, limit int) (place.Window, error)
	DequeueAhead(ctx context.Context, limit int) (place.Window, error)
	Pause(token uint64) (resume func() error, err error)
	Ack(token uint64, jobs ...muster.JobUID) error
	Nack(token uint64, reason string, jobs ...muster.JobUID) error
	Block(token uint64, tried uint64, jobs []place.Blocked) error
}

// Submitter commits what holds of a plan; the applier does. After an error it
// is not known whether anything was committed.
type Submitter interface {
	Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error)
}

// Config of the workers. Zero numbers mean the defaults.
type Config struct {
	// Clock is the log's; nil: the system's.
	Clock  clock.Clock
	State  State
	Queue  Queue
	Submit Submitter
	Logger *slog.Logger

	// Workers is how many. Default: 1.
	Workers int
	// Paused workers take nothing from the queue.
	Paused bool
	// Window is how many jobs one pass looks at. Default: 512: what comes ahead of it waits in the log
	// for the placements of one pass, and fewer would cost more each.
	Window int
	// Limits of one pass. Default: 2048 placements, 2 million looks.
	Limits place.Limits
}

// How a worker behaves when something is in its way.
const (
	// maxRounds is how often a worker plans the rest of a window again before it
	// gives it back.
	maxRounds = 5
	// After an error of the log a worker waits, longer each time, until
	// something works again.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// Who had to yield twice in a row waits, longer each time: what is ahead is out with another worker, and
	// planning the same again meanwhile would only keep a core busy.
	firstYield = time.Millisecond
	lastYield  = 16 * time.Millisecond
	// standbyWindow is how many jobs the worker that stands by takes at once: few, so that it is soon free for what
	// is ahead of those, too. The rest of theirs is for the others.
	standbyWindow = 64
)

// mostPatience is how often a window waits for others before it has anybody stopped.
const mostPatience = 4

// errPatient says that a plan was not committed, as it would stop others for room that may come without that.
var errPatient = errors.New("others are waited for before anybody is stopped")

// errYielded says that a window was given back because work of higher priority comes first.
var errYielded = errors.New("work of higher priority comes first")

// Scheduler is the workers of one server.
type Scheduler struct {
	cfg Config
	log *slog.Logger

	board *board

	mu    sync.Mutex
	stats Stats
}

// Stats counts since New, over all workers.
type Stats struct {
	Windows    uint64 // taken
	Passes     uint64 // plans made
	Placements uint64 // committed
	Refusals   uint64 // placements refused
	Blocked    uint64 // jobs that fitted nowhere
	GivenBack  uint64 // windows given back with something refused in each round
	Yielded    uint64 // windows given back for the sake of work of higher priority
	Errors     uint64
	// Planning is the time spent in planning, following the feed included.
	Planning time.Duration
}

// New makes the workers. It starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if cfg.State == nil || cfg.Queue == nil || cfg.Submit == nil {
		return nil, errors.New("schedule: state, queue and submitter are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 1
	}
	if cfg.Window <= 0 {
		cfg.Window = 512
	}
	if cfg.Limits.Placements <= 0 {
		cfg.Limits.Placements = 2048
	}
	if cfg.Limits.Looks <= 0 {
		cfg.Limits.Looks = 2 << 20
	}
	return &Scheduler{cfg: cfg, log: cfg.Logger, board: &board{flights: map[*flight]bool{}}}, nil
}

// Stats is what happened so far.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Scheduler) count(fn func(*Stats)) {
	s.mu.Lock()
	fn(&s.stats)
	s.mu.Unlock()
}

// Run has the workers work until ctx ends, and returns nil then.
func (s *Scheduler) Run(ctx context.Context) error {
	if s.cfg.Paused {
		s.log.Warn("the scheduler is paused: nothing is placed until scheduler.paused is taken out of the configuration")
		<-ctx.Done()
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for range s.cfg.Workers {
		g.Go(func() error { return s.work(ctx, s.cfg.Queue.Dequeue, s.cfg.Window) })
	}
	g.Go(func() error { return s.work(ctx, s.cfg.Queue.DequeueAhead, standbyWindow) })
	return g.Wait()
}

// work is one worker, which takes up to limit jobs at a time.
func (s *Scheduler) work(ctx context.Context, dequeue func(context.Context, int) (place.Window, error), limit int) error {
	var backoff, yield time.Duration
	for {
		w, err := dequeue(ctx, limit)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.count(func(st *Stats) { st.Windows++ })
		open, err := s.step(ctx, w)
		if errors.Is(err, errYielded) {
			backoff = 0
			if yield > 0 && !wait.For(ctx, yield) {
				return nil
			}
			yield = min(max(2*yield, firstYield), lastYield)
			continue
		}
		if err == nil {
			backoff, yield = 0, 0
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		s.count(func(st *Stats) { st.Errors++ })
		backoff = min(max(2*backoff, firstBackoff), lastBackoff)
		s.log.Warn("a plan was not committed; its jobs are given back", "jobs", len(open), "after", backoff, "error", err)
		if !wait.For(ctx, backoff) {
			return nil
		}
		// Not a nack: the jobs have nothing to do with what ails the log.
		s.over(s.cfg.Queue.Ack(w.Token, open...))
	}
}

// over notes that an answer came too late. The delivery timed out, or the
// leadership ended: the job is in other hands, and nothing is lost.
func (s *Scheduler) over(err error) {
	if err != nil {
		s.log.Info("an answer came too late", "error", err)
	}
}
