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
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// session is one contact with an agent: reports come up, sets go down, until
// either breaks. What it knows of the agent it knows from this contact only.
type session struct {
	n *nodeLink
	// boot is of the agent that said hello: another one may have taken over since.
	boot string
	g    *errgroup.Group
	// began is closed when the first report, the whole one, was taken.
	began chan struct{}
	// finished are allocations that succeeded while their node was being destroyed: true once that counts.
	finished map[muster.AllocID]bool
	// tellWake holds a token when there are updates.
	tellWake chan struct{}

	mu    sync.Mutex
	known map[muster.AllocID]*known
	// updates wait to be proposed, in the order in which they came; while a report is gone through, until that is done.
	updates   map[muster.AllocID]state.AllocUpdate
	order     []muster.AllocID
	gathering bool
	// images are at hand there, not yet proposed; nil: nothing new.
	images *state.NodeImagesSeen
	// toldImages were proposed last; of tell.
	toldImages []muster.AffinityKey
	// ready are outputs to ship now; shippers are at it.
	ready    []muster.AllocID
	shippers int
	// Of the sender: tick is the agent's clock in its last answer, which came at tickAt; guardFrom is the tickAt of the one that was
	// last given back;
	// exclusive whether something on the node may need that.
	tick      int64
	tickAt    time.Time
	guardFrom time.Time
	exclusive bool
	// forgets are to be forgotten soon, the earliest first.
	forgets []muster.AllocID
	// storing, pushing and granting are declared outputs, inputs and rights to pull images under way.
	storing           map[muster.AllocID]bool
	pushing, granting map[string]bool
	// strays run there and are left to: unknown to the state, which was restored from a
	// backup, or spared because the agent will not stop as many.
	strays, spared map[muster.AllocID]bool
}

// known is what this contact showed of an allocation.
type known struct {
	report *wire.AllocReport   // nil: the agent has not reported it
	sent   muster.AllocDesired // the last that it was sent; empty: nothing
	frozen bool                // and whether to stand still
	stray  bool                // logged as unknown to the state
	forget time.Time           // when the agent may be told to forget it; zero: not before the state says so
}

func newSession(n *nodeLink, boot string) *session {
	return &session{
		n: n, boot: boot, exclusive: true, began: make(chan struct{}), tellWake: make(chan struct{}, 1),
		known: map[muster.AllocID]*known{}, updates: map[muster.AllocID]state.AllocUpdate{},
		storing: map[muster.AllocID]bool{}, pushing: map[string]bool{}, granting: map[string]bool{},
		strays: map[muster.AllocID]bool{}, spared: map[muster.AllocID]bool{}, finished: map[muster.AllocID]bool{},
	}
}

// errReplaced ends a session with an agent that nothing is known of yet.
var errReplaced = errors.New("another agent has taken over")

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
	for r, err := range s.n.client.ReportsWithin(ctx, s.n.reportLimit, s.n.reportMost, func(bytes int64) { s.n.paceReport(ctx, bytes) }) {
		if errors.Is(err, wire.ErrReportTooLong) {
			s.n.log.Warn("report refused; the node counts as out of contact", "error", err)
		}
		if err != nil {
			return err
		}
		if r.Boot != s.boot {
			return errReplaced
		}
		if err := s.take(ctx, &r); err != nil {
			s.n.log.Warn("report refused; the node counts as out of contact", "error", err)
			return err
		}
	}
	return errEnded
}

// take takes one report. An error ends the contact.
func (s *session) take(ctx context.Context, r *wire.Report) error {
	n := s.n
	n.l.stats.reports.Add(1)
	now, snap := n.l.cfg.Clock.Now(), n.l.cfg.State.Latest()
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
	err := s.overdoneLocked(snap)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	strays, spared := s.countStrays(snap, r)
	n.touch(func(c *health.Contact) {
		c.Up, c.Heard, c.Refused, c.Denied = true, now, "", false
		switch {
		case r.Condition != nil:
			c.Unready, c.Broken = muster.Truncate(r.Condition.Unready, maxMessage), muster.Truncate(r.Condition.Broken, maxMessage)
		case r.Whole:
			c.Unready, c.Broken = "", ""
		}
		c.Strays, c.Spared = strays, spared
	})
	if r.Used != nil {
		n.mu.Lock()
		n.usage.Usage, n.usage.FreeDisk = *r.Used, r.FreeDisk
		n.mu.Unlock()
	}
	if r.Images != nil {
		s.sawImages(*r.Images)
	}
	s.gather(func() {
		for i := range r.Allocs {
			s.compare(ctx, snap, &r.Allocs[i])
		}
	})
	if len(r.Needs) > 0 {
		s.push(ctx, r.Needs)
	}
	if len(r.NeedGrants) > 0 {
		s.grant(ctx, r.NeedGrants)
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
	return nil
}

// countStrays notes what runs there that the state does not know. It has to be known with the
// first report: a node that seemed to be empty would be given work, or be given back.
// An allocation that the state has on another node is not known here either: a member that was
// waiting in the backup is placed again, and the allocation has the same id then.
func (s *session) countStrays(snap *state.Snapshot, r *wire.Report) (strays int, spared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Whole {
		clear(s.strays)
	}
	for i := range r.Allocs {
		a := &r.Allocs[i]
		row := snap.Alloc(a.ID)
		left := snap.Meta().Epoch > 1 || s.spared[a.ID]
		if a.Status != muster.AllocEnded && left && (row == nil || row.Node != s.n.id) {
			s.strays[a.ID] = true
		} else {
			delete(s.strays, a.ID)
		}
	}
	return len(s.strays), len(s.spared) > 0
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
	case isTerminating(snap, s.n.id) && !s.countsAtTheEnd(ctx, row, r):
	case r.Status == muster.AllocEnded && r.Outcome == muster.OutcomeSucceeded && len(r.Outputs) > 0:
		s.store(ctx, row, r)
	case rank(r.Status) > rank(row.Status),
		r.Status == muster.AllocStarting && row.Status == r.Status && r.Detail != "" && muster.Truncate(r.Detail, maxDetail) != row.Detail:
		s.update(s.updateOf(row, r))
	case r.Status == muster.AllocRunning:
		if row.Runner == muster.RunnerStarting && (r.Ready != 0 || r.Detail != "" && muster.Truncate(r.Detail, maxDetail) != row.Detail) {
			s.update(s.updateOf(row, r))
		} else if r.Ready != 0 && row.Ready == 0 && row.Run.Standing() {
			s.update(s.updateOf(row, r))
		}
		s.running(ctx, row, r)
	}
}

// updateOf is a report as the log keeps it.
func (s *session) updateOf(row *state.Alloc, r *wire.AllocReport) state.AllocUpdate {
	u := state.AllocUpdate{
		ID: r.ID, Status: r.Status, Outcome: outcomeOf(r.Outcome), ExitCode: r.ExitCode, Signal: muster.Truncate(r.Signal, maxWord),
		Failure: failureOf(r.Failure), Started: r.Started, Ended: r.Ended, Ready: r.Ready,
		Detail: muster.Truncate(r.Detail, maxDetail), Image: muster.Truncate(r.Image, 2*maxWord),
	}
	if u.Status == muster.AllocEnded && !s.n.mayBeShipped(row) {
		if out, ok := whole(r); ok {
			u.Output = &out
		}
	}
	return u
}

// whole is all output of an ended allocation, if it came with the report: then
// one fact says all that there is to say.
func whole(r *wire.AllocReport) (state.Output, bool) {
	out, ok1 := inline(r.Stdout)
	errs, ok2 := inline(r.Stderr)
	return state.Output{Stage: state.OutputComplete, Stdout: out, Stderr: errs}, ok1 && ok2 && r.OutputLost == 0
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
	case rank(before.Status) > rank(u.Status), before.Status == u.Status && u.Status == muster.AllocEnded,
		before.Status == u.Status && before.Ready != 0:
		return
	case u.Started == 0:
		u.Started = before.Started
	}
	s.updates[u.ID] = u
	s.wakeTellLocked()
}

func (s *session) wakeTellLocked() {
	if s.gathering || len(s.order) == 0 {
		return
	}
	wait.Poke(s.tellWake)
}

// gather keeps the updates that take makes for one fact: what an agent says at once is one write.
func (s *session) gather(take func()) {
	turn := func(on bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gathering = on
		s.wakeTellLocked()
	}
	turn(true)
	defer turn(false)
	take()
}

// maxUpdates bounds the updates in one fact: each may carry two small streams.
const maxUpdates = 256

func (s *session) takeUpdates() []state.AllocUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gathering {
		return nil
	}
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
				s.tellImages(ctx)
				break
			}
			if err := s.tellAll(ctx, updates); err != nil {
				return err
			}
		}
	}
}

// tellAll proposes updates in one fact. If the log refuses that, each goes by
// itself, so that one that cannot be kept does not hold up the others.
func (s *session) tellAll(ctx context.Context, updates []state.AllocUpdate) error {
	tell := func(updates ...state.AllocUpdate) error {
		err := s.n.propose(ctx, &state.AllocsReported{Node: s.n.id, Allocs: updates})
		if err == nil {
			s.n.l.stats.updates.Add(uint64(len(updates)))
		}
		return err
	}
	err := tell(updates...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case muster.IsKind(err, muster.FaultNotFound):
		return err // the node is purged: nobody wants to know any more
	}
	s.n.log.Error("reports refused by the log, telling each by itself", "allocs", len(updates), "error", err)
	for _, u := range updates {
		err := tell(u)
		if err != nil && ctx.Err() == nil && u.Status == muster.AllocEnded {
			s.n.log.Error("report refused by the log", "alloc", u.ID, "error", err)
			err = tell(bare(u, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			// A defect of ours. The next whole report says it again.
			s.n.log.Error("report given up", "alloc", u.ID, "status", u.Status, "error", err)
		}
	}
	return nil
}
