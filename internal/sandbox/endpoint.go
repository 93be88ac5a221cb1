package sandbox

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// endpoint is a descriptor that does not block: a socket, a pipe or a terminal. Reads and writes wait in the runtime's poller,
// and their system calls are raw, see threads.go.
type endpoint struct {
	file   *os.File
	raw    syscall.RawConn
	brief  gate
	closed atomic.Bool
	// use is held for reading by whoever uses the descriptor, so that Close closes it itself and not the last user, who has no slot.
	use sync.RWMutex
}

func newEndpoint(fd int, name string, brief gate) (*endpoint, error) {
	file := os.NewFile(uintptr(fd), name)
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return &endpoint{file: file, raw: raw, brief: brief}, nil
}

// using runs f with the descriptor, unless it is closed.
func (l *endpoint) using(f func() error) error {
	l.use.RLock()
	defer l.use.RUnlock()
	if l.closed.Load() {
		return os.ErrClosed
	}
	return f()
}

// whenReadable calls try until it answers true, each time that there may be something to read.
func (l *endpoint) whenReadable(try func(fd uintptr) bool) error {
	return l.using(func() error { return l.raw.Read(try) })
}

// control calls f with the descriptor. f must not block.
func (l *endpoint) control(f func(fd uintptr)) error {
	return l.using(func() error { return l.raw.Control(f) })
}

// Read reads what there is, at least one byte.
func (l *endpoint) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	waited := l.whenReadable(func(fd uintptr) bool {
		n, err = rawRead(fd, p)
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
func (l *endpoint) Write(p []byte) (n int, err error) {
	waited := l.using(func() error {
		return l.raw.Write(func(fd uintptr) bool {
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
	})
	if err == nil {
		err = waited
	}
	return n, err
}

// Close ends all waiting and closes the descriptor once nobody uses it. Called again, it does nothing.
func (l *endpoint) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	_ = l.file.SetDeadline(time.Unix(1, 0))
	l.use.Lock()
	defer l.use.Unlock()
	l.brief.enter()
	defer l.brief.leave()
	return l.file.Close()
}

// rawRead reads from a descriptor that does not block.
func rawRead(fd uintptr, p []byte) (int, error) { return rawTransfer(syscall.SYS_READ, fd, p) }

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
