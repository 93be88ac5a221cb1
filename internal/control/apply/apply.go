package apply

import (
	"cmp"
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

// Snapshots has the newest state. *state.State implements it.
type Snapshots interface {
	Latest() *state.Snapshot
}

// Deliveries knows which evaluations are out with which worker; the broker implements it. Its
// methods must not block.
type Deliveries interface {
	// Over returns those of the jobs that are not, or no longer, out by the token.
	Over(token uint64, jobs []muster.JobUID) []muster.JobUID
	// Ahead returns what comes before a plan of the given priority: of the evaluations of a higher
	// priority that are ready or out, how many members of each shape want room in the snapshot,
	// which is the newest one. many reports that there are too many shapes to list.
	Ahead(snap *state.Snapshot, priority int) (needs []verify.Need, many bool)
}

// Config configures an applier. The first three fields are required; zero numbers mean the
// defaults.
type Config struct {
	Snapshots  Snapshots
	Proposer   state.Proposer
	Deliveries Deliveries
	Logger     *slog.Logger

	// BatchPlacements bounds a batch: a fact that has as many placements takes no further plan.
	// Default: 8192.
	BatchPlacements int
	// InFlight is how many facts may be under way at the same time: while the disk works on one,
	// the next is verified. Default: 2.
	InFlight int
	// OddLimit is how many parts of plans a node may refuse for no known reason within OddWindow
	// before the state is told. Default: 15 in ten minutes; a negative limit means never.
	OddLimit  int
	OddWindow time.Duration
}

// Applier verifies plans and commits what holds of them. One goroutine, that of Run, verifies; each
// fact under way has a goroutine that waits for the log.
type Applier struct {
	cfg   Config
	log   *slog.Logger
	queue chan *request

	// The next four belong to the goroutine of Run. flights are the facts under way, the oldest
	// first.
	flights []*flight
	// landed is the newest index that a fact was committed at.
	landed uint64
	// odd has the times of strange refusals, by node. telling waits for the facts about them.
	odd     map[muster.NodeID][]time.Time
	telling sync.WaitGroup

	// mu guards stats.
	mu    sync.Mutex
	stats Stats
}

// Stats holds counts since New.
type Stats struct {
	Plans      uint64 // answered
	Partial    uint64 // answered, and a part was refused
	Refused    uint64 // answered, and all was refused
	Failed     uint64 // answered with an error
	Batches    uint64 // facts committed
	Placements uint64 // committed
	Refusals   uint64 // placements and stops refused
	Stops      uint64 // allocations told to stop by a plan
	Odd        uint64 // parts of plans refused for no known reason
	Yielded    uint64 // placements refused because work of higher priority needs the room
	// Waits is the time from the verification to the commit, summed over facts.
	Waits time.Duration
}

// Metrics calls gauge or counter with each figure that is a metric. A server that does not lead
// calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	counter("muster_placements_yielded_total", "Placements rejected because work of higher priority comes first.", float64(s.Yielded))
	counter("muster_placements_refused_total", "Placements and stops rejected, for any reason.", float64(s.Refusals))
	counter("muster_plan_parts_odd_total", "Parts of plans that were rejected for a node although nothing had changed there.", float64(s.Odd))
	counter("muster_plans_total", "Plans answered by the applier.", float64(s.Plans))
	counter("muster_plans_partial_total", "Plans that were partly rejected.", float64(s.Partial))
	counter("muster_plans_refused_total", "Plans that were wholly rejected.", float64(s.Refused))
	counter("muster_plan_batches_total", "Log entries that plans were committed in.", float64(s.Batches))
	counter("muster_placements_total", "Members placed.", float64(s.Placements))
	counter("muster_plan_wait_seconds_total", "Time that plans waited for the log, summed.", s.Waits.Seconds())
}

// request is a plan that waits for its verdict. Submit makes it; Run's goroutine fills it in and
// then closes done, after which Submit reads it.
type request struct {
	verify.Submission
	priority int
	verdict  verify.Verdict
	err      error
	done     chan struct{}
}

// flight is a fact under way to the log, with the requests that wait for it.
type flight struct {
	requests   []*request
	placements []state.Placement
	stops      []state.Stop
	// whole says that the log commits all of it or nothing.
	whole bool
	began time.Time

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
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.BatchPlacements <= 0 {
		cfg.BatchPlacements = 8192
	}
	if cfg.InFlight <= 0 {
		cfg.InFlight = 2
	}
	cfg.OddLimit = cmp.Or(cfg.OddLimit, 15)
	if cfg.OddWindow <= 0 {
		cfg.OddWindow = 10 * time.Minute
	}
	return &Applier{cfg: cfg, log: cfg.Logger, queue: make(chan *request), odd: map[muster.NodeID][]time.Time{}}, nil
}

// Stats returns the current counts.
func (a *Applier) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Submit has a plan verified and committed, and waits for the verdict. A plan that changes nothing
// is answered at once. After an error it is unknown whether anything was committed; the caller may
// plan again on the newest state in any case, because two plans for the same attempt collide in the
// state. It may be called from any goroutine. It waits until Run takes the plan or ctx ends.
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
	// ctx does not cut this short: a plan that was taken is answered soon, because Run's ctx bounds
	// it.
	<-r.done
	return r.verdict, r.err
}

// Run serves Submit until ctx ends. It returns nil when all plans that it took are answered.
func (a *Applier) Run(ctx context.Context) error {
	for {
		// A nil channel is never ready: with enough facts under way no plan is taken. Facts land in
		// the order in which they were sent.
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

// gather adds the plans that wait already to the first one, up to the size of a batch.
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

// step verifies a batch and proposes what holds of it.
func (a *Applier) step(ctx context.Context, batch []*request) {
	snap := a.cfg.Snapshots.Latest()
	ledger := verify.On(snap)
	// What is under way counts as committed. If the log refuses it, only room is left unused for a
	// moment.
	for _, f := range a.flights {
		ledger.Count(f.placements)
		ledger.CountStops(f.stops)
	}
	f := &flight{done: make(chan struct{}), began: time.Now()}
	flights := []*flight{f}
	var idle []*request
	// Plans of higher priority are verified first.
	heads := &heads{snap: snap, ask: a.cfg.Deliveries, of: map[int]head{}}
	heads.sort(batch)
	for _, r := range batch {
		r.verdict = a.verify(ledger, heads, r)
		a.countOdd(ctx, r.verdict.Odd)
		if len(r.verdict.Placements)+len(r.verdict.Stops) == 0 {
			idle = append(idle, r)
			continue
		}
		to := f
		if r.Whole {
			// A whole plan has a fact of its own: if the state refuses a part of it, all of it
			// goes, and no other plan is affected.
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
	// A plan of which nothing holds was refused because of the snapshot, or of what is under way.
	// It is answered when that has landed: planning again makes sense only then.
	for _, r := range idle {
		if n := len(a.flights); n > 0 {
			a.flights[n-1].requests = append(a.flights[n-1].requests, r)
		} else {
			a.answer(r, nil)
		}
	}
}

// send has the log commit a flight. It returns at once; done is closed when the result is known.
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

// verify refuses the parts for jobs whose delivery is over and the parts that must yield, and has
// the ledger verify the rest.
func (a *Applier) verify(ledger *verify.Ledger, heads *heads, r *request) verify.Verdict {
	fresh, v := a.split(r)
	yielded := heads.yield(ledger, r.priority, &fresh)
	v.Refused = append(v.Refused, yielded...)
	v.Yielded = len(yielded) > 0
	a.count(func(st *Stats) { st.Yielded += uint64(len(yielded)) })
	// All or nothing: a part is refused, so nothing of the plan goes on.
	if r.Whole && len(v.Refused)+len(v.RefusedStops) > 0 {
		v.Refresh = a.cfg.Snapshots.Latest().Index()
		return v
	}
	held := ledger.Submission(&fresh)
	held.Refused, held.RefusedStops = append(held.Refused, v.Refused...), append(held.RefusedStops, v.RefusedStops...)
	held.Yielded = v.Yielded
	return held
}

// split removes from a plan what is for jobs whose delivery is over, and returns that as refused.
// Without this check a slow worker could place a job that another worker has by now.
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

// land answers the plans of a fact that is committed, or whose commit failed.
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
		// The state has changed between the verification and the commit.
		first := ""
		if len(f.result.Refused) > 0 {
			first = f.result.Refused[0].Reason
		} else {
			first = f.result.RefusedStops[0].Reason
		}
		a.log.Debug("parts of plans refused when applied", "refused", n, "first", first)
		moveRefused(f)
	}
	for _, r := range f.requests {
		a.answer(r, nil)
	}
}

// moveRefused moves what the state refused from the placements and stops of its plan to the refused
// ones. Of a whole plan nothing is kept.
func moveRefused(f *flight) {
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

// answer completes a request and counts it. r.err and r.verdict are set before done is closed, so
// that Submit may read them without a lock.
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

// count changes the statistics.
func (a *Applier) count(fn func(*Stats)) {
	a.mu.Lock()
	fn(&a.stats)
	a.mu.Unlock()
}
