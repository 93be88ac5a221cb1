package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// Snapshots has the newest state. *state.State is one.
type Snapshots interface {
	Latest() *state.Snapshot
}

// Proposer commits a fact. It returns when the fact is applied here, with what
// the state made of it; after an error it may have been committed all the same. It is
// called from several goroutines.
type Proposer interface {
	Propose(ctx context.Context, f state.Fact) (index uint64, value any, err error)
}

// Deliveries knows which evaluations are out with whom; the broker does. Over
// names those of the jobs that are not, or no longer, out by the token. It must
// not block.
type Deliveries interface {
	Over(token uint64, jobs []muster.JobUID) []muster.JobUID
}

// Config of an applier. Zero numbers mean the defaults.
type Config struct {
	Snapshots  Snapshots
	Proposer   Proposer
	Deliveries Deliveries
	Logger     *slog.Logger

	// BatchPlacements: no further plan is taken into a fact that has as many. Default: 8192.
	BatchPlacements int
	// InFlight is how many facts may be on their way at once: while the disk
	// works on one, the next is verified. Default: 2.
	InFlight int
}

// Applier takes plans and commits what holds of them.
type Applier struct {
	cfg   Config
	log   *slog.Logger
	queue chan *request

	// Of Run's goroutine.
	flights []*flight // the oldest first
	landed  uint64    // newest index committed

	mu    sync.Mutex
	stats Stats
}

// Stats counts since New.
type Stats struct {
	Plans      uint64 // answered
	Partial    uint64 // of them some was refused
	Refused    uint64 // of them all was refused
	Failed     uint64 // answered with an error
	Batches    uint64 // facts committed
	Placements uint64 // committed
	Refusals   uint64 // placements refused
	// Waits is the sum over facts of the time from verified to applied.
	Waits time.Duration
}

// request is a plan that waits for its verdict.
type request struct {
	verify.Submission
	verdict verify.Verdict
	err     error
	done    chan struct{}
}

// flight is a fact on its way into the log, and who waits for it.
type flight struct {
	requests   []*request
	placements []state.Placement
	began      time.Time

	done   chan struct{} // closed when the fields below are final
	index  uint64
	result *state.PlanResult
	err    error
}

// New makes an applier. It starts nothing.
func New(cfg Config) (*Applier, error) {
	if cfg.Snapshots == nil || cfg.Proposer == nil || cfg.Deliveries == nil {
		return nil, errors.New("apply: snapshots, proposer and deliveries are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.BatchPlacements <= 0 {
		cfg.BatchPlacements = 8192
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 2
	}
	return &Applier{cfg: cfg, log: cfg.Logger, queue: make(chan *request)}, nil
}

// Stats is what happened so far.
func (a *Applier) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Submit has a plan verified and committed, and waits for the verdict. A plan
// that places nothing is answered at once. After an error it is not known
// whether anything was committed; planning again on the newest state is safe. It
// may be called from any goroutine, and waits for Run.
func (a *Applier) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	if len(s.Placements) == 0 {
		a.count(func(st *Stats) { st.Plans++ })
		return verify.Verdict{Refresh: a.cfg.Snapshots.Latest().Index()}, nil
	}
	r := &request{Submission: s, done: make(chan struct{})}
	select {
	case a.queue <- r:
	case <-ctx.Done():
		return verify.Verdict{}, fmt.Errorf("plan with %d placements: %w", len(s.Placements), ctx.Err())
	}
	// Not cut short by ctx: what is on its way is answered, and soon, because Run's own ctx bounds it.
	<-r.done
	return r.verdict, r.err
}

// Run serves Submit until ctx ends, and returns nil when all that was taken
// is answered.
func (a *Applier) Run(ctx context.Context) error {
	for {
		in := a.queue
		if len(a.flights) >= a.cfg.InFlight {
			in = nil
		}
		var landing <-chan struct{}
		if len(a.flights) > 0 {
			landing = a.flights[0].done
		}
		select {
		case <-ctx.Done():
			for _, f := range a.flights {
				<-f.done // Propose ends with ctx
				a.land(f)
			}
			a.flights = nil
			return nil
		case r := <-in:
			a.step(ctx, a.gather(r))
		case <-landing:
			f := a.flights[0]
			a.flights = a.flights[1:]
			a.land(f)
		}
	}
}

// gather takes whoever else is waiting.
func (a *Applier) gather(first *request) []*request {
	batch := []*request{first}
	n := len(first.Placements)
	for n < a.cfg.BatchPlacements {
		select {
		case r := <-a.queue:
			batch = append(batch, r)
			n += len(r.Placements)
		default:
			return batch
		}
	}
	return batch
}

// step verifies a batch and sends what holds of it on its way.
func (a *Applier) step(ctx context.Context, batch []*request) {
	ledger := verify.On(a.cfg.Snapshots.Latest())
	for _, f := range a.flights {
		ledger.Count(f.placements)
	}
	f := &flight{done: make(chan struct{}), began: time.Now()}
	var idle []*request
	for _, r := range batch {
		stale, fresh := a.split(r)
		r.verdict = ledger.Plan(fresh)
		r.verdict.Refused = append(r.verdict.Refused, stale...)
		if len(r.verdict.Placements) == 0 {
			idle = append(idle, r)
			continue
		}
		f.requests = append(f.requests, r)
		f.placements = append(f.placements, r.verdict.Placements...)
	}
	if len(f.placements) > 0 {
		a.flights = append(a.flights, f)
		go func() {
			defer close(f.done)
			var value any
			f.index, value, f.err = a.cfg.Proposer.Propose(ctx, &state.PlanCommitted{Placements: f.placements})
			if f.err == nil {
				f.result = value.(*state.PlanResult)
			}
		}()
	}
	// Who has nothing to commit was refused by the snapshot, or by what is on its
	// way: planning again makes sense when that has landed.
	for _, r := range idle {
		if n := len(a.flights); n > 0 {
			a.flights[n-1].requests = append(a.flights[n-1].requests, r)
		} else {
			a.answer(r, nil)
		}
	}
}

// split refuses the placements of jobs whose delivery is over.
func (a *Applier) split(r *request) (stale []state.PlanRefusal, fresh []state.Placement) {
	seen := make(map[muster.JobUID]bool, 16)
	var jobs []muster.JobUID
	for i := range r.Placements {
		if uid := r.Placements[i].UID; !seen[uid] {
			seen[uid] = true
			jobs = append(jobs, uid)
		}
	}
	over := a.cfg.Deliveries.Over(r.Token, jobs)
	if len(over) == 0 {
		return nil, r.Placements
	}
	for _, uid := range over {
		seen[uid] = false
	}
	for _, p := range r.Placements {
		if seen[p.UID] {
			fresh = append(fresh, p)
		} else {
			stale = append(stale, state.PlanRefusal{Placement: p, Reason: fmt.Sprintf("job with uid %s: its delivery is over", p.UID)})
		}
	}
	return stale, fresh
}

// land answers those who wait for a fact that is applied, or lost.
func (a *Applier) land(f *flight) {
	wait := time.Since(f.began)
	if f.err != nil {
		err := fmt.Errorf("commit %d placements: %w", len(f.placements), f.err)
		for _, r := range f.requests {
			a.answer(r, err)
		}
		return
	}
	a.landed = max(a.landed, f.index)
	a.count(func(s *Stats) {
		s.Batches++
		s.Placements += uint64(f.result.Placed)
		s.Waits += wait
	})
	if n := len(f.result.Refused); n > 0 {
		// The state moved on between verifying and applying.
		a.log.Debug("placements refused when applied", "refused", n, "first", f.result.Refused[0].Reason)
		strike(f)
	}
	for _, r := range f.requests {
		a.answer(r, nil)
	}
}

// strike moves what the state refused from the committed to the refused of the plan that it came from.
func strike(f *flight) {
	refused := make(map[state.Placement]*state.PlanRefusal, len(f.result.Refused))
	for i := range f.result.Refused {
		refused[f.result.Refused[i].Placement] = &f.result.Refused[i]
	}
	for _, r := range f.requests {
		kept := r.verdict.Placements[:0:0]
		for _, p := range r.verdict.Placements {
			if no := refused[p]; no != nil {
				r.verdict.Refused = append(r.verdict.Refused, *no)
			} else {
				kept = append(kept, p)
			}
		}
		r.verdict.Placements = kept
	}
}

func (a *Applier) answer(r *request, err error) {
	r.verdict.Refresh = max(r.verdict.Refresh, a.landed)
	if r.err = err; err != nil {
		r.verdict = verify.Verdict{}
	}
	a.count(func(s *Stats) {
		s.Plans++
		s.Refusals += uint64(len(r.verdict.Refused))
		switch {
		case err != nil:
			s.Failed++
		case len(r.verdict.Placements) == 0:
			s.Refused++
		case len(r.verdict.Refused) > 0:
			s.Partial++
		}
	})
	close(r.done)
}

func (a *Applier) count(fn func(*Stats)) {
	a.mu.Lock()
	fn(&a.stats)
	a.mu.Unlock()
}
