package schedule

import (
	"cmp"
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

// State is where workers read. *state.State implements it.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Queue hands out evaluations; the broker implements it. Dequeue hands out the first in order,
// DequeueAhead only those of a higher priority than everything that is out. A job is out with one
// worker at a time. The worker answers each job with exactly one of Ack, Nack and Block. These fail
// if the delivery is over: then another worker has the job or gets it. Pause stops the time limit
// of the delivery until resume is called.
type Queue interface {
	Dequeue(ctx context.Context, limit int) (place.Window, error)
	DequeueAhead(ctx context.Context, limit int) (place.Window, error)
	Pause(token uint64) (resume func() error, err error)
	Ack(token uint64, jobs ...muster.JobUID) error
	Nack(token uint64, reason string, jobs ...muster.JobUID) error
	Block(token uint64, tried uint64, jobs []place.Blocked) error
}

// Submitter commits what holds of a plan; the applier implements it. After an error it is unknown
// whether anything was committed.
type Submitter interface {
	Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error)
}

// Config configures the workers. Zero numbers mean the defaults.
type Config struct {
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock  clock.Clock
	State  State
	Queue  Queue
	Submit Submitter
	Logger *slog.Logger

	// Workers is the number of workers, without the standby worker. Default: 1.
	Workers int
	// Paused workers take nothing from the queue.
	Paused bool
	// Window is how many jobs one pass plans. Default: 512. Urgent work waits in the log for the
	// placements of one pass, so a window should not be larger; smaller ones cost more for each
	// job.
	Window int
	// Limits are those of one pass. Default: 2048 placements, 2 million looks at nodes.
	Limits place.Limits
}

// How a worker behaves when it cannot go on.
const (
	// maxRounds is how often a worker plans the rest of a window before it gives the rest back.
	maxRounds = 5
	// After an error of the log a worker waits, longer each time, until something succeeds again.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// A worker that had to yield twice in a row waits, longer each time. The urgent work is out
	// with another worker, and planning the same again meanwhile would only keep a processor busy.
	firstYield = time.Millisecond
	lastYield  = 16 * time.Millisecond
	// standbyWindow is how many jobs the standby worker takes at once: few, so that it is free
	// again soon for work that is still more urgent. The other workers take the rest.
	standbyWindow = 64
)

// mostPatience is how often a window waits for other plans before it may preempt.
const mostPatience = 4

// errPatient means that a plan was not committed because it would preempt for room that may become
// free without that.
var errPatient = errors.New("others are waited for before anybody is stopped")

// errYielded means that a window was given back because work of higher priority comes first.
var errYielded = errors.New("work of higher priority comes first")

// Scheduler is the workers of one server. They share the board.
type Scheduler struct {
	cfg Config
	log *slog.Logger

	board *board

	// mu guards stats.
	mu    sync.Mutex
	stats Stats
}

// Stats holds counts since New, over all workers.
type Stats struct {
	Windows    uint64 // taken
	Passes     uint64 // plans made
	Placements uint64 // committed
	Refusals   uint64 // placements refused
	Blocked    uint64 // jobs that fitted nowhere
	GivenBack  uint64 // windows given back with something refused in each round
	Yielded    uint64 // windows given back because work of higher priority comes first
	Errors     uint64
	// Planning is the time spent planning, including the reading of the feed.
	Planning time.Duration
}

// Metrics calls gauge or counter with each figure that is a metric. A server that does not lead
// calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	counter("muster_planning_seconds_total", "Time spent planning, summed over workers.", s.Planning.Seconds())
}

// New makes the workers. It starts nothing.
func New(cfg Config) (*Scheduler, error) {
	if cfg.State == nil || cfg.Queue == nil || cfg.Submit == nil {
		return nil, errors.New("schedule: state, queue and submitter are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
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

// Stats returns the current counts.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// count changes the statistics.
func (s *Scheduler) count(fn func(*Stats)) {
	s.mu.Lock()
	fn(&s.stats)
	s.mu.Unlock()
}

// Run runs the workers until ctx ends, and then returns nil.
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

// work is one worker. It takes up to limit jobs at a time.
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
		s.log.Warn("a plan was not committed; its jobs are returned to the queue", "jobs", len(open), "after", backoff, "error", err)
		if !wait.For(ctx, backoff) {
			return nil
		}
		// An ack and not a nack: the failure of the log is not the fault of the jobs. They become
		// ready again because they still want something.
		s.over(s.cfg.Queue.Ack(w.Token, open...))
	}
}

// over logs that an answer was too late. The delivery timed out or the leadership ended. Another
// worker gets the job, and nothing is lost.
func (s *Scheduler) over(err error) {
	if err != nil {
		s.log.Info("an answer came too late", "error", err)
	}
}
