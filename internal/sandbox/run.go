package sandbox

import (
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/execs"
	"github.com/musterhq/muster/internal/sandbox/output"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Bounds of the end of a sandbox.
const (
	// leftoverTime is how long processes that outlived the command get to die from KILL.
	leftoverTime = 5 * time.Second
	// drainTime is how long the output may stay open after that: only a process that is no
	// descendant of ours can still hold it.
	drainTime = 2 * time.Second
	// answerTime is how long answers may take to those who wait for the end.
	answerTime = time.Second
)

// sandbox is one run of muster-init. One goroutine owns all of it, see turn.
type sandbox struct {
	start   *initwire.Start
	command initwire.Process
	// pidfd of the command; -1 once it was reaped.
	pidfd  int
	stdout *output.Stream
	stderr *output.Stream

	// result grows: Started at once, Stopped or TimedOut when that happens, the rest at the end.
	result initwire.Result
	// ended: the command is dead and about to be reaped: its pid must not be signalled any more.
	ended bool
	// over: result is whole and written down.
	over bool
	// limitAt is the time limit; zero: none, or it has fired.
	limitAt time.Time
	// killAt is when everything is killed, once somebody has asked for the end; killArmed until
	// that has happened.
	killAt    time.Time
	killArmed bool

	listener int // -1: closed
	conns    []*conn
	fds      []system.PollFD
	scratch  []byte
	// busy: something happened in the last turn.
	busy bool

	// env is the command's environment, its variables parted by zero bytes: executions get it.
	env string
	// execs are the executions.
	execs execs.Executions
	// operations is how many connections have left the loop and are not over.
	operations atomic.Int32
	// serving: the process is prepared for operations.
	serving bool
	gates   system.Gates
}

// Run is the life of one sandbox, from the descriptors that the agent left behind to the exit
// status of muster-init, which tells only whether it did its work.
func Run() int {
	for fd := initwire.FDControl; fd <= initwire.FDOutput; fd++ {
		if err := setCloseOnExec(fd); err != nil {
			say("muster-init is started by an agent: descriptor " + strconv.Itoa(fd) + " is missing\n")
			return 2
		}
	}
	closeFrom(initwire.FDOutput + 1)
	// Now, because the agent has things to do before it sends the start.
	system.StartThreads(system.StartedThreads)
	kind, fields, err := initwire.ReadFrame(system.FD(initwire.FDControl), initwire.MaxStart)
	if err == io.EOF {
		return 0 // the agent thought better of it, or died
	}
	if err != nil || kind != initwire.KindStart {
		say("no start from the agent\n")
		return 1
	}
	start, err := initwire.ParseStart(fields)
	if err != nil {
		say("start from the agent: " + err.Error() + "\n")
		return 1
	}
	s := &sandbox{start: start, pidfd: -1, listener: initwire.FDListener, scratch: make([]byte, scratchSize), busy: true, gates: system.NewGates()}
	if failed := s.begin(); failed != nil {
		record(failed.Line())
		_ = initwire.WriteFrame(system.FD(initwire.FDControl), initwire.KindFailed, failed.Fields())
		return 0
	}
	s.answerStarted()
	if start.Timeout > 0 {
		s.limitAt = time.Now().Add(start.Timeout)
	}
	s.wait()
	s.finish()
	return 0
}

// answerStarted writes the command down before it tells the agent, so that whoever comes later
// finds it even if both of us die now.
func (s *sandbox) answerStarted() {
	record(initwire.ProcessLine("command", s.command, s.result.Started))
	started := initwire.Started{Command: s.command, At: s.result.Started}
	_ = initwire.WriteFrame(system.FD(initwire.FDControl), initwire.KindStarted, started.Fields())
	_ = syscall.Close(initwire.FDControl)
	if s.start.ShieldOOM {
		// Not −1000: if even the dead command's files in memory hold its limit, the kernel must be
		// able to end this sandbox.
		system.SetOOMScore("self", "-999")
	}
}

// timeOut is what happens at the time limit.
func (s *sandbox) timeOut() {
	if !s.result.Stopped {
		s.result.TimedOut = true
		s.end(s.start.KillGrace)
	}
}

// stop is what the operation Stop does.
func (s *sandbox) stop(grace time.Duration) {
	if !s.ended {
		s.result.Stopped = s.result.Stopped || !s.result.TimedOut
		s.end(grace)
	}
}

// end asks the command to end and arms the kill. Asked again, the sooner kill counts.
func (s *sandbox) end(grace time.Duration) {
	if grace <= 0 {
		s.kill()
		return
	}
	at := time.Now().Add(grace)
	switch {
	case s.killAt.IsZero():
		s.killAt, s.killArmed = at, true
		stop := syscall.SIGTERM
		if s.start.StopSignal > 0 {
			stop = syscall.Signal(s.start.StopSignal)
		}
		_ = syscall.Kill(-s.command.Pid, stop)
		// A stopped process does not see TERM before it goes on.
		_ = syscall.Kill(-s.command.Pid, syscall.SIGCONT)
	case at.Before(s.killAt):
		s.killAt = at
	}
}

func (s *sandbox) kill() {
	if !s.ended {
		_ = syscall.Kill(-s.command.Pid, syscall.SIGKILL)
	}
}

// signal sends a signal to the command's process group; false if it has ended.
func (s *sandbox) signal(sig syscall.Signal) (sent bool, err error) {
	if s.ended {
		return false, nil
	}
	return true, syscall.Kill(-s.command.Pid, sig)
}

// wait serves everybody until the command has ended, and reaps it.
func (s *sandbox) wait() {
	for !s.turn(time.Time{}) {
	}
	s.result.Ended = time.Now().UnixNano()
	s.ended = true
	// It is dead and not reaped, so the group's number is still its own.
	_ = syscall.Kill(-s.command.Pid, syscall.SIGKILL)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(s.command.Pid, &status, 0, nil)
		if err == nil {
			break
		}
		if err != syscall.EINTR {
			s.crash("wait: " + err.Error())
		}
	}
	_ = syscall.Close(s.pidfd)
	s.pidfd = -1
	if status.Signaled() {
		s.result.Signal = int(status.Signal())
	} else {
		s.result.Exit = status.ExitStatus()
	}
}

// crash leaves no result: the agent then sees a sandbox that died.
func (s *sandbox) crash(why string) {
	say(why + "\n")
	os.Exit(1)
}

// finish ends what the command left behind, waits for the rest of the output, and writes the
// result.
func (s *sandbox) finish() {
	s.execs.Close(s.why())
	s.result.Leftovers = !s.endLeftovers(time.Now().Add(leftoverTime))
	deadline := time.Now().Add(drainTime)
	for (s.stdout.FD >= 0 || s.stderr.FD >= 0) && time.Now().Before(deadline) {
		s.turn(deadline)
	}
	s.stdout.Finish(deadline)
	s.stderr.Finish(deadline)

	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage)
	s.result.Lost = s.stdout.Lost + s.stderr.Lost
	s.result.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	s.result.Memory = usage.Maxrss << 10
	record(s.result.Line())
	s.over = true
	s.answerWaiting()
	s.quiet()
	s.execs.Conclude(drainTime)
}

// why is what ended everything else in the sandbox.
func (s *sandbox) why() string {
	switch {
	case s.result.Stopped:
		return "the sandbox was stopped"
	case s.result.TimedOut:
		return "the time limit of the sandbox is over"
	}
	return "the command of the sandbox has ended"
}

// state is a picture for Status and Wait.
func (s *sandbox) state() *initwire.State {
	return &initwire.State{
		Protocol: initwire.Protocol, Running: s.result.Ended == 0,
		Command: s.command, Result: s.result,
	}
}
