package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tunnelIdle ends a tunnel in which nothing moves. A client attaches again to an execution that
// says nothing for days.
const tunnelIdle = 24 * time.Hour

// Carry moves bytes between conn and inside until either has ended both directions or breaks, or
// ctx ends. It reads from what comes from conn.
func Carry(ctx context.Context, conn net.Conn, from io.Reader, inside net.Conn) {
	defer context.AfterFunc(ctx, func() {
		_ = conn.Close()
		_ = inside.Close()
	})()
	var wg sync.WaitGroup
	// one carries one direction. An end of src ends this direction only; anything else ends both.
	one := func(dst net.Conn, src io.Reader, from net.Conn) {
		err := pour(&patient{dst: dst, from: from}, src, from)
		if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = dst.Close()
		_ = from.Close()
	}
	wg.Go(func() { one(inside, from, conn) })
	wg.Go(func() { one(conn, inside, inside) })
	wg.Wait()
}

// lookAfter is how often a writer that waits for one side to take bytes checks whether the other
// side is still there.
const lookAfter = 2 * time.Second

// errLeft ends a write for a side that has left.
var errLeft = errors.New("the other side has left")

// patient writes for as long as it takes, unless the side that the bytes come from has left. A
// plain write would not notice that: unread bytes hide the end behind them, and a program that
// never takes its input would keep its tunnel for ever.
type patient struct{ dst, from net.Conn }

// Write writes all of b, or fails because either side is gone.
func (p *patient) Write(b []byte) (int, error) {
	done := 0
	for {
		_ = p.dst.SetWriteDeadline(time.Now().Add(lookAfter))
		n, err := p.dst.Write(b[done:])
		done += n
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
		if left(p.from) {
			return done, errLeft
		}
	}
}

// left reports whether the peer of a connection has closed it altogether, whatever is still unread.
func left(conn net.Conn) bool {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	// A poll tells of a peer that has closed both directions without reading what is before that.
	gone := false
	err = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd)}} // HUP and ERR are always told
		n, err := unix.Poll(look, 0)
		gone = err == nil && n > 0 && look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// pour moves bytes until src ends, which is no error. It keeps the read deadline of from, the
// connection that src reads, ahead by tunnelIdle.
func pour(dst io.Writer, src io.Reader, from net.Conn) error {
	var b bucket
	var renew time.Time
	for {
		// Setting a deadline costs a little, so it is not done for each piece.
		if now := time.Now(); now.After(renew) {
			_ = from.SetReadDeadline(now.Add(tunnelIdle))
			renew = now.Add(tunnelIdle / 100)
		}
		room := b.room()
		n, err := src.Read(room)
		if n > 0 {
			if _, err := dst.Write(room[:n]); err != nil {
				return err
			}
			b.took(n)
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// Sizes of buckets. Most tunnels are executions that say a line now and then; some carry files, for
// which each system call should move much.
const (
	minBucket = 4 << 10
	maxBucket = 128 << 10
	// shrinkAfter is how many small loads in a row make a large bucket a small one again.
	shrinkAfter = 16
)

// bucket is a buffer that grows and shrinks with what it is used for.
type bucket struct {
	b []byte
	// small counts the small loads in a row.
	small int
}

// room is where the next load goes.
func (b *bucket) room() []byte {
	if b.b == nil {
		b.b = make([]byte, minBucket)
	}
	return b.b
}

// took is told how much the last load was.
func (b *bucket) took(n int) {
	switch {
	case n == len(b.b) && n < maxBucket:
		b.b, b.small = make([]byte, min(8*n, maxBucket)), 0
	case n > minBucket:
		b.small = 0
	case len(b.b) > minBucket:
		if b.small++; b.small >= shrinkAfter {
			b.b, b.small = nil, 0
		}
	}
}
