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

// session is one contact with an agent: reports come up and sets go down, until one of the two
// streams breaks. It knows about the agent only what this contact has shown. A new contact starts
// with a new session, so nothing outdated is believed.
type session struct {
	n *nodeLink
	// agentRun is the run of the agent that said hello. A report of another run comes from an agent
	// that has taken over since.
	agentRun string
	// takesImages says that the agent takes images from the server's cache.
	takesImages bool
	g           *errgroup.Group
	// began is closed after the first report, which is a whole one. The sender waits for it.
	began chan struct{}
	// finished holds allocations that succeeded while their node was terminating. The value is true
	// once the success counts. mu guards it.
	finished map[muster.AllocID]bool
	// notice is the cloud's notice that the agent reported last. Only read uses it.
	notice wire.Notice
	// tellWake holds a token when there are updates or images to propose.
	tellWake chan struct{}

	// mu guards the fields below, except where a comment names a single goroutine.
	mu    sync.Mutex
	known map[muster.AllocID]*known
	// updates wait to be proposed; order is the order in which they arrived. While gathering is
	// true, a report is being compared and tell leaves the updates alone.
	updates   map[muster.AllocID]state.AllocUpdate
	order     []muster.AllocID
	gathering bool
	// images are the images in the node's cache that are not proposed yet; nil means nothing new.
	images *state.NodeImagesSeen
	// toldImages were proposed last. Only tell uses them.
	toldImages []muster.AffinityKey
	// ready holds allocations whose output is to be shipped now. shippers is how many goroutines
	// ship.
	ready    []muster.AllocID
	shippers int
	// Only the sender uses these. tick is the agent's clock in its last answer, which arrived at
	// tickAt. guardFrom is the tickAt that belongs to the tick that a set returned last: the guard
	// counts from there. exclusive says whether work on the node may need the guard.
	tick      int64
	tickAt    time.Time
	guardFrom time.Time
	exclusive bool
	// forgets are allocations that the agent is to forget soon, the earliest first.
	forgets []muster.AllocID
	// storing, pushing and granting hold the declared outputs, inputs and pull credentials that are
	// under way, so that each is handled once at a time.
	storing           map[muster.AllocID]bool
	pushing, granting map[string]bool
	// strays run on the node, are unknown to the state, and are left to run: the state was restored
	// from a backup, or the agent refused to stop so many. spared holds those of the second kind.
	strays, spared map[muster.AllocID]bool
}

// known is what this contact has shown about an allocation.
type known struct {
	// report is the last report; nil if the agent has not reported it.
	report *wire.AllocReport
	// sent is the last desired status that the agent accepted; empty: none. frozen goes with it.
	sent   muster.AllocDesired
	frozen bool
	// stray says that it was logged as unknown to the state.
	stray bool
	// forget is when the agent may be told to forget it; zero until the state allows it.
	forget time.Time
}

// newSession makes a session for an agent that has said hello. guardDue finds out whether exclusive
// is true.
func newSession(n *nodeLink, agentRun string) *session {
	return &session{
		n: n, agentRun: agentRun, exclusive: true, began: make(chan struct{}), tellWake: make(chan struct{}, 1),
		known: map[muster.AllocID]*known{}, updates: map[muster.AllocID]state.AllocUpdate{},
		storing: map[muster.AllocID]bool{}, pushing: map[string]bool{}, granting: map[string]bool{},
		strays: map[muster.AllocID]bool{}, spared: map[muster.AllocID]bool{}, finished: map[muster.AllocID]bool{},
	}
}

// errReplaced ends a session because another agent, of which it knows nothing, answers now.
var errReplaced = errors.New("another agent has taken over")

var errEnded = errors.New("the agent ended the stream")

// run runs the session's three loops until one of them fails. Transfers that they start join the
// same group, so run returns only when all have ended.
func (s *session) run(ctx context.Context) error {
	s.g, ctx = errgroup.WithContext(ctx)
	s.g.Go(func() error { return s.read(ctx) })
	s.g.Go(func() error { return s.tell(ctx) })
	s.g.Go(func() error { return s.send(ctx) })
	return s.g.Wait()
}

func (s *session) heardOf() bool {
	select {
	case <-s.began:
		return true
	default:
		return false
	}
}

// read takes reports until the stream ends. A report that is too large or names too much ends the
// contact: the node then counts as out of contact.
func (s *session) read(ctx context.Context) error {
	for r, err := range s.n.client.ReportsWithin(ctx, s.n.reportLimit, s.n.reportMost, func(bytes int64) { s.n.paceReport(ctx, bytes) }) {
		if errors.Is(err, wire.ErrReportTooLong) {
			s.n.log.Warn("report refused; the node counts as out of contact", "error", err)
		}
		if err != nil {
			return err
		}
		if r.Run != s.agentRun {
			return errReplaced
		}
		if err := s.take(ctx, &r); err != nil {
			s.n.log.Warn("report refused; the node counts as out of contact", "error", err)
			return err
		}
	}
	return errEnded
}

// take processes one report. An error ends the contact.
func (s *session) take(ctx context.Context, r *wire.Report) error {
	n := s.n
	n.l.stats.reports.Add(1)
	now, snap := n.l.cfg.Clock.Now(), n.l.cfg.State.Latest()
	s.mu.Lock()
	// A whole report replaces what was known: what it does not name is not there.
	if r.Whole {
		clear(s.known)
	}
	for i := range r.Allocs {
		// A copy: a pointer into the slice would keep the whole report in memory.
		report := r.Allocs[i]
		k := s.known[report.ID]
		if k == nil {
			k = &known{}
			s.known[report.ID] = k
		}
		k.report = &report
	}
	err := s.tooManyUnknownLocked(snap)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// Count strays before the contact is marked as up. Otherwise the node would look empty for a
	// moment, and could get work or be destroyed.
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
	if c := r.Condition; c != nil && n.l.cfg.Noticed != nil && (r.Whole || c.Notice != s.notice) {
		s.notice = c.Notice
		n.l.cfg.Noticed(n.id, c.Notice)
	}
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
	// After the comparison: only inputs of live allocations are sent.
	if len(r.Needs) > 0 {
		s.push(ctx, r.Needs)
	}
	if len(r.NeedGrants) > 0 {
		s.grant(ctx, r.NeedGrants)
	}
	if r.Used != nil {
		// Usage comes with each heartbeat, so this is the timer for retries.
		s.retryShips(ctx)
	}
	if r.Whole {
		// The agent obeys. The sender may begin, with a whole set.
		n.lastRefusal = ""
		n.box.addAll()
		if !s.heardOf() {
			close(s.began)
		}
	}
	return nil
}

// countStrays records which allocations run on the node that the state does not have there, and
// returns how many there are and whether the agent spared some from a stop. The first report must
// settle this: a node that seems empty would be given work, or be destroyed.
//
// An allocation that the state has on another node is a stray here too. A member that was waiting
// when the backup was made is placed again after the restore, and its allocation gets the same id.
func (s *session) countStrays(snap *state.Snapshot, r *wire.Report) (strays int, spared bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Whole {
		clear(s.strays)
	}
	for i := range r.Allocs {
		a := &r.Allocs[i]
		row := snap.Alloc(a.ID)
		// The epoch is above 1 only after a restore. Without a restore an unknown allocation is
		// stopped, and does not count.
		left := snap.Meta().Epoch > 1 || s.spared[a.ID]
		if a.Status != muster.AllocEnded && left && (row == nil || row.Node != s.n.id) {
			s.strays[a.ID] = true
		} else {
			delete(s.strays, a.ID)
		}
	}
	return len(s.strays), len(s.spared) > 0
}

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

// compare handles what a report says and the state does not know yet.
func (s *session) compare(ctx context.Context, snap *state.Snapshot, r *wire.AllocReport) {
	row := snap.Alloc(r.ID)
	switch {
	case row == nil || row.Node != s.n.id || !row.Live():
		// The agent has it and the log has ended it or does not know it. The next set decides
		// whether to stop it, to forget it or to ship its output first.
		s.n.box.add(r.ID, false)
	case isTerminating(snap, s.n.id) && !s.countsAtTheEnd(ctx, row, r):
		// Reports about work on a terminating node mostly do not count. See ending.go.
	case r.Status == muster.AllocEnded && r.Outcome == muster.OutcomeSucceeded && len(r.Outputs) > 0:
		// It counts as succeeded only once its declared outputs are stored.
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

// updateOf turns a report into an update for the log, with text of bounded length. It includes the
// output if all of it came with the report and none may be in the blob store.
func (s *session) updateOf(row *state.Alloc, r *wire.AllocReport) state.AllocUpdate {
	u := state.AllocUpdate{
		ID: r.ID, Status: r.Status, Outcome: outcomeOf(r.Outcome), ExitCode: r.ExitCode, Signal: muster.Truncate(r.Signal, maxWord),
		Failure: failureOf(r.Failure), Started: r.Started, Ended: r.Ended, Ready: r.Ready,
		Detail: muster.Truncate(r.Detail, maxDetail), Image: muster.Truncate(r.Image, 2*maxWord),
	}
	if meta := s.n.l.cfg.State.Latest().Meta(); u.Status == muster.AllocEnded && r.Usage != nil && meta.LogFormat() >= state.FormatUsage {
		u.CPU, u.PeakMemory = muster.Time(r.Usage.CPUMicros), r.Usage.Memory
	}
	if u.Status == muster.AllocEnded && !s.n.mayBeShipped(row) {
		if out, ok := whole(r); ok {
			u.Output = &out
		}
	}
	return u
}

// whole returns the output of an ended allocation if all of it came with the report. Then one fact
// can record both the end and the output.
func whole(r *wire.AllocReport) (state.Output, bool) {
	out, ok1 := inline(r.Stdout)
	errs, ok2 := inline(r.Stderr)
	return state.Output{Stage: state.OutputComplete, Stdout: out, Stderr: errs}, ok1 && ok2 && r.OutputLost == 0
}

func inline(r wire.StreamReport) (state.Stream, bool) {
	if r.Start != 0 || int64(len(r.Inline)) != r.Size || r.Size > wire.InlineLimit {
		return state.Stream{}, false
	}
	return state.Stream{Size: r.Size, Inline: r.Inline}, true
}

func (s *session) update(u state.AllocUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updateLocked(u)
}

// updateLocked is update with mu held.
func (s *session) updateLocked(u state.AllocUpdate) {
	before, there := s.updates[u.ID]
	switch {
	case !there:
		s.order = append(s.order, u.ID)
	case rank(before.Status) > rank(u.Status), before.Status == u.Status && u.Status == muster.AllocEnded,
		before.Status == u.Status && before.Ready != 0:
		return
	case u.Started == 0:
		// The later report may lack the start that the earlier one had.
		u.Started = before.Started
	}
	s.updates[u.ID] = u
	s.wakeTellLocked()
}

// wakeTellLocked wakes tell, unless a report is still being compared. mu is held.
func (s *session) wakeTellLocked() {
	if s.gathering || len(s.order) == 0 {
		return
	}
	wait.Poke(s.tellWake)
}

// gather calls take and keeps tell from proposing until it returns: the updates of one report
// become one fact, and so one write of the log.
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

// maxUpdates bounds the updates in one fact. Each may carry two small streams.
const maxUpdates = 256

// takeUpdates removes up to maxUpdates updates from the queue, the oldest first.
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

// tell proposes updates as they come. While it waits for one fact to be committed, the next updates
// collect: there is neither a delay nor a fact per report.
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

// tellAll proposes updates in one fact. If the log refuses the fact, each update goes by itself, so
// that a bad one does not hold up the others. A crash before the commit loses nothing: the agent
// reports the same again to the next leader.
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
		// The node is purged, so nothing about it is of use.
		return err
	}
	s.n.log.Error("reports refused by the log, telling each by itself", "allocs", len(updates), "error", err)
	for _, u := range updates {
		err := tell(u)
		if err != nil && ctx.Err() == nil && u.Status == muster.AllocEnded {
			s.n.log.Error("report refused by the log", "alloc", u.ID, "error", err)
			err = tell(withoutRefused(u, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			// A defect of this program. The next whole report contains it again.
			s.n.log.Error("report given up", "alloc", u.ID, "status", u.Status, "error", err)
		}
	}
	return nil
}
