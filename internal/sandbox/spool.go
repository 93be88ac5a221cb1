package sandbox

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

// Ends of the reading of a spool, beside io.EOF.
var (
	errNotKept = errors.New("not kept")
	errLeft    = errors.New("left")
)

// spool keeps one stream of a detached execution in segment files. Other than
// a job's output it drops nothing that no reader has taken: when it is full the program waits, and
// the same when the disk is.
type spool struct {
	dir   int
	name  string
	limit int64
	whole int64 // of a full segment
	// all is what every spool of the sandbox holds.
	all *atomic.Int64
	// makeRoom drops what others hold that is needed least; nil: nothing is. The writer's own.
	makeRoom func()
	// disk is the gate of whoever reads or writes files here.
	disk system.Gate

	// file is the last segment, open for appending; the writer's own.
	file int

	mu sync.Mutex
	// segments on disk, oldest first.
	segments []segment
	// end is the offset of the next byte; what is before taken need not be kept.
	end, taken int64
	lost       int64
	finished   bool
	// changed is closed and replaced whenever any of this changes.
	changed chan struct{}
}

func newSpool(all *atomic.Int64, dir int, name string) *spool {
	return &spool{
		all: all, dir: dir, name: name, limit: initwire.SpoolLimit, whole: initwire.SegmentSize(initwire.SpoolLimit),
		file: -1, changed: make(chan struct{}),
	}
}

// keep writes all that comes.
func (p *spool) keep(from *source) {
	p.makeRoom = from.s.makeRoom
	for p.waitForRoom(from.cut) {
		b, err := from.read()
		if err != nil {
			break
		}
		p.write(b.room()[:b.n], from.cut)
		from.release(b)
	}
	if p.file >= 0 {
		p.disk.Enter()
		_ = syscall.Close(p.file)
		p.disk.Leave()
		p.file = -1
	}
	p.update(func() { p.finished = true })
	p.drop()
}

// waitForRoom waits until readers have taken enough. At the end there always is room for the little that is left.
func (p *spool) waitForRoom(cut <-chan struct{}) bool {
	for {
		p.mu.Lock()
		room, changed := p.end-p.taken < p.limit, p.changed
		p.mu.Unlock()
		full := p.all.Load() >= initwire.SpoolsLimit
		if room && full && p.makeRoom != nil {
			p.makeRoom()
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

// write appends; it waits for the disk to have room, until cut.
func (p *spool) write(b []byte, cut <-chan struct{}) {
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
func (p *spool) put(b []byte) int {
	p.disk.Enter()
	defer p.disk.Leave()
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

// update changes what is under mu, and tells everybody who waits.
func (p *spool) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// take notes that everything before an offset is safe elsewhere.
func (p *spool) take(offset int64) {
	p.update(func() { p.taken = max(p.taken, min(offset, p.end)) })
	p.drop()
}

// drop deletes the segments that nobody needs.
func (p *spool) drop() { p.unlink(p.untie()) }

// untie lets go of the segments that nobody needs. They count no more; unlink is to delete them.
func (p *spool) untie() (gone []segment) {
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

func (p *spool) unlink(gone []segment) {
	if len(gone) == 0 {
		return
	}
	p.disk.Enter()
	defer p.disk.Leave()
	for _, s := range gone {
		system.RemoveAt(p.dir, initwire.SegmentName(p.name, s.offset))
	}
}

// makeRoom drops the output of the executions that ended first, while spools
// hold all that they may. How those ended stays known.
func (s *sandbox) makeRoom() {
	unlink := s.execs.untieEnded(func() bool { return s.spooled.Load() >= initwire.SpoolsLimit })
	for _, f := range unlink {
		f()
	}
}

// untieEnded answers what deletes the files, which takes its time. All who wait for room come at once:
// as the bytes count no more when mu is free again, each drops only what those before it left full.
func (x *executions) untieEnded(full func() bool) (unlink []func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.ended {
		if !full() {
			break
		}
		for _, p := range e.spools {
			p.update(func() { p.taken = p.end })
			gone := p.untie()
			unlink = append(unlink, func() { p.unlink(gone) })
		}
	}
	return unlink
}

// remove deletes all of it.
func (p *spool) remove() { p.take(1<<63 - 1) }

// bounds are the offsets of the first byte that is kept, and of the end.
func (p *spool) bounds() (first, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.segments) == 0 {
		return p.end, p.end
	}
	return p.segments[0].offset, p.end
}

// size is how much is on disk.
func (p *spool) size() int64 {
	first, end := p.bounds()
	return end - first
}

func (p *spool) lostBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// segmentAt is the segment that holds an offset, if there is one; end is the end of the stream.
func (p *spool) segmentAt(offset int64) (s segment, end int64, finished bool, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset < p.end {
		err = errNotKept
		for _, s = range p.segments {
			if offset >= s.offset && offset < s.offset+s.size {
				err = nil
				break
			}
		}
	}
	return s, p.end, p.finished, p.changed, err
}

// spoolReader reads a spool from an offset on.
type spoolReader struct {
	p      *spool
	offset int64
	// file is the segment that holds the offset, from segment on to until at least; -1: none is open.
	file           int
	segment, until int64
}

// wait waits until there is something to read. io.EOF: never again.
func (r *spoolReader) wait(left <-chan struct{}) error {
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

func (r *spoolReader) open(s segment) error {
	r.until = s.offset + s.size
	if r.file >= 0 && r.segment == s.offset {
		return nil
	}
	r.close()
	r.p.disk.Enter()
	defer r.p.disk.Leave()
	fd, err := system.OpenAt(r.p.dir, initwire.SegmentName(r.p.name, s.offset), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK)
	if err != nil {
		return errNotKept
	}
	r.file, r.segment = fd, s.offset
	return nil
}

// read reads after wait.
func (r *spoolReader) read(b []byte) (int, error) {
	r.p.disk.Enter()
	n, err := syscall.Pread(r.file, b[:min(int64(len(b)), r.until-r.offset)], r.offset-r.segment)
	r.p.disk.Leave()
	if err == nil && n == 0 {
		err = errNotKept // somebody made it shorter
	}
	r.offset += int64(max(n, 0))
	return max(n, 0), err
}

func (r *spoolReader) close() {
	if r.file >= 0 {
		r.p.disk.Enter()
		_ = syscall.Close(r.file)
		r.p.disk.Leave()
		r.file = -1
	}
}
