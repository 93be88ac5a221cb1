package remote

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// quickAck acknowledges at once what was read. sshd turns Nagle's algorithm off only for sessions that run something:
// on a connection that only forwards, its next small packet waits for our
// acknowledgement, and ours waits 40 ms for something to ride on. The kernel forgets the
// setting by itself, so that it is set after each read.
func quickAck(c syscall.RawConn) {
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	})
}
