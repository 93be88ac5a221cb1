package sandbox

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// serve begins to take connections.
func (s *sandbox) serve() {
	listener := os.NewFile(initwire.FDListener, "init.sock")
	raw, err := listener.SyscallConn()
	if err != nil {
		return
	}
	go func() {
		defer func() { _ = listener.Close() }()
		for {
			conn, err := accept(raw)
			if err != nil {
				return
			}
			s.conns <- struct{}{}
			go func() {
				defer func() {
					_ = conn.Close()
					<-s.conns
				}()
				s.answer(conn)
			}()
		}
	}()
}

// quiet waits until no connection is being served, for a bounded time.
func (s *sandbox) quiet() {
	late := time.After(answerTime)
	for range cap(s.conns) {
		select {
		case s.conns <- struct{}{}:
		case <-late:
			return
		}
	}
}

// accept is the next connection. It waits in the poller, not in a thread.
func accept(listener syscall.RawConn) (conn *os.File, err error) {
	var fd int
	var failed error
	err = listener.Read(func(l uintptr) bool {
		fd, _, failed = syscall.Accept4(int(l), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
		switch failed {
		case syscall.EAGAIN:
			return false
		case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EINTR, syscall.ECONNABORTED:
			// Passing. The next try is made at once only for the last two; the others need a moment.
			if failed != syscall.EINTR && failed != syscall.ECONNABORTED {
				time.Sleep(10 * time.Millisecond)
			}
			failed = errAgain
		}
		return true
	})
	if err == nil {
		err = failed
	}
	if err == errAgain {
		return accept(listener)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "connection"), nil
}

var errAgain = errors.New("again")

// answer serves the one operation of a connection.
func (s *sandbox) answer(conn *os.File) {
	_ = conn.SetDeadline(time.Now().Add(initwire.RequestTime))
	kind, fields, err := initwire.ReadFrame(conn, initwire.MaxFrame)
	if err != nil {
		return
	}
	switch kind {
	case initwire.KindStatus:
		s.reply(conn, initwire.KindState, s.state().Fields())
	case initwire.KindWait:
		if s.waitWith(conn) {
			_ = conn.SetDeadline(time.Now().Add(initwire.RequestTime))
			s.reply(conn, initwire.KindState, s.state().Fields())
		}
	case initwire.KindStop:
		grace, err := initwire.ParseNumber(fields)
		if err != nil {
			s.refuse(conn, "stop: "+err.Error())
			return
		}
		s.stop(time.Duration(grace))
		s.reply(conn, initwire.KindDone, nil)
	case initwire.KindSignal:
		s.answerSignal(conn, fields)
	default:
		s.refuse(conn, "no operation of kind "+strconv.Itoa(int(kind)))
	}
}

func (s *sandbox) answerSignal(conn *os.File, fields []byte) {
	n, err := initwire.ParseNumber(fields)
	if err != nil || n < 1 || n > 64 {
		s.refuse(conn, "no signal has the number "+strconv.FormatInt(n, 10))
		return
	}
	switch sent, err := s.signal(syscall.Signal(n)); {
	case err != nil:
		s.refuse(conn, "signal "+strconv.FormatInt(n, 10)+": "+err.Error())
	case !sent:
		s.refuse(conn, "the command has ended")
	default:
		s.reply(conn, initwire.KindDone, nil)
	}
}

// waitWith waits for the end together with the client; false if the client left.
func (s *sandbox) waitWith(conn *os.File) bool {
	_ = conn.SetDeadline(time.Time{})
	left := make(chan struct{})
	go func() {
		defer close(left)
		// Nothing more is to come: this returns when the other side closes, or we do.
		var b [1]byte
		_, _ = conn.Read(b[:])
	}()
	select {
	case <-s.over:
		return true
	case <-left:
		return false
	}
}

func (s *sandbox) reply(conn *os.File, kind initwire.Kind, fields []byte) {
	_ = initwire.WriteFrame(conn, kind, fields)
}

func (s *sandbox) refuse(conn *os.File, why string) {
	s.reply(conn, initwire.KindRefused, initwire.TextFields(why))
}
