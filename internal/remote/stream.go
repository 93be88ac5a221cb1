package remote

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// A read or write of the library cannot be interrupted, so that it works on a buffer of ours. The buffer
	// grows with what comes and shrinks again: there are thousands of idle streams.
	leastBuffer = 512
	mostBuffer  = 64 << 10
)

// stream is a channel as a net.Conn: with deadlines, and a Close that never waits. What
// is given to one Write stays together, except that a deadline may cut it off: what Write says was written then is what
// our buffer took, and that is sent before anything else, as a kernel's socket does it.
type stream struct {
	conn   *Conn
	ch     ssh.Channel
	remote streamAddr
	closed chan struct{}

	mu       sync.Mutex
	isClosed bool // by us
	gone     bool // the peer has closed it too

	readBy  deadline
	reading chan struct{} // holds a token while nobody reads; it guards what follows
	rest    []byte        // was read and not asked for yet
	buffer  []byte
	small   int  // reads in a row that needed little of the buffer
	filling bool // a read of the library goes on
	readErr error
	filled  chan moved

	writeBy  deadline
	writing  chan struct{} // holds a token while nobody writes; it guards what follows
	out      []byte
	sending  bool // a write of the library goes on
	writeErr error
	written  chan error
}

// moved is the result of a read of the library.
type moved struct {
	n   int
	err error
}

type streamAddr string

func (streamAddr) Network() string  { return "ssh" }
func (a streamAddr) String() string { return string(a) }

// newStream makes a stream of a channel. What the host says of the channel goes to said, which is closed when it is gone.
func newStream(c *Conn, ch channel, remote string, said chan<- ending) *stream {
	s := &stream{
		conn: c, ch: ch.Channel, remote: streamAddr(c.config.Address + " " + remote), closed: make(chan struct{}),
		reading: make(chan struct{}, 1), filled: make(chan moved, 1),
		writing: make(chan struct{}, 1), written: make(chan error, 1),
	}
	s.reading <- struct{}{}
	s.writing <- struct{}{}
	go s.serve(ch.requests, said)
	return s
}

// serve ends when the channel is gone on both sides.
func (s *stream) serve(requests <-chan *ssh.Request, said chan<- ending) {
	listen(requests, said)
	s.mu.Lock()
	s.gone = true
	closed := s.isClosed
	s.mu.Unlock()
	if closed {
		s.conn.release(true)
	}
}

// Close lets go of the channel. What was written is still delivered; what comes is thrown away.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	s.isClosed = true
	gone := s.gone
	s.mu.Unlock()
	close(s.closed)
	if gone {
		s.conn.release(false)
		return nil
	}
	s.conn.leave()
	go s.drain()
	return nil
}

// drain closes the channel and waits for the peer to do so: a peer with unread data does it late.
func (s *stream) drain() {
	_ = s.ch.Close()
	<-s.reading // never given back: nobody reads any more
	if s.filling {
		<-s.filled
	}
	s.rest, s.buffer = nil, make([]byte, leastBuffer)
	for {
		// One reader at a time: the library wakes only one when the channel ends.
		if _, err := s.ch.Read(s.buffer); err != nil {
			return
		}
	}
}

func (s *stream) fault(op string, err error) error {
	if errors.Is(err, io.EOF) {
		if !s.conn.wire.broken.Load() {
			if op == "read" {
				return io.EOF
			}
			err = syscall.EPIPE
		} else {
			// To the library the end of the connection is the end of each stream: what was cut off must not look whole.
			err = s.conn.ended()
		}
	}
	return &net.OpError{Op: op, Net: s.remote.Network(), Addr: s.remote, Err: err}
}

// take waits for a token, until the stream is closed or the deadline passes.
func (s *stream) take(op string, token <-chan struct{}, by *deadline) error {
	late := by.wait()
	for _, over := range []struct {
		c   <-chan struct{}
		err error
	}{{s.closed, net.ErrClosed}, {late, os.ErrDeadlineExceeded}} {
		select {
		case <-over.c:
			return s.fault(op, over.err)
		default:
		}
	}
	select {
	case <-token:
		return nil
	case <-s.closed:
		return s.fault(op, net.ErrClosed)
	case <-late:
		return s.fault(op, os.ErrDeadlineExceeded)
	}
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.take("read", s.reading, &s.readBy); err != nil {
		return 0, err
	}
	defer func() { s.reading <- struct{}{} }()
	if len(p) == 0 {
		return 0, nil
	}
	if len(s.rest) == 0 && s.readErr == nil {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	if len(s.rest) == 0 {
		return 0, s.fault("read", s.readErr)
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// fill waits for the next bytes, or joins the wait that an earlier call has given up.
func (s *stream) fill() error {
	if !s.filling {
		if s.buffer == nil {
			s.buffer = make([]byte, leastBuffer)
		}
		s.filling = true
		go func(b []byte) {
			n, err := s.ch.Read(b)
			s.filled <- moved{n, err}
		}(s.buffer)
	}
	select {
	case m := <-s.filled:
		s.filling = false
		s.rest, s.readErr = s.buffer[:m.n], m.err
		s.resize(m.n)
		return nil
	case <-s.closed:
		return s.fault("read", net.ErrClosed)
	case <-s.readBy.wait():
		return s.fault("read", os.ErrDeadlineExceeded)
	}
}

// resize gives the next read a buffer that fits. The one that rest lies in is left alone.
func (s *stream) resize(n int) {
	size := len(s.buffer)
	switch {
	case n == size && size < mostBuffer:
		s.small, s.buffer = 0, make([]byte, min(4*size, mostBuffer))
	case n > size/8 || size == leastBuffer:
		s.small = 0
	default:
		if s.small++; s.small > 4 {
			s.small, s.buffer = 0, make([]byte, max(size/4, leastBuffer))
		}
	}
}

func (s *stream) Write(p []byte) (int, error) {
	if err := s.take("write", s.writing, &s.writeBy); err != nil {
		return 0, err
	}
	defer func() { s.writing <- struct{}{} }()
	total := 0
	for len(p) > 0 {
		if err := s.sent(); err != nil { // what an earlier call has left
			return total, err
		}
		size := min(len(p), mostBuffer)
		if cap(s.out) < size || cap(s.out) > 4*max(size, leastBuffer) {
			s.out = make([]byte, size)
		}
		out := s.out[:size]
		copy(out, p)
		s.send(func() error { _, err := s.ch.Write(out); return err })
		total, p = total+size, p[size:]
	}
	return total, s.sent()
}

// send begins a call of the library that may never end. The token of writing is held.
func (s *stream) send(call func() error) {
	s.sending = true
	go func() { s.written <- call() }()
}

// sent waits until nothing is being sent. Once that has failed, nothing can be sent any more.
func (s *stream) sent() error {
	if s.sending {
		select {
		case err := <-s.written:
			s.sending = false
			if err != nil {
				s.writeErr = s.fault("write", err)
			}
		case <-s.closed:
			return s.fault("write", net.ErrClosed)
		case <-s.writeBy.wait():
			return s.fault("write", os.ErrDeadlineExceeded)
		}
	}
	return s.writeErr
}

// CloseWrite tells the other side that nothing more comes; it can still be read.
func (s *stream) CloseWrite() error {
	if err := s.take("close-write", s.writing, &s.writeBy); err != nil {
		return err
	}
	defer func() { s.writing <- struct{}{} }()
	if err := s.sent(); err != nil {
		return err
	}
	s.send(s.ch.CloseWrite)
	err := s.sent()
	if s.writeErr == nil {
		s.writeErr = s.fault("write", net.ErrClosed)
	}
	return err
}

func (s *stream) LocalAddr() net.Addr  { return streamAddr("local") }
func (s *stream) RemoteAddr() net.Addr { return s.remote }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

func (s *stream) SetReadDeadline(t time.Time) error {
	s.readBy.set(t)
	return s.usable()
}

func (s *stream) SetWriteDeadline(t time.Time) error {
	s.writeBy.set(t)
	return s.usable()
}

func (s *stream) usable() error {
	select {
	case <-s.closed:
		return s.fault("set", net.ErrClosed)
	default:
		return nil
	}
}
