package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Name of this runtime.
const Name = "process"

// Defaults of Config.
const (
	DefaultPidsLimit   = 4096
	DefaultOutputLimit = 64 << 20
	DefaultStartLimit  = 30 * time.Second
	defaultOpenFiles   = 65536
)

// Config of the runtime.
type Config struct {
	// InitPath is the muster-init program. Sandboxes that run keep the one that they began with.
	InitPath string
	// CgroupParent is the cgroup below which each sandbox gets one, relative to
	// the root of each hierarchy, "muster/NODE" for example. Made when first needed. Empty = no cgroups.
	CgroupParent string
	// PidsLimit is how many processes and threads a sandbox may have. Needs cgroups.
	PidsLimit int
	// StartLimit bounds every start, beside the caller's context: a command can stop its init before that has answered.
	StartLimit time.Duration
	Log        *slog.Logger
}

// Runtime is the runtime "process".
type Runtime struct {
	config Config
	log    *slog.Logger
	boot   string
	// shielded: this process is favoured by the out-of-memory killer; commands must not inherit that.
	shielded bool

	prepare sync.Once
	// groups is nil if there are no cgroups, problems says why. Both are set by prepare.
	groups   *cgroups
	problems []string
}

var _ agent.Runtime = (*Runtime)(nil)

// New makes the runtime; nothing is started or made.
func New(c Config) (*Runtime, error) {
	if !filepath.IsAbs(c.InitPath) {
		return nil, fmt.Errorf("runtime process: path of muster-init %q is not absolute", c.InitPath)
	}
	if c.CgroupParent != "" && (!filepath.IsLocal(c.CgroupParent) || filepath.Clean(c.CgroupParent) == ".") {
		return nil, fmt.Errorf("runtime process: cgroup parent %q: want a relative path below the root", c.CgroupParent)
	}
	if c.PidsLimit <= 0 {
		c.PidsLimit = DefaultPidsLimit
	}
	if c.StartLimit <= 0 {
		c.StartLimit = DefaultStartLimit
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("runtime process: %w", err)
	}
	r := &Runtime{config: c, log: c.Log, boot: boot}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		r.shielded = strings.HasPrefix(string(b), "-")
	}
	return r, nil
}

// Name is "process".
func (r *Runtime) Name() string { return Name }

// ready makes what all sandboxes share, once.
func (r *Runtime) ready() {
	r.prepare.Do(func() {
		r.groups, r.problems = openCgroups(r.config.CgroupParent)
		for _, p := range r.problems {
			r.log.Warn("limits are not enforced", "runtime", Name, "problem", p)
		}
	})
}

// Problems are sentences about what this runtime cannot do on this node.
func (r *Runtime) Problems() []string {
	r.ready()
	return r.problems
}

// Check runs a sandbox of which nothing is asked.
func (r *Runtime) Check(ctx context.Context) error {
	if fd, err := unix.PidfdOpen(os.Getpid(), unix.PIDFD_NONBLOCK); err != nil {
		return fmt.Errorf("runtime process needs Linux 5.10 or later (pidfd_open: %w)", err)
	} else if err := unix.Close(fd); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "muster-check-")
	if err != nil {
		return fmt.Errorf("runtime process: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := r.Start(ctx, agent.SandboxConfig{
		ID: muster.AllocID("check-" + filepath.Base(dir)), Dir: dir, Work: dir,
		Command: []string{r.config.InitPath, "--version"}, Timeout: 10 * time.Second, KillGrace: time.Second,
	})
	if err != nil {
		return fmt.Errorf("runtime process: %w", err)
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
		return fmt.Errorf("runtime process: check: %w", err)
	}
	return nil
}

// Attach finds the sandbox of dir. See agent.Runtime.
func (r *Runtime) Attach(_ context.Context, dir string) (agent.Sandbox, error) {
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	if errors.Is(err, os.ErrNotExist) {
		return nil, agent.ErrNoSandbox
	}
	if err != nil {
		return nil, nodeFault("record of the sandbox: %v", err)
	}
	if record.Sandbox == nil || record.Init == nil {
		// The agent died before it sent the start: init, if there was one, ended without having started anything.
		if err := r.discard(dir); err != nil {
			return nil, err
		}
		return nil, agent.ErrNoSandbox
	}
	s := newSandbox(r, dir, record.Sandbox, *record.Init)
	s.started = time.Unix(0, record.Sandbox.At)
	if record.Command != nil {
		s.started = time.Unix(0, record.Command.At)
	}
	if record.Sandbox.Boot == r.boot {
		fd, err := openProcess(*record.Init, unix.PIDFD_NONBLOCK)
		if err != nil && !errors.Is(err, errGone) {
			return nil, nodeFault("find init of the sandbox: %v", err)
		}
		if err == nil {
			if err := s.hold(fd); err != nil {
				return nil, err
			}
		}
	}
	go s.watch()
	return s, nil
}

// Remove ends and deletes. See agent.Runtime.
func (r *Runtime) Remove(ctx context.Context, dir string) error { return Destroy(ctx, dir) }

func nodeFault(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeFault, Message: fmt.Sprintf(format, args...)}
}

func userFault(reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureUser, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
