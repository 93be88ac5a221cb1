package sandbox

import (
	"strconv"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// conn is one connection with its one operation.
type conn struct {
	fd int
	// in is what has come of the request.
	in []byte
	// deadline is when the request must be whole; zero once it is.
	deadline time.Time
	// waits for the end of the sandbox.
	waits bool
}

// accept takes one connection. Its request is nearly always there already.
func (s *sandbox) accept() {
	fd, _, err := syscall.Accept4(s.listener, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
	switch err {
	case nil:
		s.conns = append(s.conns, &conn{fd: fd, deadline: time.Now().Add(initwire.RequestTime)})
		s.attend(len(s.conns)-1, true)
	case syscall.EAGAIN, syscall.EINTR, syscall.ECONNABORTED:
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS:
		time.Sleep(10 * time.Millisecond) // passing; the next try would be at once
	default:
		_ = syscall.Close(s.listener)
		s.listener = -1
	}
}

// attend reads of the i-th connection if there is something, and drops it when nothing more is to
// be done.
func (s *sandbox) attend(i int, ready bool) {
	c := s.conns[i]
	done := false
	switch {
	case ready:
		done = s.read(c)
	case !c.deadline.IsZero():
		done = !time.Now().Before(c.deadline)
	}
	if done {
		s.drop(i)
	}
}

func (s *sandbox) drop(i int) {
	if fd := s.conns[i].fd; fd >= 0 {
		_ = syscall.Close(fd)
	}
	s.conns = append(s.conns[:i], s.conns[i+1:]...)
}

// read takes what came on a connection; done if the connection is.
func (s *sandbox) read(c *conn) (done bool) {
	n, err := syscall.Read(c.fd, s.scratch)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		return false
	case err != nil || n == 0:
		return true // the client has left
	case c.waits:
		return true // nothing more was to come
	}
	c.in = append(c.in, s.scratch[:n]...)
	kind, fields, whole, err := initwire.CutFrame(c.in, c.limit())
	if err != nil {
		return true
	}
	if !whole {
		return false
	}
	rest := c.in[5+len(fields):]
	c.in, c.deadline = nil, time.Time{}
	if longer(kind) {
		s.handOver(c, kind, fields, rest)
		return true
	}
	return s.answer(c, kind, fields)
}

// answer serves the one operation of a connection; not done if the answer comes later.
func (s *sandbox) answer(c *conn, kind initwire.Kind, fields []byte) (done bool) {
	switch kind {
	case initwire.KindStatus:
		s.reply(c, initwire.KindState, s.state().Fields())
	case initwire.KindWait:
		if !s.over {
			c.waits = true
			return false
		}
		s.reply(c, initwire.KindState, s.state().Fields())
	case initwire.KindStop:
		grace, err := initwire.ParseNumber(fields)
		if err != nil {
			s.refuse(c, "stop: "+err.Error())
			break
		}
		s.stop(time.Duration(grace))
		s.reply(c, initwire.KindDone, nil)
	case initwire.KindSignal:
		s.answerSignal(c, fields)
	default:
		s.refuse(c, "no operation of kind "+strconv.Itoa(int(kind)))
	}
	return true
}

func (s *sandbox) answerSignal(c *conn, fields []byte) {
	n, err := initwire.ParseNumber(fields)
	if err != nil || n < 1 || n > 64 {
		s.refuse(c, "no signal has the number "+strconv.FormatInt(n, 10))
		return
	}
	switch sent, err := s.signal(syscall.Signal(n)); {
	case err != nil:
		s.refuse(c, "signal "+strconv.FormatInt(n, 10)+": "+err.Error())
	case !sent:
		s.refuse(c, "the command has ended")
	default:
		s.reply(c, initwire.KindDone, nil)
	}
}

// answerWaiting tells everybody who waits for the end.
func (s *sandbox) answerWaiting() {
	for i := len(s.conns) - 1; i >= 0; i-- {
		if c := s.conns[i]; c.waits {
			s.reply(c, initwire.KindState, s.state().Fields())
			s.drop(i)
		}
	}
}

// quiet finishes with those who are connected, within a bounded time.
func (s *sandbox) quiet() {
	late := time.Now().Add(answerTime)
	for len(s.conns) > 0 && time.Now().Before(late) {
		s.turn(late)
	}
}

// reply answers. The frame is small and the only one: it fits into the connection's buffer, or the
// client is none that wants it.
func (s *sandbox) reply(c *conn, kind initwire.Kind, fields []byte) {
	_ = initwire.WriteFrame(system.FD(c.fd), kind, fields)
}

func (s *sandbox) refuse(c *conn, why string) {
	s.reply(c, initwire.KindRefused, initwire.TextFields(why))
}
