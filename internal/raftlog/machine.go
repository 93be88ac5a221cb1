package raftlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/wait"
)

// Machine is what the log drives; the state implements it. Calls never overlap,
// except that an Image writes itself out while Apply goes on.
type Machine interface {
	// Apply applies one committed entry. at is the leader's clock in
	// microseconds since the epoch and never goes backwards. The result has
	// one item per proposal: nil, an error, or any value; it reaches whoever
	// proposed it, on that server only, so it must not be needed elsewhere.
	// A *Fatal among the results ends the process, on every server.
	// proposals may be empty (a leader's first entry, a barrier): index, term
	// and time have moved on, and that is all. The machine may keep the bytes,
	// nobody changes them. Apply must be the same function on every server and
	// must not block: the log waits for it.
	Apply(index, term uint64, at int64, proposals [][]byte) []any

	// Snapshot returns, in O(1), what can write out the state as it is now.
	Snapshot() (Image, error)

	// Restore replaces the whole state. It may be called again after an error. A *Fatal says that
	// a newer version wrote the image.
	Restore(r io.Reader) error
}

// Image writes one state of the machine, later, while Apply goes on. It may be
// written never, once, or more than once.
type Image interface {
	WriteTo(w io.Writer) (int64, error)
}

// driver is the raft.FSM that drives a Machine.
type driver struct {
	machine Machine
	latch   *latch
	due     chan struct{} // a snapshot is due; one place
	every   uint64        // entries between snapshots
	bytes   uint64        // or bytes of entries
	size    func() uint64 // of the newest snapshot

	// mu keeps Apply, Snapshot and Restore apart: a backup takes its image from
	// another goroutine than raft's. Only Restore blocks under it, on the disk,
	// and there is nothing to back up before it is through.
	mu          sync.Mutex
	index, term uint64
	at          int64
	restoreErr  error
	broken      error  // an entry that was not understood: the state is of no use now
	sinceN      uint64 // entries since the last snapshot
	sinceBytes  uint64

	applied atomic.Uint64
	waiters map[chan struct{}]uint64 // closed and removed when the machine has the index
	clock   clock.Steady             // has heard every at, and gives the proposer the next
}

// outcome is what Apply gives back through raft to whoever proposed.
type outcome struct {
	term   uint64
	values []any
	err    error
}

// Apply is called by raft's machine goroutine.
func (d *driver) Apply(l *raft.Log) any {
	if err := cmp.Or(d.latch.err(), d.stuck()); err != nil {
		// What comes now may be committed, but this process acknowledges no more.
		return &outcome{err: err}
	}
	values, err := d.apply(l)
	if err != nil {
		return &outcome{err: d.latch.trip(OpDecode, err)}
	}
	return &outcome{term: l.Term, values: values}
}

// apply gives an error for an entry that is not understood, and after that one
// there is no other.
func (d *driver) apply(l *raft.Log) (values []any, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("entry %d: %w", l.Index, err)
			d.broken = err
		}
	}()
	at, proposals, err := decodeEntry(l.Data)
	if err != nil {
		return nil, err
	}
	at = max(at, d.at) // a new leader's clock may be behind the old one's
	values = d.machine.Apply(l.Index, l.Term, at, proposals)
	if err := fatalAmong(values); err != nil {
		return nil, err
	}
	if len(values) != len(proposals) {
		panic(fmt.Sprintf("raftlog: the machine gave %d results for %d proposals", len(values), len(proposals)))
	}
	d.movedLocked(l.Index, l.Term, at)
	d.sinceN++
	d.sinceBytes += uint64(len(l.Data))
	if d.dueLocked() {
		wait.Poke(d.due)
	}
	return values, nil
}

// fatalAmong is the first result that is a *Fatal, with what is around it.
func fatalAmong(values []any) error {
	for _, v := range values {
		if err, ok := v.(error); ok {
			if f := (*Fatal)(nil); errors.As(err, &f) {
				return err
			}
		}
	}
	return nil
}

// stuck is why no more entries are applied, or nil.
func (d *driver) stuck() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

// dueLocked says whether to take a snapshot. Its cost follows the size of the
// state, so a large state waits until the log since the last one is as large;
// but not for more than eight times the entries, which a restart has to replay.
func (d *driver) dueLocked() bool {
	if d.sinceN >= 8*d.every {
		return true
	}
	return (d.sinceN >= d.every || d.sinceBytes >= d.bytes) && d.sinceBytes >= d.size()
}

func (d *driver) movedLocked(index, term uint64, at int64) {
	d.index, d.term, d.at = index, term, at
	d.clock.Heard(at)
	d.applied.Store(index)
	for reached, at := range d.waiters {
		if at <= index {
			delete(d.waiters, reached)
			close(reached)
		}
	}
}

// waiter is a channel that is closed when the machine has an index, and what to call when nobody waits any
// more. Each entry costs a look at those who wait: they are requests to a server that is behind, few and
// bounded by its connections.
func (d *driver) waiter(index uint64) (reached chan struct{}, forget func()) {
	reached = make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index >= index {
		close(reached)
		return reached, func() {}
	}
	if d.waiters == nil {
		d.waiters = map[chan struct{}]uint64{}
	}
	d.waiters[reached] = index
	return reached, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.waiters, reached)
	}
}

// Snapshot is called by raft's machine goroutine.
func (d *driver) Snapshot() (raft.FSMSnapshot, error) {
	s, err := d.take()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.sinceN, d.sinceBytes = 0, 0
	d.mu.Unlock()
	return s, nil
}

// take is a point of the state with the machine's image of it.
func (d *driver) take() (*point, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken != nil {
		return nil, d.broken
	}
	image, err := d.machine.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("image of the state at %d: %w", d.index, err)
	}
	return &point{index: d.index, term: d.term, at: d.at, image: image}, nil
}

// Restore is called by raft: at start from Open's goroutine, later from the
// machine's.
func (d *driver) Restore(rc io.ReadCloser) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var p point
	err := p.readFrom(rc)
	if err == nil {
		err = d.machine.Restore(rc)
	}
	d.restoreErr = err
	if err != nil {
		return err
	}
	d.movedLocked(p.index, p.term, p.at)
	d.sinceN, d.sinceBytes = 0, 0
	return nil
}

// point is a state and where in the log it stands. Written out, it is a version
// byte, index, term and at, then the machine's own bytes.
type point struct {
	index, term uint64
	at          int64
	image       Image
}

const (
	pointVersion = 1
	pointSize    = 1 + 3*8
)

func (p *point) WriteTo(w io.Writer) (int64, error) {
	var head [pointSize]byte
	head[0] = pointVersion
	binary.LittleEndian.PutUint64(head[1:], p.index)
	binary.LittleEndian.PutUint64(head[9:], p.term)
	binary.LittleEndian.PutUint64(head[17:], uint64(p.at))
	n, err := w.Write(head[:])
	if err != nil {
		return int64(n), err
	}
	m, err := p.image.WriteTo(w)
	return int64(n) + m, err
}

func (p *point) readFrom(r io.Reader) error {
	var head [pointSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, ErrDamaged) {
			return err // said already, and better
		}
		return fmt.Errorf("%w: it has no beginning: %w", ErrDamaged, err)
	}
	if head[0] != pointVersion {
		return fmt.Errorf("snapshot of format %d: %w", head[0], ErrNewer)
	}
	p.index = binary.LittleEndian.Uint64(head[1:])
	p.term = binary.LittleEndian.Uint64(head[9:])
	p.at = int64(binary.LittleEndian.Uint64(head[17:]))
	return nil
}

// Persist is called by raft's snapshot goroutine.
func (p *point) Persist(sink raft.SnapshotSink) error {
	if _, err := p.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// Release has nothing to do: images are values, and the collector has them.
func (p *point) Release() {}
