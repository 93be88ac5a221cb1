package system

import (
	"io"
	"syscall"
)

// FD reads and writes a blocking descriptor without the runtime's poller, whose set-up would cost
// more than these few calls.
type FD int

// Read reads some bytes; io.EOF at the end.
func (f FD) Read(p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(f), p)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write writes all of p, or says why not.
func (f FD) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := syscall.Write(int(f), p[done:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
