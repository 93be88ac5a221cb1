package process

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// Name of this runtime.
const Name = initbox.Unwalled

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
	// EndLimit is how long a sandbox may take to end before all its processes are killed, see initbox.Config. 0: its default.
	EndLimit time.Duration
	// Groups opens the cgroups, and says what is not limited by them. Nil: those below CgroupParent.
	Groups func() (*cgroup.Groups, []string)
	// Outside does what this process cannot: it is root of a user namespace, and sandboxes without a
	// container run outside of it. Nil: this process is where they run.
	Outside Outside
	Log     *slog.Logger
}

// Outside works with sandboxes on behalf of an agent that is in a user namespace.
type Outside interface {
	// Spawn starts init with these descriptors as its own 0 and up. cgroup is an open directory, or
	// -1: it begins in that of its parent.
	Spawn(path string, argv, env []string, descriptors []int, cgroup int, cores []int) (pid, pidfd int, err error)
	// Destroy and EndForgotten are those of package initbox.
	Destroy(ctx context.Context, dir string) error
	EndForgotten(ctx context.Context, sandboxes string, known []muster.AllocID) (int, error)
}

// Runtime is the runtime "process".
type Runtime struct {
	config Config
	keeper *initbox.Keeper

	prepare sync.Once
	// groups is nil if there are no cgroups, problems says why. Both are set by prepare.
	groups   *cgroup.Groups
	problems []string
}

var (
	_ contract.Runtime = (*Runtime)(nil)
	_ contract.Sweeper = (*Runtime)(nil)
)

// New makes the runtime; nothing is started or made.
func New(c Config) (*Runtime, error) {
	if !filepath.IsAbs(c.InitPath) {
		return nil, fmt.Errorf("runtime process: path of muster-init %q is not absolute", c.InitPath)
	}
	if c.CgroupParent != "" && (!filepath.IsLocal(c.CgroupParent) || filepath.Clean(c.CgroupParent) == ".") {
		return nil, fmt.Errorf("runtime process: cgroup parent %q: want a relative path below the root", c.CgroupParent)
	}
	if c.PidsLimit <= 0 {
		c.PidsLimit = initbox.DefaultPidsLimit
	}
	if c.StartLimit <= 0 {
		c.StartLimit = initbox.DefaultStartLimit
	}
	keeper, err := initbox.New(initbox.Config{Runtime: Name, Log: c.Log, EndLimit: c.EndLimit})
	if err != nil {
		return nil, err
	}
	return &Runtime{config: c, keeper: keeper}, nil
}

// Name is "process".
func (r *Runtime) Name() string { return Name }

// ready makes what all sandboxes share, once.
func (r *Runtime) ready() {
	r.prepare.Do(func() {
		if r.config.Groups != nil {
			r.groups, r.problems = r.config.Groups()
		} else {
			r.groups, r.problems = cgroup.Open(r.config.CgroupParent)
		}
		for _, p := range r.problems {
			r.keeper.Log().Warn("limits are not enforced", "runtime", Name, "problem", p)
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
	r.ready()
	return r.keeper.Check(ctx, r, r.groups, func(c *contract.SandboxConfig) { c.Command = []string{r.config.InitPath, "--version"} })
}

// Attach finds the sandbox of dir. See contract.Runtime.
func (r *Runtime) Attach(ctx context.Context, dir string) (contract.Sandbox, error) {
	return r.keeper.Attach(ctx, dir)
}

// EndForgotten ends sandboxes whose directories are gone. See contract.Sweeper.
func (r *Runtime) EndForgotten(ctx context.Context, sandboxes string, known []muster.AllocID) (int, error) {
	if r.config.Outside != nil && r.groups == nil {
		return r.config.Outside.EndForgotten(ctx, sandboxes, known)
	}
	return initbox.EndForgotten(ctx, r.groups, sandboxes, known)
}

// Remove ends and deletes. See contract.Runtime.
func (r *Runtime) Remove(ctx context.Context, dir string) error {
	if r.config.Outside != nil {
		return r.config.Outside.Destroy(ctx, dir)
	}
	return initbox.Destroy(ctx, dir)
}
