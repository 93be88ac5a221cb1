package initbox

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/boot"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// sandbox is one running or ended sandbox.
type sandbox struct {
	k       *Keeper
	dir     string
	record  *initwire.Sandbox
	init    initwire.Process
	started time.Time
	// pidfd is nil if init was found dead.
	pidfd *os.File

	done chan struct{}
	// result and usage are set before done is closed.
	result contract.Result
	usage  contract.Usage

	// ice holds a token: one at a time freezes it or lets it go on. freezer is its, once it was looked for.
	ice     chan struct{}
	freezer *cgroup.Freezer

	mu sync.Mutex
	// stopped: Stop was called before init was gone.
	stopped bool
	// flooded is why we ended it, see checkFlood.
	flooded string
	// cpu is the most that Usage has told: sources differ by a little, and it must not run backwards.
	cpu time.Duration
	// due is when we lose patience; zero = never.
	due time.Time
}

func newSandbox(k *Keeper, dir string, record *initwire.Sandbox, init initwire.Process) *sandbox {
	return &sandbox{k: k, dir: dir, record: record, init: init, done: make(chan struct{}), ice: make(chan struct{}, 1)}
}

// hold takes over a pidfd of init, which must not block.
func (s *sandbox) hold(pidfd int) error {
	s.pidfd = os.NewFile(uintptr(pidfd), "init of "+s.dir)
	if s.record.Timeout > 0 {
		s.due = time.Now().Add(s.record.Timeout + s.record.KillGrace + s.k.config.EndLimit - s.age())
	}
	if err := s.pidfd.SetReadDeadline(s.due); err != nil {
		_ = s.pidfd.Close()
		return NodeFault("watch init: %v", err)
	}
	return nil
}

// age is for how long the command has run. The wall clock may have been stepped since it was started: it counts only as far
// as the kernel agrees, which counts from boot.
func (s *sandbox) age() time.Duration {
	age := time.Since(s.started)
	if up, ok := boot.Uptime(); ok {
		age = min(age, up-time.Duration(s.init.Start)*(time.Second/userHZ))
	}
	return max(age, 0)
}

// userHZ is how many clock ticks of /proc make a second, on all architectures that we have programs for.
const userHZ = 100

// watch waits in the poller until init has ended, and concludes.
func (s *sandbox) watch() {
	for s.pidfd != nil {
		err := waitExit(s.pidfd)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.k.log.Warn("init is overdue, its sandbox is ended from outside", "alloc", s.record.Alloc, "dir", s.dir)
			s.patience(time.Now().Add(s.k.config.EndLimit), true)
			if err := KillAll(context.Background(), s.dir); err != nil {
				s.k.log.Error("a sandbox does not end", "alloc", s.record.Alloc, "error", err)
			}
			continue
		}
		if err != nil {
			return // closed: we are not to look any more
		}
		reap(s.pidfd)
		break
	}
	s.conclude()
	if s.k.config.Ended != nil && s.record.Owner != 0 {
		s.k.config.Ended(s.dir, s.record.Owner)
	}
	close(s.done)
	if s.pidfd != nil {
		_ = s.pidfd.Close()
	}
}

// waitExit waits for a pidfd without holding a thread.
func waitExit(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(p, 0)
		return n > 0
	})
}

// reap takes a dead init out of the process table if we are the agent that
// started it. By its pidfd: if we are not, its number may be that of another child of ours by now.
func reap(pidfd *os.File) {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
	})
}

// patience sets when we end the sandbox ourselves; a later time counts only if postpone.
func (s *sandbox) patience(due time.Time, postpone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !postpone && !s.due.IsZero() && s.due.Before(due) {
		return
	}
	s.due = due
	if s.pidfd != nil {
		_ = s.pidfd.SetReadDeadline(due)
	}
}

func (s *sandbox) Done() <-chan struct{} { return s.done }

func (s *sandbox) Result() contract.Result {
	<-s.done
	return s.result
}

func (s *sandbox) Started() time.Time { return s.started }

func (s *sandbox) Stop(grace time.Duration) {
	select {
	case <-s.done:
		return
	default:
	}
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.patience(time.Now().Add(max(grace, 0)+s.k.config.EndLimit), false)
	go func() {
		if err := s.Thaw(); err != nil && !errors.Is(err, contract.ErrNoFreezer) && !s.isDone() {
			s.k.log.Warn("a sandbox that stops is not thawed", "alloc", s.record.Alloc, "error", err)
		}
		err := initwire.Client{Dir: s.dir}.Stop(context.Background(), grace)
		// Refused or gone: it is ending anyway. Anything else is what the patience is for.
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist) && !s.isDone() {
			s.k.log.Warn("init cannot be told to stop", "alloc", s.record.Alloc, "error", err)
		}
	}()
}

func (s *sandbox) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *sandbox) Init(ctx context.Context) (net.Conn, error) {
	if s.isDone() {
		return nil, contract.ErrNoSandbox
	}
	return DialInit(ctx, s.dir)
}

func (s *sandbox) Output(stream string) contract.OutputLog {
	return &outputLog{dir: outputDir(s.dir, s.record), stream: stream}
}

func (s *sandbox) Close() error {
	if s.pidfd == nil {
		return nil
	}
	if err := s.pidfd.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// A sandbox with an init has all capabilities.
var _ interface {
	contract.Sandbox
	contract.Freezer
	contract.Reachable
	contract.OOMCounter
} = (*sandbox)(nil)
