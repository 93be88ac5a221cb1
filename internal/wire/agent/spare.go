package agent

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// mostSpares is how many connections to an agent are opened ahead of the tunnels that they will become.
	mostSpares = 4
	// spareFor is how long one waits: less than an agent does for the first request.
	spareFor = 20 * time.Second
)

// spares are connections to an agent on which nothing was asked yet: dialling one costs a tenth of
// the time to reach a sandbox. There are some only while tunnels come and go, and only to agents on this machine, since only there is it known for sure, without
// asking, that the other side has not left.
type spares struct {
	mu     sync.Mutex
	idle   []spare // the newest last
	coming int
	closed bool
	// sweeping: a timer will look for those that waited for too long.
	sweeping bool
}

type spare struct {
	conn net.Conn
	at   time.Time
}

// take is one that is still good; nil if there is none.
func (s *spares) take() net.Conn {
	for {
		s.mu.Lock()
		n := len(s.idle)
		if n == 0 {
			s.mu.Unlock()
			return nil
		}
		newest := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		if time.Since(newest.at) < spareFor && silent(newest.conn) {
			return newest.conn
		}
		_ = newest.conn.Close()
	}
}

// add makes one more ready, later.
func (s *spares) add(dial func(context.Context) (net.Conn, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle)+s.coming >= mostSpares {
		return
	}
	s.coming++
	go func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), tunnelTimeout, errStalled)
		defer cancel()
		conn, err := dial(ctx)
		if !s.came(conn, err) && err == nil {
			_ = conn.Close()
		}
	}()
}

// came takes in a connection that was dialled; false if it is not wanted any more.
func (s *spares) came(conn net.Conn, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming--
	if err != nil || s.closed {
		return false
	}
	s.idle = append(s.idle, spare{conn, time.Now()})
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(spareFor, s.sweep)
	}
	return true
}

// sweep closes those that nobody has taken for long.
func (s *spares) sweep() {
	s.mu.Lock()
	n := 0
	for n < len(s.idle) && time.Since(s.idle[n].at) >= spareFor {
		n++
	}
	old := slices.Clone(s.idle[:n])
	s.idle = slices.Delete(s.idle, 0, n)
	if s.sweeping = len(s.idle) > 0; s.sweeping {
		time.AfterFunc(spareFor-time.Since(s.idle[0].at), s.sweep)
	}
	s.mu.Unlock()
	for _, x := range old {
		_ = x.conn.Close()
	}
}

func (s *spares) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	for _, x := range idle {
		_ = x.conn.Close()
	}
}

// silent reports whether nothing has come on a connection, its end neither.
func silent(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN
	})
	return err == nil && quiet
}
