package output

import (
	"os"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Stream keeps one stream of the command: a pipe on one side, segment files on the other. The loop
// reads it by Take, until there is so much of it that it gets a goroutine of its own, which owns it
// until done is closed. A slow disk then holds up nothing else.
type Stream struct {
	dir   int
	name  string
	limit int64
	size  int64 // of a full segment

	// FD is the pipe as long as Take reads it, else -1.
	FD   int
	pipe *system.Endpoint
	done chan struct{}

	// segments are on disk, oldest first. The last one is open as file.
	segments []segment
	file     int
	kept     int64
	// Disk and Brief are gates for the goroutine. The loop needs no slot.
	Disk, Brief system.Gate
	// end is the stream offset of the next byte.
	end int64
	// Lost is how many bytes the disk refused. It is final after Finish.
	Lost int64
}

// segment is a file with some of a stream: where in the stream it begins, and how many bytes it
// holds.
type segment struct{ offset, size int64 }

// Bounds of reading.
const (
	// Sizes of a read. The larger one is what a pipe holds.
	smallRead = 4 << 10
	largeRead = 64 << 10
	// muchOutput is how many bytes a stream has printed when it gets a goroutine of its own.
	muchOutput = 64 << 10
)

// NewStream makes an empty one, without a pipe: segments in the directory dir begin with name and
// hold at most limit bytes.
func NewStream(dir int, name string, limit int64) *Stream {
	limit = max(limit, initwire.MinOutputLimit)
	return &Stream{dir: dir, name: name, limit: limit, size: initwire.SegmentSize(limit), FD: -1, file: -1}
}

// Take keeps what is in the pipe now, at most as much as buf holds.
func (s *Stream) Take(buf []byte) {
	n, err := syscall.Read(s.FD, buf)
	switch {
	case n > 0:
		s.write(buf[:n])
		if s.end >= muchOutput {
			s.follow(s.FD)
			s.FD = -1
		}
	case err == syscall.EAGAIN || err == syscall.EINTR:
	default:
		_ = syscall.Close(s.FD)
		s.FD = -1
	}
}

// follow starts the goroutine that keeps all that comes out of the pipe from now on.
func (s *Stream) follow(pipe int) {
	s.done = make(chan struct{})
	var err error
	if s.pipe, err = system.NewEndpoint(pipe, s.name, s.Brief); err != nil {
		close(s.done)
		return
	}
	go func() {
		defer close(s.done)
		size := smallRead
		buf := make([]byte, size)
		for {
			n, err := s.pipe.Read(buf)
			s.Disk.Enter()
			s.write(buf[:n])
			s.Disk.Leave()
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

// Finish ends the reading. If there is a goroutine, it has until the deadline to read the pipe to
// its end.
func (s *Stream) Finish(deadline time.Time) {
	if s.pipe != nil {
		_ = s.pipe.SetReadDeadline(deadline)
		<-s.done
	}
	if s.FD >= 0 {
		_ = syscall.Close(s.FD)
		s.FD = -1
	}
	if s.file >= 0 {
		_ = syscall.Close(s.file)
	}
}

// write keeps p. It never fails: what the disk refuses is lost and counted, because a full disk
// must not block or end the command.
func (s *Stream) write(p []byte) {
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

// last is the segment that is written.
func (s *Stream) last() *segment { return &s.segments[len(s.segments)-1] }

// put appends to the open segment and answers how much of p was written.
func (s *Stream) put(p []byte) int {
	n, err := system.FD(s.file).Write(p)
	if n > 0 {
		s.last().size += int64(n)
		s.kept += int64(n)
		s.end += int64(n)
	}
	_ = err
	return n
}

// roll opens the next segment. It does so before an old one is deleted, so that a reader always
// finds the end of the stream.
func (s *Stream) roll() bool {
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

// dropOldest deletes the oldest segment.
func (s *Stream) dropOldest() {
	oldest := s.segments[0]
	s.segments = append(s.segments[:0], s.segments[1:]...)
	s.kept -= oldest.size
	system.RemoveAt(s.dir, initwire.SegmentName(s.name, oldest.offset))
}

// lose gives up n bytes. The next byte that can be written begins a segment of its own, so that a
// reader sees the gap. No empty segment is left behind.
func (s *Stream) lose(n int) {
	s.Lost += int64(n)
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
