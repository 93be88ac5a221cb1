package system

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Endpoint is a descriptor that does not block: a socket, a pipe or a terminal. Reads and writes
// wait in the runtime's poller, and their system calls are raw, see threads.go. Several goroutines
// may use one.
type Endpoint struct {
	file *os.File
	raw  syscall.RawConn
	// Brief is the gate for short system calls on it, which the caller of Control enters where the
	// call wakes another process.
	Brief  Gate
	closed atomic.Bool
	// use is held for reading by whoever uses the descriptor, so that Close closes it itself and
	// not the last user, who has no slot.
	use sync.RWMutex
}

// NewEndpoint takes a descriptor that does not block, and closes it if it fails. The name is for
// errors only.
func NewEndpoint(fd int, name string, brief Gate) (*Endpoint, error) {
	file := os.NewFile(uintptr(fd), name)
	l, err := EndpointOf(file, brief)
	if err != nil {
		_ = file.Close()
	}
	return l, err
}

// EndpointOf takes a file that does not block. After an error the file stays the caller's.
func EndpointOf(file *os.File, brief Gate) (*Endpoint, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Endpoint{file: file, raw: raw, Brief: brief}, nil
}

// SetDeadline sets when reads and writes fail with os.ErrDeadlineExceeded; zero: never.
func (l *Endpoint) SetDeadline(at time.Time) error { return l.file.SetDeadline(at) }

// SetReadDeadline is SetDeadline for reads only.
func (l *Endpoint) SetReadDeadline(at time.Time) error { return l.file.SetReadDeadline(at) }

// SetWriteDeadline is SetDeadline for writes only.
func (l *Endpoint) SetWriteDeadline(at time.Time) error { return l.file.SetWriteDeadline(at) }

// using runs f with the descriptor, unless it is closed.
func (l *Endpoint) using(f func() error) error {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed.Load() {
		return os.ErrClosed
	}
	return f()
}

// WhenReadable calls try until it answers true, each time that there may be something to read.
func (l *Endpoint) WhenReadable(try func(fd uintptr) bool) error {
	return l.using(func() error { return l.raw.Read(try) })
}

// WhenWritable calls try until it answers true, each time that there may be room to write.
func (l *Endpoint) WhenWritable(try func(fd uintptr) bool) error {
	return l.using(func() error { return l.raw.Write(try) })
}

// Control calls f with the descriptor. f must not block.
func (l *Endpoint) Control(f func(fd uintptr)) error {
	return l.using(func() error { return l.raw.Control(f) })
}

// Read reads what there is, at least one byte.
func (l *Endpoint) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	waited := l.WhenReadable(func(fd uintptr) bool {
		n, err = RawRead(fd, p)
		return err != syscall.EAGAIN
	})
	switch {
	case waited != nil:
		return 0, waited
	case err == nil && n == 0:
		return 0, io.EOF
	}
	return n, err
}

// Write writes all of p. What several goroutines write does not mix.
func (l *Endpoint) Write(p []byte) (n int, err error) {
	waited := l.WhenWritable(func(fd uintptr) bool {
		for n < len(p) && err == nil {
			var some int
			if some, err = rawWrite(fd, p[n:]); err == syscall.EAGAIN {
				err = nil
				return false
			}
			n += some
		}
		return true
	})
	if err == nil {
		err = waited
	}
	return n, err
}

// Close ends all waiting and closes the descriptor once nobody uses it. Called again, it does
// nothing.
func (l *Endpoint) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	_ = l.file.SetDeadline(time.Unix(1, 0))
	l.use.Lock()
	defer l.use.Unlock()
	l.Brief.Enter()
	defer l.Brief.Leave()
	return l.file.Close()
}

// RawRead reads from a descriptor that does not block.
func RawRead(fd uintptr, p []byte) (int, error) { return rawTransfer(syscall.SYS_READ, fd, p) }

// rawWrite writes to one.
func rawWrite(fd uintptr, p []byte) (int, error) { return rawTransfer(syscall.SYS_WRITE, fd, p) }

func rawTransfer(call, fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
