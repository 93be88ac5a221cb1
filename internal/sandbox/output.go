package sandbox

import (
	"os"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// stream keeps one stream of the command: a pipe on one side, segment files on
// the other. It is read by take, until there is so much of it that it gets a
// goroutine of its own, which owns it until done is closed: a slow disk then holds up nothing else.
type stream struct {
	dir   int
	name  string
	limit int64
	size  int64 // of a full segment

	// fd is the pipe as long as take reads it, else -1.
	fd   int
	pipe *system.Endpoint
	done chan struct{}

	// segments are those on disk, oldest first; the last one is open as file.
	segments []segment
	file     int
	kept     int64
	// disk and brief are for the goroutine; the loop needs no slot.
	disk, brief system.Gate
	// end is the stream offset of the next byte.
	end int64
	// lost is how many bytes the disk would not take.
	lost int64
}

type segment struct{ offset, size int64 }

const (
	// Sizes of a read; the larger is what a pipe holds.
	smallRead = 4 << 10
	largeRead = 64 << 10
	// muchOutput is from when on a stream has a goroutine of its own.
	muchOutput = 64 << 10
)

func newStream(dir int, name string, limit int64) *stream {
	limit = max(limit, initwire.MinOutputLimit)
	return &stream{dir: dir, name: name, limit: limit, size: initwire.SegmentSize(limit), fd: -1, file: -1}
}

// take keeps what is in the pipe now, as much as a buffer holds.
func (s *stream) take(buf []byte) {
	n, err := syscall.Read(s.fd, buf)
	switch {
	case n > 0:
		s.write(buf[:n])
		if s.end >= muchOutput {
			s.follow(s.fd)
			s.fd = -1
		}
	case err == syscall.EAGAIN || err == syscall.EINTR:
	default:
		_ = syscall.Close(s.fd)
		s.fd = -1
	}
}

// follow keeps all that comes out of the pipe from now on.
func (s *stream) follow(pipe int) {
	s.done = make(chan struct{})
	var err error
	if s.pipe, err = system.NewEndpoint(pipe, s.name, s.brief); err != nil {
		close(s.done)
		return
	}
	go func() {
		defer close(s.done)
		size := smallRead
		buf := make([]byte, size)
		for {
			n, err := s.pipe.Read(buf)
			s.disk.Enter()
			s.write(buf[:n])
			s.disk.Leave()
			if err != nil {
				return
			}
			if n == len(buf) && size < largeRead {
				size = min(size*4, largeRead)
				buf = make([]byte, size)
			}
		}
	}()
}

// finish ends the reading; a goroutine gets until the deadline to read to the end of the pipe.
func (s *stream) finish(deadline time.Time) {
	if s.pipe != nil {
		_ = s.pipe.SetReadDeadline(deadline)
		<-s.done
	}
	if s.fd >= 0 {
		_ = syscall.Close(s.fd)
		s.fd = -1
	}
	if s.file >= 0 {
		_ = syscall.Close(s.file)
	}
}

// write keeps p. It never fails: what the disk refuses is lost and counted,
// because a full disk must not block the command or end it.
func (s *stream) write(p []byte) {
	for len(p) > 0 {
		if s.file < 0 || s.last().size >= s.size {
			if !s.roll() {
				s.lose(len(p))
				return
			}
		}
		n := int(min(int64(len(p)), s.size-s.last().size))
		for s.kept+int64(n) > s.limit && len(s.segments) > 1 {
			s.dropOldest()
		}
		wrote := s.put(p[:n])
		p = p[wrote:]
		if wrote == n {
			continue
		}
		// The disk is full, or broken. Our own oldest output makes room first.
		if len(s.segments) > 1 {
			s.dropOldest()
			continue
		}
		s.lose(len(p))
		return
	}
}

func (s *stream) last() *segment { return &s.segments[len(s.segments)-1] }

// put appends to the open segment and says how much of p is there.
func (s *stream) put(p []byte) int {
	n, err := system.FD(s.file).Write(p)
	if n > 0 {
		s.last().size += int64(n)
		s.kept += int64(n)
		s.end += int64(n)
	}
	_ = err
	return n
}

// roll opens the next segment. The new one is there before an old one goes, so a
// reader always finds the end of the stream.
func (s *stream) roll() bool {
	fd, err := system.OpenAt(s.dir, initwire.SegmentName(s.name, s.end), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return false
	}
	if s.file >= 0 {
		_ = syscall.Close(s.file)
	}
	s.file = fd
	s.segments = append(s.segments, segment{offset: s.end})
	return true
}

func (s *stream) dropOldest() {
	oldest := s.segments[0]
	s.segments = append(s.segments[:0], s.segments[1:]...)
	s.kept -= oldest.size
	system.RemoveAt(s.dir, initwire.SegmentName(s.name, oldest.offset))
}

// lose gives up n bytes. The next that can be written begins a segment of its
// own, and a reader sees the gap; an empty segment is not left behind.
func (s *stream) lose(n int) {
	s.lost += int64(n)
	s.end += int64(n)
	if s.file < 0 {
		return
	}
	_ = syscall.Close(s.file)
	s.file = -1
	if s.last().size == 0 {
		system.RemoveAt(s.dir, initwire.SegmentName(s.name, s.last().offset))
		s.segments = s.segments[:len(s.segments)-1]
	}
}
