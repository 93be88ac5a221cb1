package sandbox

import (
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

const (
	// lookAgain is how long after the last event we look for dead orphans once more: one whose
	// signal came between a look and the wait after it was not seen.
	lookAgain = 100 * time.Millisecond
	// lookOften is how often we look if this is not the main thread: SIGCHLD goes there first.
	// Locking ourselves to it would cost a thread more; and only where a stream has a goroutine of
	// its own can we ever leave it.
	lookOften = time.Second
	// scratchSize is the size of the buffer that all reading shares.
	scratchSize = 4 << 10
)

// Places in the list of what is waited for; connections follow.
const (
	atCommand = iota
	atStdout
	atStderr
	atListener
	atDeaths
	atConns
)

// turn waits until something happens or until comes (zero: it never does), and deals with it. It
// tells whether the command has ended, which is for the caller to deal with.
//
// Everything here is done by this one goroutine, in one thread: goroutines with the runtime's
// poller under them cost a tenth of the start of a sandbox. Only a stream with much output gets its
// own.
func (s *sandbox) turn(until time.Time) (ended bool) {
	fds := append(s.fds[:0],
		system.PollFD{FD: int32(s.pidfd), Events: system.PollIn},
		system.PollFD{FD: int32(s.stdout.FD), Events: system.PollIn},
		system.PollFD{FD: int32(s.stderr.FD), Events: system.PollIn},
		system.PollFD{FD: -1, Events: system.PollIn},
		system.PollFD{FD: int32(s.execs.Deaths()), Events: system.PollIn})
	if len(s.conns) < initwire.MaxConns {
		fds[atListener].FD = int32(s.listener)
	}
	for _, c := range s.conns {
		fds = append(fds, system.PollFD{FD: int32(c.fd), Events: system.PollIn})
	}
	s.fds = fds
	some, err := system.Poll(fds, s.patience(until))
	if err != nil {
		s.crash("poll: " + err.Error())
	}
	s.busy = some
	if fds[atStdout].Revents != 0 {
		s.stdout.Take(s.scratch)
	}
	if fds[atStderr].Revents != 0 {
		s.stderr.Take(s.scratch)
	}
	// From the end, because those that are done with are taken out.
	for i := len(s.conns) - 1; i >= 0; i-- {
		s.attend(i, fds[atConns+i].Revents != 0)
	}
	if fds[atListener].Revents != 0 {
		s.accept()
	}
	s.fire()
	if s.reap() {
		s.busy = true
	}
	return fds[atCommand].Revents != 0
}

// patience is how long to wait for the next event; negative: for ever.
func (s *sandbox) patience(until time.Time) time.Duration {
	if s.busy && (until.IsZero() || time.Until(until) > lookAgain) {
		until = time.Now().Add(lookAgain)
	}
	if until.IsZero() && syscall.Gettid() != syscall.Getpid() {
		until = time.Now().Add(lookOften)
	}
	sooner := func(t time.Time) {
		if !t.IsZero() && (until.IsZero() || t.Before(until)) {
			until = t
		}
	}
	if !s.ended {
		sooner(s.limitAt)
		if s.killArmed {
			sooner(s.killAt)
		}
	}
	for _, c := range s.conns {
		sooner(c.deadline)
	}
	if until.IsZero() {
		return -1
	}
	return max(time.Until(until), 0)
}

// fire does what is due.
func (s *sandbox) fire() {
	if s.ended || s.limitAt.IsZero() && !s.killArmed {
		return
	}
	now := time.Now()
	if !s.limitAt.IsZero() && !now.Before(s.limitAt) {
		s.limitAt = time.Time{}
		s.timeOut()
	}
	if s.killArmed && !now.Before(s.killAt) {
		s.killArmed = false
		s.kill()
	}
}

// reap reaps every child that has died, but for the command.
func (s *sandbox) reap() (some bool) {
	command := 0
	if s.pidfd >= 0 {
		command = s.command.Pid
	}
	return s.execs.Reap(command)
}
