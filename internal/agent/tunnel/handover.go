package tunnel

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwardFor is how long init may take to read what is sent to it first. The sender waits longer
// for its answer.
const forwardFor = 2 * time.Second

// Forward sends to init what came early, and what is still to come through conn of a body of size
// bytes. If whole, nothing of the body is to be sent any more; what init does not take because it
// has ended the connection is read and dropped, since the sender listens only after that. Else rest
// is to be sent first, and then what comes through conn.
func Forward(conn net.Conn, early []byte, inside net.Conn, size int64) (rest []byte, whole bool, err error) {
	until := time.Now().Add(forwardFor)
	_, _ = conn.SetReadDeadline(until), inside.SetWriteDeadline(until)
	defer func() { _, _ = conn.SetReadDeadline(time.Time{}), inside.SetWriteDeadline(time.Time{}) }()
	// Most requests come whole with their header: then no buffer is needed.
	var room []byte
	rest = early
	for missing := size - int64(len(early)); ; {
		if err == nil && len(rest) > 0 {
			var n int
			n, err = inside.Write(rest)
			if rest = rest[n:]; errors.Is(err, os.ErrDeadlineExceeded) {
				return rest, false, err
			}
		}
		rest = nil
		if missing <= 0 {
			return nil, true, err
		}
		if room == nil {
			room = make([]byte, min(missing, maxBucket))
		}
		n, rerr := conn.Read(room[:min(missing, int64(len(room)))])
		rest = room[:n]
		missing -= int64(n)
		if rerr != nil {
			return rest, false, errors.Join(err, rerr)
		}
	}
}

// HandOver gives the connection to init away, as a descriptor with the answer. It is false if that
// cannot be done; nothing was said then.
func HandOver(conn, inside net.Conn, answer []byte) bool {
	to, local := conn.(*net.UnixConn)
	from, file := inside.(syscall.Conn)
	if !local || !file {
		return false
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	// The answer is small, and the first thing on this connection: it does not wait.
	_ = raw.Control(func(fd uintptr) { n, _, _ = to.WriteMsgUnix(answer, unix.UnixRights(int(fd)), nil) })
	return n > 0
}

// AwaitUnused returns when the peer to which a connection was handed over does not use it any more,
// or when ctx ends: the peer learns that from the end of conn.
func AwaitUnused(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var nothing [1]byte
	_, _ = conn.Read(nothing[:])
}
