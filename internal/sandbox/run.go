package sandbox

import (
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Bounds of the end of a sandbox.
const (
	// leftoverTime is how long processes that outlived the command get to die from KILL.
	leftoverTime = 5 * time.Second
	// drainTime is how long the output may stay open after that: only a process
	// that is no descendant of ours can still hold it.
	drainTime = 2 * time.Second
	// answerTime is how long answers may take to those who wait for the end.
	answerTime = time.Second
)

// sandbox is one run of muster-init.
type sandbox struct {
	start   *initwire.Start
	command initwire.Process
	stdout  *stream
	stderr  *stream

	// over is closed when result is whole and written down.
	over chan struct{}
	// conns holds one entry for each connection that is being served.
	conns chan struct{}

	mu sync.Mutex
	// result grows: Started at once, Stopped or TimedOut when that happens, the rest at the end.
	result initwire.Result
	// ended: the command is dead and about to be reaped: its pid must not be signalled any more.
	ended bool
	// kill ends everything when it fires; killAt is when.
	kill   *time.Timer
	killAt time.Time
}

// Run is the life of one sandbox, from the descriptors that the agent left
// behind to the exit status of muster-init, which tells only whether it did its work.
func Run() int {
	for fd := initwire.FDControl; fd <= initwire.FDOutput; fd++ {
		if err := setCloseOnExec(fd); err != nil {
			say("muster-init is started by an agent: descriptor " + strconv.Itoa(fd) + " is missing\n")
			return 2
		}
	}
	closeFrom(initwire.FDOutput + 1)
	kind, fields, err := initwire.ReadFrame(fdStream(initwire.FDControl), initwire.MaxStart)
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
	s := &sandbox{start: start, over: make(chan struct{}), conns: make(chan struct{}, initwire.MaxConns)}
	if failed := s.begin(); failed != nil {
		record(failed.Line())
		_ = initwire.WriteFrame(fdStream(initwire.FDControl), initwire.KindFailed, failed.Fields())
		return 0
	}
	s.answerStarted()
	s.serve()
	s.watchTime()
	// Let the readers and the server run up to where they wait: with one
	// processor they would not before the runtime notices that wait blocks.
	runtime.Gosched()
	s.wait()
	s.finish()
	return 0
}

// answerStarted writes the command down before it tells the agent, so that
// whoever comes later finds it even if both of us die now.
func (s *sandbox) answerStarted() {
	record(initwire.ProcessLine("command", s.command, s.result.Started))
	started := initwire.Started{Command: s.command, At: s.result.Started}
	_ = initwire.WriteFrame(fdStream(initwire.FDControl), initwire.KindStarted, started.Fields())
	_ = syscall.Close(initwire.FDControl)
	if s.start.ShieldOOM {
		// Not −1000: if even the dead command's files in memory hold its limit, the
		// kernel must be able to end this sandbox.
		setOOMScore("-999")
	}
}

// watchTime arms the time limit.
func (s *sandbox) watchTime() {
	if s.start.Timeout <= 0 {
		return
	}
	time.AfterFunc(s.start.Timeout, func() {
		s.end(s.start.KillGrace, func(r *initwire.Result) bool {
			if r.Stopped {
				return false
			}
			r.TimedOut = true
			return true
		})
	})
}

// stop is what the operation Stop does.
func (s *sandbox) stop(grace time.Duration) {
	s.end(grace, func(r *initwire.Result) bool {
		r.Stopped = r.Stopped || !r.TimedOut
		return true
	})
}

// end asks the command to end and arms the kill; why notes the cause and says whether to go on.
func (s *sandbox) end(grace time.Duration, why func(*initwire.Result) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !why(&s.result) {
		return
	}
	if grace <= 0 {
		s.killLocked()
		return
	}
	at := time.Now().Add(grace)
	switch {
	case s.kill == nil:
		s.kill = time.AfterFunc(grace, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.killLocked()
		})
		s.killAt = at
		_ = syscall.Kill(-s.command.Pid, syscall.SIGTERM)
		// A stopped process does not see TERM before it goes on.
		_ = syscall.Kill(-s.command.Pid, syscall.SIGCONT)
	case at.Before(s.killAt):
		s.kill.Reset(grace)
		s.killAt = at
	}
}

func (s *sandbox) killLocked() {
	if !s.ended {
		_ = syscall.Kill(-s.command.Pid, syscall.SIGKILL)
	}
}

// signal sends a signal to the command's process group; false if it has ended.
func (s *sandbox) signal(sig syscall.Signal) (sent bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false, nil
	}
	return true, syscall.Kill(-s.command.Pid, sig)
}

// wait reaps orphans until the command has ended, and the command.
func (s *sandbox) wait() {
	for {
		// Seen first and reaped later: a process that is not yet reaped keeps its
		// pid, so nothing below can hit a stranger.
		pid, err := waitNext()
		if err != nil {
			s.crash("wait: " + err.Error())
			return
		}
		if pid != s.command.Pid {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			continue
		}
		ended := time.Now().UnixNano()
		s.mu.Lock()
		s.ended = true
		if s.kill != nil {
			s.kill.Stop()
		}
		s.mu.Unlock()
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &status, 0, nil)
		s.mu.Lock()
		s.result.Ended = ended
		if status.Signaled() {
			s.result.Signal = int(status.Signal())
		} else {
			s.result.Exit = status.ExitStatus()
		}
		s.mu.Unlock()
		return
	}
}

// crash leaves no result: the agent then sees a sandbox that died.
func (s *sandbox) crash(why string) {
	say(why + "\n")
	os.Exit(1)
}

// finish ends what the command left behind, waits for the rest of the output, and writes the result.
func (s *sandbox) finish() {
	leftovers := !endLeftovers(time.Now().Add(leftoverTime))
	deadline := time.Now().Add(drainTime)
	s.stdout.finish(deadline)
	s.stderr.finish(deadline)

	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage)
	s.mu.Lock()
	s.result.Leftovers = leftovers
	s.result.Lost = s.stdout.lost + s.stderr.lost
	s.result.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	s.result.Memory = usage.Maxrss << 10
	line := s.result.Line()
	s.mu.Unlock()
	record(line)
	close(s.over)

	s.quiet()
}

// state is a picture for Status and Wait.
func (s *sandbox) state() *initwire.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &initwire.State{
		Protocol: initwire.Protocol, Running: s.result.Ended == 0,
		Command: s.command, Result: s.result,
	}
}
