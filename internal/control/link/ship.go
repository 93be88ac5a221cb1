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
	// Output of a running allocation is shipped from shipFirst after its start on. The longer it
	// runs the less often it is shipped, down to once per shipSeldom. Reports of the output's size,
	// every few seconds, trigger it.
	shipFirst, shipSeldom = 5 * time.Second, time.Minute
	// maxChunk bounds one blob of a stream in bytes. It is never in memory as a whole.
	maxChunk = 8 << 20
	// shipsPerNode bounds how many outputs of one node are shipped at the same time.
	shipsPerNode = 4
	// The delays after a failed attempt.
	shipRetry, shipRetryLongest = time.Second, time.Minute
)

// ship is the progress of shipping one allocation's output. It belongs to the nodeLink and outlives
// a session. One shipper at a time holds it, between begin and done. Only that shipper changes
// streams, and it does so under mu, so that others may read them under mu.
type ship struct {
	id muster.AllocID
	// limit is the output limit of the job in bytes; 0 means none.
	limit int64

	// mu guards the fields below.
	mu sync.Mutex
	// busy: a shipper holds it.
	busy bool
	// again: it was asked for while it was busy.
	again bool
	// touched: a blob of it may be in the store.
	touched bool
	// listed: streams says exactly what is stored.
	listed bool
	// next is when to ship again at the earliest. faults counts failures in a row.
	next    time.Time
	faults  int
	streams [2]stream
}

// stream is one of its streams, stdout or stderr. The bytes [start, end) are stored, in chunks.
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

// newShip makes a ship for an allocation. If an earlier link may have shipped output of it, the
// blob store must be listed first.
func (l *Link) newShip(row *state.Alloc) *ship {
	return &ship{
		id: row.ID, limit: int64(row.Run.Spec.OutputLimit),
		listed:  !l.mayBeOlder(row),
		streams: [2]stream{{name: wire.Stdout}, {name: wire.Stderr}},
	}
}

// mayBeOlder reports whether the allocation may have been placed before this link began. Then an
// earlier link may have shipped its output: of another leader, or before a reload.
func (l *Link) mayBeOlder(row *state.Alloc) bool { return row.Placed <= l.since }

// ran is how long ago an allocation was started, by the log's clock.
func (l *Link) ran(row *state.Alloc) time.Duration { return l.cfg.Clock.Now().Sub(row.Started) }

// mayBeShipped reports whether output of an allocation may be in the blob store, put there by this
// leader or an earlier one, or about to be. If it may, the end of the allocation must not be
// reported as complete with inline output alone: a chunk would be left that no fact counts and
// nothing deletes.
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
	// The time that it ran does not matter: no clock is known to have run under another leader.
	return n.l.mayBeOlder(row) && row.Started != 0
}

func (n *nodeLink) dropShip(id muster.AllocID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ships, id)
	delete(n.storing, id)
}

// shipOf returns the ship of an allocation and makes it if needed; nil without such an allocation.
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

// running queues the output of a running allocation if there is enough to ship and it is time.
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

// shipLocked queues an allocation's output and starts a shipper if it may. s.mu is held.
func (s *session) shipLocked(ctx context.Context, id muster.AllocID) {
	s.ready = append(s.ready, id)
	if s.shippers < shipsPerNode {
		s.shippers++
		s.g.Go(func() error { s.shipAll(ctx); return nil })
	}
}

// retryShips queues outputs whose last attempt failed. The reader calls it with every heartbeat.
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

// shipAll is one shipper: it ships what is queued until nothing is. It waits for its token first
// and picks an allocation after that, so that the first in the queue is shipped first, whichever
// shipper gets the token.
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

// isReady reports whether something is queued. If not, the caller stops being a shipper. Both
// happen under one lock, so an id that is queued now either is seen here or finds the lower count
// and starts a new shipper.
func (s *session) isReady(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 || ctx.Err() != nil {
		s.shippers--
		return false
	}
	return true
}

// nextShip takes the first of the queue; nil if there is none or another shipper holds it.
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

func (s *session) shipOne(ctx context.Context, sh *ship) {
	// The report is read after begin. If the allocation ends from here on, its report finds the
	// ship busy, and mayBeShipped is true.
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

// begin takes the ship for one shipper. If another holds it, begin returns false and the holder
// ships again when it is done.
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

// done gives the ship back. After an error it is tried again later, else when the given time has
// passed. It reports whether it was asked for meanwhile: then it should be shipped again at once.
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

// errTight is wrapped by every error whose cause is DiskTight.
var errTight = errors.New("the server's disk is nearly full")

// tight returns why nothing may be stored that fills the disk further; nil if it may.
func (l *Link) tight() error {
	if why := l.cfg.DiskTight(); why != nil {
		return fmt.Errorf("%w: %w", errTight, why)
	}
	return nil
}

// ship stores what the node has of an allocation's output. Once the allocation has ended, it stores
// all of it and commits that. It returns in how long to come again.
//
// The blobs are stored before the fact. After a crash between the two, the output is still open in
// the state; the next leader lists the blobs and continues from them.
func (s *session) ship(ctx context.Context, sh *ship, r *wire.AllocReport) (time.Duration, error) {
	row := s.n.l.cfg.State.Latest().Alloc(sh.id)
	if row == nil || !row.Live() && row.Output.Stage != state.OutputOpen {
		s.n.dropShip(sh.id)
		s.n.box.add(sh.id, false)
		return 0, nil
	}
	// last: this is the final time, for the log knows of the end.
	last := !row.Live() && r.Status == muster.AllocEnded
	if _, all := whole(r); all && !last && r.Status == muster.AllocEnded {
		// The update with the end contains all of the output too.
		return 0, nil
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
			// All of it came with the report. Chunks that were stored while it ran are not needed.
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
			// An agent that was stopped in the middle of its answer looks like this. Try again.
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
	// NotFound: the job is purged, and its blobs with it.
	if err := s.n.propose(ctx, &state.OutputStored{Alloc: sh.id, Output: out}); err != nil && !muster.IsKind(err, muster.FaultNotFound) {
		return 0, err
	}
	s.n.dropShip(sh.id)
	return 0, nil
}
