// Package bridge is the far end of a connection that goes through a command: it
// connects to a unix socket and carries bytes between it and its own input and output.
//
// muster-node dial calls it, on hosts whose sshd forbids forwarding; the server's
// side of it is in package remote. It must never write anything but the greeting and the socket's bytes to its output.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Verb is the argument by which muster-node comes here, followed by the path of the socket.
	Verb = "dial"
	// Greeting is written once connected. What comes before it on the output is a login shell's.
	Greeting = "muster-node dial 1\n"
)

// Exit statuses of the command, as in sysexits.h.
const (
	ExitMissing = 66 // there is no such socket
	ExitRefused = 69 // nobody listens there
	ExitDenied  = 77 // it is not for this user
)

// Exit is the status that a command should end with after Run returned err.
func Exit(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, fs.ErrNotExist):
		return ExitMissing
	case errors.Is(err, fs.ErrPermission):
		return ExitDenied
	case errors.Is(err, syscall.ECONNREFUSED):
		return ExitRefused
	}
	return 1
}

// Run connects to the socket and carries bytes until both directions have ended. When the socket's side ends, all
// of outputs are closed: sshd tells the end only when both stdout and stderr are. The first of them gets the bytes.
func Run(ctx context.Context, path string, in io.Reader, outputs ...io.WriteCloser) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	socket := conn.(*net.UnixConn) // of a dial of "unix" it is one
	defer func() { _ = socket.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	if _, err := io.WriteString(outputs[0], Greeting); err != nil {
		return err
	}
	there := make(chan struct{})
	go func() {
		defer close(there)
		// An error here only says that the socket does not listen any more.
		_, _ = io.Copy(socket, in)
		_ = socket.CloseWrite()
	}()
	_, err = io.Copy(outputs[0], socket)
	for _, o := range outputs {
		_ = o.Close()
	}
	if err != nil {
		return err // nobody is there to be written to: what the input still has is of no use either
	}
	// The socket's side may still listen. If it has closed altogether, whoever is at the other end must hear of it:
	// between it and us a sudo may hold the outputs open for as long as we live.
	for {
		select {
		case <-there:
			return nil
		default:
		}
		if gone, err := hungUp(socket, lookEvery); gone || err != nil {
			return err
		}
	}
}

// lookEvery bounds how long a bridge outlives its input when the socket's side listens in silence.
const lookEvery = 100 * time.Millisecond

// hungUp waits a while for the other side to close altogether.
func hungUp(socket *net.UnixConn, wait time.Duration) (gone bool, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false, err
	}
	var n int
	var polled error
	err = raw.Control(func(fd uintptr) {
		n, polled = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(wait/time.Millisecond)) // no events: hang-up is always told
	})
	if errors.Is(polled, unix.EINTR) {
		polled = nil
	}
	return n > 0, errors.Join(err, polled)
}
