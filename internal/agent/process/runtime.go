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
	Log      *slog.Logger
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
		r.groups, r.problems = cgroup.Open(r.config.CgroupParent)
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
	return initbox.EndForgotten(ctx, r.groups, sandboxes, known)
}

// Remove ends and deletes. See contract.Runtime.
func (r *Runtime) Remove(ctx context.Context, dir string) error { return initbox.Destroy(ctx, dir) }
