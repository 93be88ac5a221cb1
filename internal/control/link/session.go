package link

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// session is one contact with an agent: reports come up, sets go down, until
// either breaks. What it knows of the agent it knows from this contact only.
type session struct {
	n *nodeLink
	g *errgroup.Group
	// began is closed when the first report, the whole one, was taken.
	began chan struct{}
	// tellWake holds a token when there are updates.
	tellWake chan struct{}

	mu    sync.Mutex
	known map[muster.AllocID]*known
	// updates wait to be proposed, in the order in which they came.
	updates map[muster.AllocID]state.AllocUpdate
	order   []muster.AllocID
	// ready are outputs to ship now; shippers are at it.
	ready    []muster.AllocID
	shippers int
	// forgets are to be forgotten soon, the earliest first.
	forgets []muster.AllocID
	// storing and pushing are declared outputs and inputs under way.
	storing map[muster.AllocID]bool
	pushing map[string]bool
	// strays run there and are unknown to the state, which was restored from a backup. Of the reading goroutine.
	strays map[muster.AllocID]bool
}

// known is what this contact showed of an allocation.
type known struct {
	report *wire.AllocReport   // nil: the agent has not reported it
	sent   muster.AllocDesired // the last that it was sent; empty: nothing
	stray  bool                // logged as unknown to the state
	forget time.Time           // when the agent may be told to forget it; zero: not before the state says so
}

func newSession(n *nodeLink) *session {
	return &session{
		n: n, began: make(chan struct{}), tellWake: make(chan struct{}, 1),
		known: map[muster.AllocID]*known{}, updates: map[muster.AllocID]state.AllocUpdate{},
		storing: map[muster.AllocID]bool{}, pushing: map[string]bool{}, strays: map[muster.AllocID]bool{},
	}
}

// errEnded ends a session without a fault.
var errEnded = errors.New("the agent ended the stream")

func (s *session) run(ctx context.Context) error {
	s.g, ctx = errgroup.WithContext(ctx)
	s.g.Go(func() error { return s.read(ctx) })
	s.g.Go(func() error { return s.tell(ctx) })
	s.g.Go(func() error { return s.send(ctx) })
	return s.g.Wait()
}

// heardOf reports whether the agent reported anything.
func (s *session) heardOf() bool {
	select {
	case <-s.began:
		return true
	default:
		return false
	}
}

// read takes reports until the stream ends.
func (s *session) read(ctx context.Context) error {
	for r, err := range s.n.client.Reports(ctx) {
		if err != nil {
			return err
		}
		s.take(ctx, &r)
	}
	return errEnded
}

// take takes one report.
func (s *session) take(ctx context.Context, r *wire.Report) {
	n := s.n
	n.l.stats.reports.Add(1)
	now, snap := muster.At(time.Now()), n.l.cfg.State.Latest()
	s.countStrays(snap, r)
	n.touch(func(c *health.Contact) {
		c.Up, c.Heard, c.Refused, c.Unready, c.Denied, c.Strays = true, now, "", "", false, len(s.strays)
	})
	if r.Used != nil {
		n.mu.Lock()
		n.usage.Usage, n.usage.FreeDisk = *r.Used, r.FreeDisk
		n.mu.Unlock()
	}
	s.mu.Lock()
	if r.Whole {
		clear(s.known)
	}
	for i := range r.Allocs {
		report := r.Allocs[i] // not a pointer into the slice, which would keep all of it
		k := s.known[report.ID]
		if k == nil {
			k = &known{}
			s.known[report.ID] = k
		}
		k.report = &report
	}
	s.mu.Unlock()

	for i := range r.Allocs {
		s.compare(ctx, snap, &r.Allocs[i])
	}
	if len(r.Needs) > 0 {
		s.push(ctx, r.Needs)
	}
	if r.Used != nil {
		s.retryShips(ctx)
	}
	if r.Whole {
		n.lastRefusal = ""
		n.box.addAll()
		if !s.heardOf() {
			close(s.began)
		}
	}
}

// countStrays notes what runs there that the state does not know. It has to be known with the
// first report: a node that seemed to be empty would be given work, or be given back.
func (s *session) countStrays(snap *state.Snapshot, r *wire.Report) {
	if r.Whole {
		clear(s.strays)
	}
	for i := range r.Allocs {
		a := &r.Allocs[i]
		if a.Status != muster.AllocEnded && snap.Meta().Epoch > 1 && snap.Alloc(a.ID) == nil {
			s.strays[a.ID] = true
		} else {
			delete(s.strays, a.ID)
		}
	}
}

// rank orders statuses along an allocation's life.
func rank(s muster.AllocStatus) int {
	switch s {
	case muster.AllocStarting:
		return 1
	case muster.AllocRunning:
		return 2
	case muster.AllocEnded:
		return 3
	}
	return 0
}

// compare sees what a report says that the state does not know yet.
func (s *session) compare(ctx context.Context, snap *state.Snapshot, r *wire.AllocReport) {
	row := snap.Alloc(r.ID)
	switch {
	case row == nil || row.Node != s.n.id || !row.Live():
		// To be forgotten, stopped or shipped: looked at with the next set.
		s.n.box.add(r.ID, false)
	case r.Status == muster.AllocEnded && r.Outcome == muster.OutcomeSucceeded && len(r.Outputs) > 0:
		s.store(ctx, row, r)
	case rank(r.Status) > rank(row.Status):
		s.update(s.updateOf(r))
	case r.Status == muster.AllocRunning:
		s.running(ctx, row, r)
	}
}

// maxMessage bounds what a node says of a failure: it may come from the command itself.
const maxMessage = 2000

// updateOf is a report as the log keeps it.
func (s *session) updateOf(r *wire.AllocReport) state.AllocUpdate {
	u := state.AllocUpdate{
		ID: r.ID, Status: r.Status, Outcome: r.Outcome, ExitCode: r.ExitCode, Signal: r.Signal,
		Failure: r.Failure, Started: r.Started, Ended: r.Ended,
	}
	if f := u.Failure; f != nil && len(f.Message) > maxMessage {
		u.Failure = &muster.Failure{Class: f.Class, Reason: f.Reason, Message: f.Message[:maxMessage] + "…"}
	}
	if u.Status == muster.AllocEnded && s.n.shipped(r.ID) == 0 {
		out, err1 := inline(r.Stdout)
		errs, err2 := inline(r.Stderr)
		if err1 && err2 {
			// The whole output is here: one fact says all that there is to say.
			u.Output = &state.Output{Stage: state.OutputComplete, Stdout: out, Stderr: errs}
		}
	}
	return u
}

// inline is a stream that came whole with the report.
func inline(r wire.StreamReport) (state.Stream, bool) {
	if r.Start != 0 || int64(len(r.Inline)) != r.Size || r.Size > wire.InlineLimit {
		return state.Stream{}, false
	}
	return state.Stream{Size: r.Size, Inline: r.Inline}, true
}

// update queues an update; one that is further along takes the place of another.
func (s *session) update(u state.AllocUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateLocked(u)
}

func (s *session) updateLocked(u state.AllocUpdate) {
	before, there := s.updates[u.ID]
	switch {
	case !there:
		s.order = append(s.order, u.ID)
	case rank(before.Status) >= rank(u.Status):
		return
	case u.Started == 0:
		u.Started = before.Started
	}
	s.updates[u.ID] = u
	select {
	case s.tellWake <- struct{}{}:
	default:
	}
}

// maxUpdates bounds the updates in one fact: each may carry two small streams.
const maxUpdates = 256

func (s *session) takeUpdates() []state.AllocUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := min(len(s.order), maxUpdates)
	out := make([]state.AllocUpdate, k)
	for i, id := range s.order[:k] {
		out[i] = s.updates[id]
		delete(s.updates, id)
	}
	s.order = s.order[k:]
	if len(s.order) == 0 {
		s.order = nil
	}
	return out
}

// tell proposes what was reported. While one fact is on its way, the next
// gathers: there is no delay, and no fact per report either.
func (s *session) tell(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.tellWake:
		}
		for {
			updates := s.takeUpdates()
			if len(updates) == 0 {
				break
			}
			if err := s.n.propose(ctx, &state.AllocsReported{Node: s.n.id, Allocs: updates}); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				// The node is purged, or a defect of ours. The next whole report says it again.
				s.n.log.Error("reports not committed", "allocs", len(updates), "error", err)
				return err
			}
			s.n.l.stats.updates.Add(uint64(len(updates)))
		}
	}
}
