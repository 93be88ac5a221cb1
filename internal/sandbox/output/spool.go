package output

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// spoolRetry is how long to wait for room on a full disk before trying again.
const spoolRetry = time.Second

// Why reading a spool ends, beside io.EOF.
var (
	ErrNotKept = errors.New("not kept")
	errLeft    = errors.New("left")
)

// Spool keeps one stream of a detached execution in segment files. Unlike a Stream it drops nothing
// that no reader has taken: when the spool or the disk is full, the program waits. One goroutine
// writes it, and any number may read it.
type Spool struct {
	dir   int
	name  string
	limit int64
	whole int64 // of a full segment
	// all is how many bytes all spools of the sandbox hold together.
	all *atomic.Int64
	// MakeRoom drops output that is needed least, when all spools together are full; nil: nothing
	// is dropped. The writer calls it.
	MakeRoom func()
	// Disk is the gate for reading and writing files here.
	Disk system.Gate

	// file is the last segment, open for appending. Only the writer uses it.
	file int

	mu sync.Mutex
	// segments on disk, oldest first.
	segments []segment
	// end is the offset of the next byte. Bytes before taken need not be kept.
	end, taken int64
	lost       int64
	finished   bool
	// changed is closed and replaced whenever any of this changes.
	changed chan struct{}
}

// NewSpool makes an empty one: segments in the directory dir begin with name, and all counts the
// bytes.
func NewSpool(all *atomic.Int64, dir int, name string) *Spool {
	return &Spool{
		all: all, dir: dir, name: name, limit: initwire.SpoolLimit, whole: initwire.SegmentSize(initwire.SpoolLimit),
		file: -1, changed: make(chan struct{}),
	}
}

// Keep writes all that a source prints, to its end.
func (p *Spool) Keep(from *Source) {
	for p.waitForRoom(from.cut) {
		b, err := from.Read()
		if err != nil {
			break
		}
		p.Write(b.Room()[:b.N], from.cut)
		from.Release(b)
	}
	if p.file >= 0 {
		p.Disk.Enter()
		_ = syscall.Close(p.file)
		p.Disk.Leave()
		p.file = -1
	}
	p.Finish()
}

// Finish notes that nothing more will come.
func (p *Spool) Finish() {
	p.update(func() { p.finished = true })
	p.drop()
}

// waitForRoom waits until readers have taken enough. At the end there always is room for the little
// that is left.
func (p *Spool) waitForRoom(cut <-chan struct{}) bool {
	for {
		p.mu.Lock()
		room, changed := p.end-p.taken < p.limit, p.changed
		p.mu.Unlock()
		full := p.all.Load() >= initwire.SpoolsLimit
		if room && full && p.MakeRoom != nil {
			p.MakeRoom()
			full = p.all.Load() >= initwire.SpoolsLimit
		}
		if room && !full {
			return true
		}
		var again <-chan time.Time
		if full {
			again = time.After(spoolRetry) // others do not tell us when they make room
		}
		select {
		case <-changed:
		case <-again:
		case <-cut:
			return true
		}
	}
}

// Write appends b. It waits for room on the disk until cut is closed; then what is left of b is
// lost, and counted.
func (p *Spool) Write(b []byte, cut <-chan struct{}) {
	for len(b) > 0 {
		n := p.put(b)
		b = b[n:]
		if n > 0 {
			continue
		}
		select {
		case <-cut:
			p.update(func() { p.lost += int64(len(b)) })
			return
		case <-time.After(spoolRetry):
		}
	}
}

// put appends what it can to the last segment, or to a new one.
func (p *Spool) put(b []byte) int {
	p.Disk.Enter()
	defer p.Disk.Leave()
	p.mu.Lock()
	end := p.end
	full := p.file < 0 || p.segments[len(p.segments)-1].size >= p.whole
	room := p.whole
	if !full {
		room -= p.segments[len(p.segments)-1].size
	}
	p.mu.Unlock()
	if full {
		fd, err := system.OpenAt(p.dir, initwire.SegmentName(p.name, end), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND)
		if err != nil {
			return 0
		}
		if p.file >= 0 {
			_ = syscall.Close(p.file)
		}
		p.file = fd
		p.update(func() { p.segments = append(p.segments, segment{offset: end}) })
	}
	n, _ := system.FD(p.file).Write(b[:min(int64(len(b)), room)])
	if n > 0 {
		p.all.Add(int64(n))
		p.update(func() {
			p.segments[len(p.segments)-1].size += int64(n)
			p.end += int64(n)
		})
	}
	return n
}

// update makes a change under mu, and wakes everybody who waits for one.
func (p *Spool) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Take notes that everything before an offset is safe elsewhere, and deletes the segments that hold
// nothing else.
func (p *Spool) Take(offset int64) {
	p.update(func() { p.taken = max(p.taken, min(offset, p.end)) })
	p.drop()
}

// drop deletes the segments that nobody needs.
func (p *Spool) drop() { p.unlink(p.untie()) }

// untie gives up the segments that nobody needs, which no longer count from then on. The caller
// deletes them by unlink.
func (p *Spool) untie() (gone []segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.segments) > 0 {
		first := p.segments[0]
		if first.offset+first.size > p.taken || len(p.segments) == 1 && !p.finished {
			break
		}
		gone = append(gone, first)
		p.segments = p.segments[1:]
		p.all.Add(-first.size)
	}
	return gone
}

// unlink deletes segments that untie has given up.
func (p *Spool) unlink(gone []segment) {
	if len(gone) == 0 {
		return
	}
	p.Disk.Enter()
	defer p.Disk.Leave()
	for _, s := range gone {
		system.RemoveAt(p.dir, initwire.SegmentName(p.name, s.offset))
	}
}

// Abandon gives up all that is kept, which no longer counts from then on. The answer deletes the
// files, which may block.
func (p *Spool) Abandon() (unlink func()) {
	p.update(func() { p.taken = p.end })
	gone := p.untie()
	return func() { p.unlink(gone) }
}

// Remove deletes all of it.
func (p *Spool) Remove() { p.Take(1<<63 - 1) }

// Bounds are the offsets of the first byte that is kept, and of the end.
func (p *Spool) Bounds() (first, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.segments) == 0 {
		return p.end, p.end
	}
	return p.segments[0].offset, p.end
}

// Size is how much is on disk.
func (p *Spool) Size() int64 {
	first, end := p.Bounds()
	return end - first
}

// Lost is how many bytes the disk would not take before the end.
func (p *Spool) Lost() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// segmentAt is the segment that holds an offset, if there is one; end is the end of the stream.
func (p *Spool) segmentAt(offset int64) (s segment, end int64, finished bool, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < p.end {
		err = ErrNotKept
		for _, s = range p.segments {
			if offset >= s.offset && offset < s.offset+s.size {
				err = nil
				break
			}
		}
	}
	return s, p.end, p.finished, p.changed, err
}

// Reader reads a spool from an offset on, while it is written. Each client has its own.
type Reader struct {
	p      *Spool
	offset int64
	// file is the segment that is open, with the bytes from segment to until at least; -1: none is.
	file           int
	segment, until int64
}

// Wait waits until there is something to read. It answers io.EOF at the end, ErrNotKept if what
// comes next was dropped, and ErrLeft once left is closed.
func (r *Reader) Wait(left <-chan struct{}) error {
	for {
		s, end, finished, changed, err := r.p.segmentAt(r.offset)
		switch {
		case err != nil:
			return err
		case r.offset < end:
			return r.open(s)
		case finished:
			return io.EOF
		}
		select {
		case <-changed:
		case <-left:
			return errLeft
		}
	}
}

// Reader begins to read at an offset. The caller closes the reader.
func (p *Spool) Reader(offset int64) *Reader {
	return &Reader{p: p, offset: offset, file: -1}
}

// open opens the segment, unless it is open.
func (r *Reader) open(s segment) error {
	r.until = s.offset + s.size
	if r.file >= 0 && r.segment == s.offset {
		return nil
	}
	r.Close()
	r.p.Disk.Enter()
	defer r.p.Disk.Leave()
	fd, err := system.OpenAt(r.p.dir, initwire.SegmentName(r.p.name, s.offset), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK)
	if err != nil {
		return ErrNotKept
	}
	r.file, r.segment = fd, s.offset
	return nil
}

// Read reads some bytes. Call it only after Wait has answered nil.
func (r *Reader) Read(b []byte) (int, error) {
	r.p.Disk.Enter()
	n, err := syscall.Pread(r.file, b[:min(int64(len(b)), r.until-r.offset)], r.offset-r.segment)
	r.p.Disk.Leave()
	if err == nil && n == 0 {
		err = ErrNotKept // somebody made it shorter
	}
	r.offset += int64(max(n, 0))
	return max(n, 0), err
}

// Close closes the segment that is open.
func (r *Reader) Close() {
	if r.file >= 0 {
		r.p.Disk.Enter()
		_ = syscall.Close(r.file)
		r.p.Disk.Leave()
		r.file = -1
	}
}
