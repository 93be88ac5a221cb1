package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// What runs is shipped from shipFirst after its start on; the longer it runs the
	// less often, down to shipSeldom. Reports of its size, every few seconds, are what wakes it.
	shipFirst, shipSeldom = 5 * time.Second, time.Minute
	// maxChunk bounds one blob of a stream; it passes through, never in memory as a whole.
	maxChunk = 8 << 20
	// shipsPerNode bounds how much of one node is shipped at once.
	shipsPerNode                = 4
	shipRetry, shipRetryLongest = time.Second, time.Minute
)

// ship is what became of an allocation's output so far. It outlives a session.
type ship struct {
	id    muster.AllocID
	limit int64

	mu      sync.Mutex
	busy    bool // a shipper has it
	again   bool // asked for while it was busy
	touched bool // a blob of it may have been stored
	listed  bool // what is stored is known
	next    time.Time
	faults  int
	streams [2]stream
}

// stream is one stream of it: [start, end) is stored, in chunks.
type stream struct {
	name       string
	start, end int64
	chunks     []chunk
}

type chunk struct{ offset, size int64 }

func (st *stream) bytes() int64 {
	var n int64
	for _, c := range st.chunks {
		n += c.size
	}
	return n
}

func (l *Link) newShip(row *state.Alloc) *ship {
	return &ship{
		id: row.ID, limit: int64(row.Run.Spec.OutputLimit),
		listed:  !l.mayBeOlder(row),
		streams: [2]stream{{name: wire.Stdout}, {name: wire.Stderr}},
	}
}

// mayBeOlder reports whether an allocation may have been placed before this link began. Another link may have shipped its
// output: that of another leader, or of this one before a reload.
func (l *Link) mayBeOlder(row *state.Alloc) bool { return row.Placed <= l.since }

// ran is how long ago an allocation was started, by the log's clock.
func (l *Link) ran(row *state.Alloc) time.Duration { return l.cfg.Clock.Now().Sub(row.Started) }

// mayBeShipped tells whether output of an allocation may be in the blob store: by this
// leader, if only in a moment, or by one before. What is said to be whole without may have left
// a chunk there that no fact counts and nobody deletes.
func (n *nodeLink) mayBeShipped(row *state.Alloc) bool {
	n.mu.Lock()
	sh := n.ships[row.ID]
	n.mu.Unlock()
	if sh != nil {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.busy || sh.touched {
			return true
		}
	}
	// How long it ran does not matter: no clock is known to have gone on while another server led, or none.
	return n.l.mayBeOlder(row) && row.Started != 0
}

func (n *nodeLink) dropShip(id muster.AllocID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ships, id)
	delete(n.storing, id)
}

// shipOf finds or makes the ship of an allocation.
func (n *nodeLink) shipOf(id muster.AllocID) *ship {
	row := n.l.cfg.State.Latest().Alloc(id)
	n.mu.Lock()
	defer n.mu.Unlock()
	sh := n.ships[id]
	if sh == nil && row != nil {
		sh = n.l.newShip(row)
		n.ships[id] = sh
	}
	return sh
}

// running sees whether what runs has enough to ship.
func (s *session) running(ctx context.Context, row *state.Alloc, r *wire.AllocReport) {
	if r.Stdout.Size+r.Stderr.Size == 0 || row.Started == 0 || s.n.l.ran(row) < shipFirst {
		return
	}
	sh := s.n.shipOf(row.ID)
	if sh == nil {
		return
	}
	sh.mu.Lock()
	due := !sh.busy && !time.Now().Before(sh.next) && (r.Stdout.Size > sh.streams[0].end || r.Stderr.Size > sh.streams[1].end)
	sh.mu.Unlock()
	if due {
		s.mu.Lock()
		s.shipLocked(ctx, row.ID)
		s.mu.Unlock()
	}
}

// shipLocked queues an allocation's output for shipping now.
func (s *session) shipLocked(ctx context.Context, id muster.AllocID) {
	s.ready = append(s.ready, id)
	if s.shippers < shipsPerNode {
		s.shippers++
		s.g.Go(func() error { s.shipAll(ctx); return nil })
	}
}

// retryShips queues what could not be shipped before; every heartbeat asks.
func (s *session) retryShips(ctx context.Context) {
	now := time.Now()
	var due []muster.AllocID
	s.n.mu.Lock()
	for id, sh := range s.n.ships {
		sh.mu.Lock()
		if sh.faults > 0 && !sh.busy && !now.Before(sh.next) {
			due = append(due, id)
		}
		sh.mu.Unlock()
	}
	s.n.mu.Unlock()
	slices.Sort(due)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range due {
		s.shipLocked(ctx, id)
	}
}

// shipAll ships what is ready until nothing is. Its turn comes before its choice: who is first in line is
// shipped first, whichever shipper that is.
func (s *session) shipAll(ctx context.Context) {
	for s.isReady(ctx) {
		select {
		case <-ctx.Done():
			continue
		case s.n.l.ships <- struct{}{}:
		}
		if sh := s.nextShip(); sh != nil {
			s.shipOne(ctx, sh)
		}
		<-s.n.l.ships
	}
}

// isReady reports whether there is something to ship; if not, the shipper is one no more.
func (s *session) isReady(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 || ctx.Err() != nil {
		s.shippers--
		return false
	}
	return true
}

// nextShip takes the first in line; nil if there is none, or another shipper has it.
func (s *session) nextShip() *ship {
	s.mu.Lock()
	if len(s.ready) == 0 {
		s.mu.Unlock()
		return nil
	}
	id := s.ready[0]
	if s.ready = s.ready[1:]; len(s.ready) == 0 {
		s.ready = nil
	}
	s.mu.Unlock()
	if sh := s.n.shipOf(id); sh != nil && sh.begin() {
		return sh
	}
	return nil
}

// shipOne ships what it has begun.
func (s *session) shipOne(ctx context.Context, sh *ship) {
	// Read after it began: from here on a report of the end finds it busy.
	s.mu.Lock()
	var report *wire.AllocReport
	if k := s.known[sh.id]; k != nil {
		report = k.report
	}
	s.mu.Unlock()
	var every time.Duration
	var err error
	if report != nil {
		every, err = s.ship(ctx, sh, report)
	}
	if err != nil && ctx.Err() == nil {
		s.n.l.stats.shipFaults.Add(1)
		if sh.faultsNow() == 0 && !errors.Is(err, errTight) {
			s.n.log.Warn("output not shipped, trying again", "alloc", sh.id, "error", err)
		}
	}
	if sh.done(err, every) {
		s.mu.Lock()
		s.ready = append(s.ready, sh.id)
		s.mu.Unlock()
	}
}

// begin takes the ship for one shipper; if another has it, that one comes again.
func (sh *ship) begin() bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.busy {
		sh.again = true
		return false
	}
	sh.busy, sh.again = true, false
	return true
}

func (sh *ship) faultsNow() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return sh.faults
}

// done gives it back: after an error to be tried again, else after a time. It
// reports whether it was asked for meanwhile, and so should be shipped again at once.
func (sh *ship) done(err error, every time.Duration) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.busy = false
	if err == nil {
		sh.faults, sh.next = 0, time.Now().Add(every)
		return sh.again
	}
	sh.next = time.Now().Add(min(shipRetry<<min(sh.faults, 10), shipRetryLongest))
	sh.faults++
	return false
}

// errTight is in every error that DiskTight is behind.
var errTight = errors.New("the server's disk is nearly full")

// tight says why nothing may be stored that only fills the disk, or nil.
func (l *Link) tight() error {
	if why := l.cfg.DiskTight(); why != nil {
		return fmt.Errorf("%w: %w", errTight, why)
	}
	return nil
}

// ship ships what the node has of an allocation's output; once it has ended,
// all of it, and says so in the log. It returns when to come again.
func (s *session) ship(ctx context.Context, sh *ship, r *wire.AllocReport) (time.Duration, error) {
	row := s.n.l.cfg.State.Latest().Alloc(sh.id)
	if row == nil || !row.Live() && row.Output.Stage != state.OutputOpen {
		s.n.dropShip(sh.id)
		s.n.box.add(sh.id, false)
		return 0, nil
	}
	last := !row.Live() && r.Status == muster.AllocEnded
	if _, all := whole(r); all && !last && r.Status == muster.AllocEnded {
		return 0, nil // the log hears of its end now, and of all of its output
	}
	if err := s.n.l.recall(ctx, sh, row); err != nil {
		return 0, err
	}
	out := state.Output{Stage: state.OutputComplete, BlobBytes: row.Output.BlobBytes}
	said := [2]*state.Stream{&out.Stdout, &out.Stderr}
	for i, told := range [2]wire.StreamReport{r.Stdout, r.Stderr} {
		st := &sh.streams[i]
		kept, whole := inline(told)
		var err error
		if last && whole {
			// It came with the report: what was stored before it was known to be small is not needed.
			*said[i] = kept
			if err = s.dropChunks(ctx, sh, st, row, len(st.chunks)); err != nil {
				return 0, err
			}
			continue
		}
		final := false
		if told.Size > st.end || last {
			final, err = s.shipStream(ctx, sh, st, row)
		}
		short := last && err == nil && st.end < told.Size
		switch {
		case last && muster.IsKind(err, muster.FaultNotFound), short && final:
			out.Stage, out.Why = state.OutputIncomplete, fmt.Sprintf("node %s no longer has the rest of it", s.n.id)
			err = nil
		case short:
			// As from an agent that was ended while it answered.
			err = fmt.Errorf("%s: %d bytes of %d came", st.name, st.end, told.Size)
		}
		if err != nil {
			return 0, err
		}
		sh.mu.Lock()
		*said[i] = state.Stream{Size: max(st.end, told.Size), Start: st.start}
		out.BlobBytes += st.bytes()
		sh.mu.Unlock()
	}
	if r.OutputLost > 0 && out.Stage == state.OutputComplete {
		out.Stage, out.Why = state.OutputIncomplete, fmt.Sprintf("the disk of node %s did not take %d bytes of it", s.n.id, r.OutputLost)
	}
	if !last {
		return min(max(s.n.l.ran(row)/10, shipFirst), shipSeldom), nil
	}
	if err := s.n.propose(ctx, &state.OutputStored{Alloc: sh.id, Output: out}); err != nil && !muster.IsKind(err, muster.FaultNotFound) {
		return 0, err
	}
	s.n.dropShip(sh.id)
	return 0, nil
}
