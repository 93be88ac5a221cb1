package initbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Defaults of runtimes.
const (
	DefaultPidsLimit   = 4096
	DefaultOutputLimit = 64 << 20
	DefaultStartLimit  = 30 * time.Second
	// DefaultEndLimit is longer than what init itself allows for leftovers, output and answers.
	DefaultEndLimit = 15 * time.Second
	// OpenFiles is the soft limit of open files of commands.
	OpenFiles = 65536
)

// InitEnv is init's own environment, of which the command sees nothing: one
// processor is enough for it, its heap stays at a megabyte, and nobody profiles it.
func InitEnv() []string { return []string{"GOMAXPROCS=1", "GOGC=25", "GODEBUG=memprofilerate=0"} }

// Config of a Keeper.
type Config struct {
	// Runtime is its name. All but Unwalled are walled.
	Runtime string
	// Log is told what nobody else hears; nil: nobody.
	Log *slog.Logger
	// EndLimit is how long after its time limit or its stop, and the grace of either, a sandbox may take to end by its init. Then
	// the keeper kills all its processes: a command runs as the same user as its init and can stop it. 0: DefaultEndLimit.
	EndLimit time.Duration
	// Disk tells what the writable layer of the sandbox of a directory holds, and may hold; nil: it has none.
	Disk func(dir string) (used, most muster.Bytes)
	// Found and Ended are told whose ids (Plan.Owner) a sandbox has that was found alive, and one that has ended with all its
	// processes. Neither may block. Nil: nobody is told.
	Found, Ended func(dir string, owner int)
}

// Keeper keeps the sandboxes of one runtime.
type Keeper struct {
	config Config
	log    *slog.Logger
	boot   string
	// shielded: this process is favoured by the out-of-memory killer; commands must not inherit that.
	shielded bool
}

// New makes a keeper; nothing is started or made.
func New(c Config) (*Keeper, error) {
	boot, err := BootID()
	if err != nil {
		return nil, fmt.Errorf("runtime %s: %w", c.Runtime, err)
	}
	if c.EndLimit <= 0 {
		c.EndLimit = DefaultEndLimit
	}
	k := &Keeper{config: c, log: c.Log, boot: boot}
	k.log = cmp.Or(k.log, slog.New(slog.DiscardHandler))
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		k.shielded = strings.HasPrefix(string(b), "-")
	}
	return k, nil
}

// Log is where this keeper logs to.
func (k *Keeper) Log() *slog.Logger { return k.log }

// Boot is the kernel's boot id.
func (k *Keeper) Boot() string { return k.boot }

// Shielded reports whether this process is favoured by the out-of-memory killer.
func (k *Keeper) Shielded() bool { return k.shielded }

// checkID names a sandbox of Check so that others can tell whose it was.
func (k *Keeper) checkID() muster.AllocID {
	self, _ := ReadStat(os.Getpid())
	return muster.AllocID(fmt.Sprintf("%s%d.%d.%d", cgroup.Check, os.Getpid(), self.Start, rand.Uint64()))
}

// checkerGone reports whether the agent that made a sandbox of Check is.
func checkerGone(rest string) bool {
	var p initwire.Process
	var n uint64
	if _, err := fmt.Sscanf(rest, "%d.%d.%d", &p.Pid, &p.Start, &n); err != nil {
		return false
	}
	return !Living(p)
}

// Check runs a sandbox of which nothing is asked, by the runtime that the keeper is of.
func (k *Keeper) Check(ctx context.Context, rt contract.Runtime, groups *cgroup.Groups, complete func(*contract.SandboxConfig)) error {
	name := "runtime " + k.config.Runtime
	if fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK); err != nil {
		return fmt.Errorf("%s needs Linux 5.10 or later (pidfd_open: %w)", name, err)
	} else if err := unix.Close(fd); err != nil {
		return err
	}
	groups.Sweep(checkerGone)
	dir, err := os.MkdirTemp("", "muster-check-")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := contract.SandboxConfig{
		ID: k.checkID(), Dir: dir, Work: dir,
		Timeout: 10 * time.Second, KillGrace: time.Second,
	}
	complete(&c)
	s, err := rt.Start(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer func() { _ = s.Close() }()
	select {
	case <-s.Done():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil && s.Result().Failure != nil {
		err = s.Result().Failure
	}
	if err := errors.Join(err, Destroy(context.WithoutCancel(ctx), dir)); err != nil {
		return fmt.Errorf("%s: check: %w", name, err)
	}
	return nil
}

// Attach finds the sandbox of dir. See contract.Runtime.
func (k *Keeper) Attach(_ context.Context, dir string) (contract.Sandbox, error) {
	record, err := Read(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, contract.ErrNoSandbox
	}
	if err != nil {
		return nil, NodeFault("record of the sandbox: %v", err)
	}
	if record.Sandbox == nil || record.Init == nil {
		// The agent died before it sent the start: init, if there was one, ended without having started anything.
		if err := k.discard(dir); err != nil {
			return nil, err
		}
		return nil, contract.ErrNoSandbox
	}
	s := newSandbox(k, dir, record.Sandbox, *record.Init)
	s.started = time.Unix(0, record.Sandbox.At)
	if record.Command != nil {
		s.started = s.within(record.Command.At)
	}
	if record.Sandbox.Boot == k.boot {
		fd, err := openProcess(*record.Init, unix.PIDFD_NONBLOCK)
		if err != nil && !errors.Is(err, errGone) {
			return nil, NodeFault("find init of the sandbox: %v", err)
		}
		if err == nil {
			if err := s.hold(fd); err != nil {
				return nil, err
			}
			if k.config.Found != nil && s.record.Owner != 0 {
				k.config.Found(dir, s.record.Owner)
			}
		}
	}
	go s.watch()
	return s, nil
}

// discard clears away a start that never was sent, so that the directory can be used again.
func (k *Keeper) discard(dir string) error {
	if err := errors.Join(Destroy(context.Background(), dir), forget(dir)); err != nil {
		return NodeFault("clear away an interrupted start: %v", err)
	}
	return nil
}

// NodeFault is a failure of the node's.
func NodeFault(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: fmt.Sprintf(format, args...)}
}

// UserFault is a failure of who wrote the job.
func UserFault(reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureUser, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
