package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// tunnelIdle ends a tunnel in which nothing moves: executions that say nothing for days are attached
// to again.
const tunnelIdle = 24 * time.Hour

// forwardFor is how long init may take for what is sent to it first before the one who sends it is answered: less than he waits.
const forwardFor = 2 * time.Second

// switching is the answer that makes a connection a tunnel, with another header line or none.
func switching(kills int64, more string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %d\r\n%s\r\n", wire.UpgradeInit, wire.HeaderOOMKills, kills, more)
}

// serveTunnel connects whoever asks to the init of a sandbox. What is said there is
// neither read nor believed here: bytes go both ways until either side ends. The request's
// body is what goes to init first. A server on this machine is handed the connection if it asks for that: the way through us, twice for
// each word, takes as long as what init does.
func (a *Agent) serveTunnel(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	if r.Header.Get("Upgrade") != wire.UpgradeInit {
		w.Header().Set("Upgrade", wire.UpgradeInit)
		fail(w, http.StatusUpgradeRequired, "ask with Connection: Upgrade and Upgrade: "+wire.UpgradeInit)
		return
	}
	b := a.holdRunning(w, al)
	if b == nil {
		return
	}
	defer a.drop(al, b)
	ctx := r.Context()
	defer a.wake(ctx, al, b)()
	inside, err := contract.Connect(ctx, b.sandbox)
	if errors.Is(err, contract.ErrNoSandbox) {
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s: its sandbox has ended", al.id))
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		a.notListening(w, al)
		return
	}
	if err != nil {
		a.answerOr(w, nil, fmt.Errorf("allocation %s: %w", al.id, err))
		return
	}
	defer func() { _ = inside.Close() }()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		a.answerOr(w, nil, err)
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Time{})
	// Whoever starts an execution by this tunnel tells by the count what was before it, so nothing may go in earlier.
	kills := contract.OOMKills(b.sandbox)
	// What came with the request goes first: init is at work while the rest is made ready. Where the connection is given away
	// nobody is left to send on what comes after.
	give := r.Header.Get(wire.HeaderHandOver) != "" && r.ContentLength >= 0
	size := int64(0)
	if give {
		size = r.ContentLength
	}
	early, _ := buffered.Peek(buffered.Reader.Buffered())
	rest, whole, err := forward(conn, early, inside, size)
	if err != nil {
		a.log.Debug("tunnel", "alloc", al.id, "error", err) // init may have said why: that is carried
	}
	if give && whole && handOver(conn, inside, switching(kills, wire.HeaderHandOver+": socket\r\n")) {
		_ = inside.Close()
		inUse(ctx, conn)
		return
	}
	if _, err := conn.Write(switching(kills, "")); err != nil {
		return
	}
	// Not what was buffered goes on to read: package http takes an end there for the end of the request, and of its context.
	carry(ctx, conn, io.MultiReader(bytes.NewReader(rest), conn), inside)
}

// forward sends to init what came early, and what is still to come through conn of a body of so many bytes. Whole: nothing of that is to be sent
// any more; what init does not take because it has ended the connection is read and dropped, since who sends it listens only
// after that. Else rest goes first of what is to be sent, and is followed by conn.
func forward(conn net.Conn, early []byte, inside net.Conn, size int64) (rest []byte, whole bool, err error) {
	until := time.Now().Add(forwardFor)
	_, _ = conn.SetReadDeadline(until), inside.SetWriteDeadline(until)
	defer func() { _, _ = conn.SetReadDeadline(time.Time{}), inside.SetWriteDeadline(time.Time{}) }()
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

// handOver gives the connection to init away, as a descriptor with the answer. False: nothing was said, and it cannot be done.
func handOver(conn, inside net.Conn, answer []byte) bool {
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

// inUse returns when whoever was handed a connection does not use it any more, or when ctx ends: who uses it is told so by the end of conn.
func inUse(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var nothing [1]byte
	_, _ = conn.Read(nothing[:])
}

// notListening answers for an init that takes nobody in: most often it is about to end, and nobody has seen that yet.
func (a *Agent) notListening(w http.ResponseWriter, al *alloc) {
	a.mu.Lock()
	stopping := al.stopping || al.ended
	a.mu.Unlock()
	if stopping {
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s is being stopped", al.id))
		return
	}
	fail(w, http.StatusServiceUnavailable, fmt.Sprintf("allocation %s: its init does not listen; its sandbox may be about to end", al.id))
}

// holdRunning is a use of the allocation's sandbox, or answers why there is none.
func (a *Agent) holdRunning(w http.ResponseWriter, al *alloc) *box {
	b := a.hold(al)
	switch {
	case b == nil && isClosed(al.done):
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s has ended", al.id))
	case b == nil:
		fail(w, http.StatusConflict, fmt.Sprintf("allocation %s does not run yet", al.id))
	case isClosed(b.sandbox.Done()):
		a.drop(al, b)
		fail(w, http.StatusGone, fmt.Sprintf("allocation %s has ended", al.id))
		return nil
	}
	return b
}

// carry moves bytes between the two until either has ended both directions, breaks, or ctx ends. What comes from conn is read by from.
func carry(ctx context.Context, conn net.Conn, from io.Reader, inside net.Conn) {
	defer context.AfterFunc(ctx, func() {
		_ = conn.Close()
		_ = inside.Close()
	})()
	var wg sync.WaitGroup
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

// lookAfter is how often who waits for one side to take something looks whether the other is still there.
const lookAfter = 2 * time.Second

var errLeft = errors.New("the other side has left")

// patient writes for as long as it takes, but not for one who has left: what is
// not read hides the end behind it, and a program that never takes its input would keep its tunnel for ever.
type patient struct{ dst, from net.Conn }

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
	gone := false
	err = raw.Control(func(fd uintptr) {
		look := []unix.PollFd{{Fd: int32(fd)}} // HUP and ERR are always told
		n, err := unix.Poll(look, 0)
		gone = err == nil && n > 0 && look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// pour moves bytes until src ends, which is no error. Its deadline is kept ahead on from, which is where src reads.
func pour(dst io.Writer, src io.Reader, from net.Conn) error {
	var b bucket
	var renew time.Time
	for {
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

// Sizes of buckets: most tunnels are executions that say a line now and then, some are files, for which each
// call of the kernel should carry much.
const (
	minBucket = 4 << 10
	maxBucket = 128 << 10
	// shrinkAfter is how many small loads in a row make a large bucket a small one again.
	shrinkAfter = 16
)

// bucket is a buffer of the size that its loads have.
type bucket struct {
	b     []byte
	small int
}

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

func (a *Agent) serveStats(w http.ResponseWriter, r *http.Request) {
	al := a.lookup(w, r)
	if al == nil {
		return
	}
	b := a.holdRunning(w, al)
	if b == nil {
		return
	}
	defer a.drop(al, b)
	u := b.sandbox.Usage()
	answer(w, http.StatusOK, wire.Stats{
		At: muster.At(time.Now()), CPUMicros: u.CPU.Microseconds(), Memory: u.Memory, Pids: u.Pids, PidsMax: u.PidsMax, Disk: u.Disk, DiskMax: u.DiskMax, OOMKills: u.OOMKills,
	})
}
