package remote

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// memConn is one end of a connection in memory: buffered, with deadlines, made of channels only, so that a bubble sees
// it wait. The SSH library needs the buffer: both sides of it write before they read.
type memConn struct {
	in, out *memPipe
	rd, wr  deadline
	closed  chan struct{}
	once    sync.Once
	peer    *memConn
}

// memPipe is one direction.
type memPipe struct {
	mu     sync.Mutex
	data   []byte
	ended  bool
	limit  int           // bytes that may pass; below 0: all
	atEnd  func()        // called when the limit is reached, else what comes vanishes
	wakeup chan struct{} // cap 1
}

func memPair() (*memConn, *memConn) {
	x, y := &memPipe{limit: -1, wakeup: make(chan struct{}, 1)}, &memPipe{limit: -1, wakeup: make(chan struct{}, 1)}
	a := &memConn{in: x, out: y, closed: make(chan struct{})}
	b := &memConn{in: y, out: x, closed: make(chan struct{})}
	a.peer, b.peer = b, a
	return a, b
}

// vanish lets nothing pass any more, in both directions, as when a cable is pulled.
func (c *memConn) vanish() {
	for _, p := range []*memPipe{c.in, c.out} {
		p.mu.Lock()
		p.limit = 0
		p.mu.Unlock()
	}
}

func (p *memPipe) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

func (p *memPipe) put(b []byte) {
	p.mu.Lock()
	var reached func()
	if p.limit >= 0 {
		if len(b) >= p.limit {
			b = b[:p.limit]
			reached, p.atEnd = p.atEnd, nil
		}
		p.limit -= len(b)
	}
	p.data = append(p.data, b...)
	p.mu.Unlock()
	p.wake()
	if reached != nil {
		reached()
	}
}

func (p *memPipe) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.wake()
}

func (p *memPipe) take(b []byte) (n int, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = copy(b, p.data)
	p.data = p.data[n:]
	if len(p.data) > 0 {
		p.wake()
	}
	return n, p.ended
}

func (c *memConn) Read(b []byte) (int, error) {
	for {
		select {
		case <-c.closed:
			return 0, net.ErrClosed
		case <-c.rd.wait():
			return 0, timeout{}
		default:
		}
		if n, ended := c.in.take(b); n > 0 {
			return n, nil
		} else if ended {
			return 0, io.EOF
		}
		select {
		case <-c.in.wakeup:
		case <-c.closed:
		case <-c.rd.wait():
		}
	}
}

func (c *memConn) Write(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-c.peer.closed:
		return 0, io.ErrClosedPipe
	case <-c.wr.wait():
		return 0, timeout{}
	default:
	}
	c.out.put(b)
	return len(b), nil
}

func (c *memConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.out.end()
	})
	return nil
}

func (c *memConn) LocalAddr() net.Addr                { return streamAddr("mem") }
func (c *memConn) RemoteAddr() net.Addr               { return streamAddr("mem") }
func (c *memConn) SetReadDeadline(t time.Time) error  { c.rd.set(t); return nil }
func (c *memConn) SetWriteDeadline(t time.Time) error { c.wr.set(t); return nil }
func (c *memConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

type timeout struct{}

func (timeout) Error() string   { return "i/o timeout" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
