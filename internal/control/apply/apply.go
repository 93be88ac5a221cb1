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

// Deliveries knows which evaluations are out with whom; the broker does. Over
// names those of the jobs that are not, or no longer, out by the token. It must
// not block.
//
// Ahead tells what comes before a plan of the given priority: of the evaluations of a higher one that are ready or
// out, how many members of each shape want room in the snapshot, which is the newest. Many says
// that they are too many to tell apart. It must not block either.
type Deliveries interface {
	Over(token uint64, jobs []muster.JobUID) []muster.JobUID
	Ahead(snap *state.Snapshot, priority int) (needs []verify.Need, many bool)
}

// Config of an applier. Zero numbers mean the defaults.
type Config struct {
	Snapshots  Snapshots
	Proposer   state.Proposer
	Deliveries Deliveries
	Logger     *slog.Logger

	// BatchPlacements: no further plan is taken into a fact that has as many. Default: 8192.
	BatchPlacements int
	// InFlight is how many facts may be on their way at once: while the disk
	// works on one, the next is verified. Default: 2.
	InFlight int
	// OddLimit is how many parts of plans a node may refuse for no known reason within OddWindow
	// before health is told. Default: 15 in ten minutes; negative: never.
	OddLimit  int
	OddWindow time.Duration
}

// Applier takes plans and commits what holds of them.
type Applier struct {
	cfg   Config
	log   *slog.Logger
	queue chan *request

	// Of Run's goroutine.
	flights []*flight // the oldest first
	landed  uint64    // newest index committed
	odd     map[muster.NodeID][]time.Time
	telling sync.WaitGroup

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
	Refusals   uint64 // placements and stops refused
	Stops      uint64 // allocations told to stop by a plan
	Odd        uint64 // parts of plans refused for no known reason
	Yielded    uint64 // placements refused for the sake of work of higher priority
	// Waits is the sum over facts of the time from verified to applied.
	Waits time.Duration
}

// request is a plan that waits for its verdict.
type request struct {
	verify.Submission
	priority int
	verdict  verify.Verdict
	err      error
	done     chan struct{}
}

// flight is a fact on its way into the log, and who waits for it.
type flight struct {
	requests   []*request
	placements []state.Placement
	stops      []state.Stop
	whole      bool
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
	if cfg.OddLimit == 0 {
		cfg.OddLimit = 15
	}
	if cfg.OddWindow <= 0 {
		cfg.OddWindow = 10 * time.Minute
	}
	return &Applier{cfg: cfg, log: cfg.Logger, queue: make(chan *request), odd: map[muster.NodeID][]time.Time{}}, nil
}

// Stats is what happened so far.
func (a *Applier) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Submit has a plan verified and committed, and waits for the verdict. A plan
// that changes nothing is answered at once. After an error it is not known
// whether anything was committed; planning again on the newest state is safe. It
// may be called from any goroutine, and waits for Run.
func (a *Applier) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	if len(s.Placements)+len(s.Stops) == 0 {
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
			a.telling.Wait()
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
	snap := a.cfg.Snapshots.Latest()
	ledger := verify.On(snap)
	for _, f := range a.flights {
		ledger.Count(f.placements)
		ledger.CountStops(f.stops)
	}
	f := &flight{done: make(chan struct{}), began: time.Now()}
	flights := []*flight{f}
	var idle []*request
	heads := &heads{snap: snap, ask: a.cfg.Deliveries, of: map[int]head{}}
	heads.sort(batch)
	for _, r := range batch {
		r.verdict = a.verify(ledger, heads, r)
		a.strange(ctx, r.verdict.Odd)
		if len(r.verdict.Placements)+len(r.verdict.Stops) == 0 {
			idle = append(idle, r)
			continue
		}
		to := f
		if r.Whole {
			// What the state refuses of it takes all of it along, and nobody else's.
			to = &flight{done: make(chan struct{}), began: f.began, whole: true}
			flights = append(flights, to)
		}
		to.requests = append(to.requests, r)
		to.placements = append(to.placements, r.verdict.Placements...)
		to.stops = append(to.stops, r.verdict.Stops...)
	}
	for _, f := range flights {
		a.send(ctx, f)
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

// send has the log commit what a flight carries.
func (a *Applier) send(ctx context.Context, f *flight) {
	if len(f.placements)+len(f.stops) == 0 {
		return
	}
	a.flights = append(a.flights, f)
	go func() {
		defer close(f.done)
		f.index, f.result, f.err = state.Propose(ctx, a.cfg.Proposer, &state.PlanCommitted{Placements: f.placements, Stops: f.stops, Whole: f.whole})
	}()
}

// verify refuses what is planned for jobs whose delivery is over, and has the ledger look at the rest.
func (a *Applier) verify(ledger *verify.Ledger, heads *heads, r *request) verify.Verdict {
	fresh, v := a.split(r)
	yielded := heads.yield(ledger, r.priority, &fresh)
	v.Refused = append(v.Refused, yielded...)
	v.Yielded = len(yielded) > 0
	a.count(func(st *Stats) { st.Yielded += uint64(len(yielded)) })
	if r.Whole && len(v.Refused)+len(v.RefusedStops) > 0 {
		v.Refresh = a.cfg.Snapshots.Latest().Index()
		return v
	}
	held := ledger.Submission(&fresh)
	held.Refused, held.RefusedStops = append(held.Refused, v.Refused...), append(held.RefusedStops, v.RefusedStops...)
	held.Yielded = v.Yielded
	return held
}

// split takes out of a plan what is for jobs whose delivery is over, as refused.
func (a *Applier) split(r *request) (fresh verify.Submission, stale verify.Verdict) {
	seen := make(map[muster.JobUID]bool, 16)
	var jobs []muster.JobUID
	see := func(uid muster.JobUID) {
		if !seen[uid] {
			seen[uid] = true
			jobs = append(jobs, uid)
		}
	}
	for i := range r.Placements {
		see(r.Placements[i].UID)
	}
	for i := range r.Stops {
		see(r.Stops[i].For)
	}
	over := a.cfg.Deliveries.Over(r.Token, jobs)
	if len(over) == 0 {
		return r.Submission, stale
	}
	for _, uid := range over {
		seen[uid] = false
	}
	why := func(uid muster.JobUID) string { return fmt.Sprintf("job with uid %s: its delivery is over", uid) }
	fresh = verify.Submission{Token: r.Token, Index: r.Index, Whole: r.Whole}
	for _, p := range r.Placements {
		if seen[p.UID] {
			fresh.Placements = append(fresh.Placements, p)
		} else {
			stale.Refused = append(stale.Refused, state.PlanRefusal{Placement: p, Reason: why(p.UID)})
		}
	}
	for _, st := range r.Stops {
		if seen[st.For] {
			fresh.Stops = append(fresh.Stops, st)
		} else {
			stale.RefusedStops = append(stale.RefusedStops, state.StopRefusal{Stop: st, Reason: why(st.For)})
		}
	}
	return fresh, stale
}

// land answers those who wait for a fact that is applied, or lost.
func (a *Applier) land(f *flight) {
	wait := time.Since(f.began)
	if f.err != nil {
		err := fmt.Errorf("commit %d placements and %d stops: %w", len(f.placements), len(f.stops), f.err)
		for _, r := range f.requests {
			a.answer(r, err)
		}
		return
	}
	a.landed = max(a.landed, f.index)
	a.count(func(s *Stats) {
		s.Batches++
		s.Placements += uint64(f.result.Placed)
		s.Stops += uint64(f.result.Stopped)
		s.Waits += wait
	})
	if n := len(f.result.Refused) + len(f.result.RefusedStops); n > 0 {
		// The state moved on between verifying and applying.
		first := ""
		if len(f.result.Refused) > 0 {
			first = f.result.Refused[0].Reason
		} else {
			first = f.result.RefusedStops[0].Reason
		}
		a.log.Debug("parts of plans refused when applied", "refused", n, "first", first)
		strike(f)
	}
	for _, r := range f.requests {
		a.answer(r, nil)
	}
}

// strike moves what the state refused from the committed to the refused of the
// plan that it came from. Of a whole plan all is gone then.
func strike(f *flight) {
	type attempt struct {
		alloc muster.AllocID
		node  muster.NodeID
	}
	refused := make(map[attempt]*state.PlanRefusal, len(f.result.Refused))
	for i := range f.result.Refused {
		p := &f.result.Refused[i].Placement
		refused[attempt{p.Alloc(), p.Node}] = &f.result.Refused[i]
	}
	stops := make(map[muster.AllocID]*state.StopRefusal, len(f.result.RefusedStops))
	for i := range f.result.RefusedStops {
		stops[f.result.RefusedStops[i].Stop.Alloc] = &f.result.RefusedStops[i]
	}
	for _, r := range f.requests {
		v := &r.verdict
		kept := v.Placements[:0:0]
		for _, p := range v.Placements {
			if no := refused[attempt{p.Alloc(), p.Node}]; no != nil {
				v.Refused = append(v.Refused, *no)
			} else if !f.whole {
				kept = append(kept, p)
			}
		}
		heldStops := v.Stops[:0:0]
		for _, st := range v.Stops {
			if no := stops[st.Alloc]; no != nil && no.Stop == st {
				v.RefusedStops = append(v.RefusedStops, *no)
			} else if !f.whole {
				heldStops = append(heldStops, st)
			}
		}
		v.Placements, v.Stops = kept, heldStops
	}
}

func (a *Applier) answer(r *request, err error) {
	r.verdict.Refresh = max(r.verdict.Refresh, a.landed)
	if r.err = err; err != nil {
		r.verdict = verify.Verdict{}
	}
	a.count(func(s *Stats) {
		s.Plans++
		s.Refusals += uint64(len(r.verdict.Refused) + len(r.verdict.RefusedStops))
		switch {
		case err != nil:
			s.Failed++
		case len(r.verdict.Placements)+len(r.verdict.Stops) == 0:
			s.Refused++
		case len(r.verdict.Refused)+len(r.verdict.RefusedStops) > 0:
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
