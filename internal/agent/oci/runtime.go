package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Name of this runtime.
const Name = "oci"

// boxName is where in a sandbox's directory this runtime keeps its own.
const boxName = initbox.Box

// idRange is how many uids and gids a user namespace has.
const idRange = 65536

// Config of the runtime.
type Config struct {
	// InitPath is the muster-init program. Sandboxes that run keep the one that they began with.
	InitPath string
	// CgroupParent is the cgroup below which each sandbox gets one, relative to
	// the root of each hierarchy, "muster/NODE" for example.
	CgroupParent string
	// Program is the OCI runtime program, by name or path; empty: crun, else runc.
	Program string
	// PidsLimit is how many processes and threads a sandbox may have if it does not say.
	PidsLimit int
	// StartLimit bounds every start, beside the caller's context.
	StartLimit time.Duration
	// EndLimit is how long a sandbox may take to end before all its processes are killed, see initbox.Config. 0: its default.
	EndLimit time.Duration
	// IDBase is the first of the uids and gids of this node that sandboxes have as their own 0 and up, in a user namespace; 0: they have none.
	IDBase int
	// IDBlock tells agents of one host apart: sandboxes of agents with different ones, modulo 14, have no ids in common as long as each has 256 or fewer.
	IDBlock int
	// RefuseHoles: no containers by a program that has known holes. Else they are among the problems that are told.
	RefuseHoles bool
	// Images is the directory in which layers of images are: where each sandbox having ids of its own must work. Empty: the one
	// for temporary files.
	Images string
	// Scratch is the size of a writable layer if no disk is asked for.
	Scratch muster.Bytes
	// Groups opens the cgroups, and says what is not limited by them. Nil: those below CgroupParent.
	Groups func() (*cgroup.Groups, []string)
	// UserIDs is how many ids the user namespace has in which this process is root and an ordinary user outside; 0: it is root of the
	// node. There are no loop devices then, no devices are made, and there may be no cgroups.
	UserIDs int
	// UserWhy is why UserIDs is 1.
	UserWhy string
	// Refusal is why containers cannot be made here; empty: try.
	Refusal string
	Log     *slog.Logger
}

// Runtime is the runtime "oci".
type Runtime struct {
	config    Config
	keeper    *initbox.Keeper
	templates templates
	canary    canary
	ranges    *ranges

	// probing holds one token; probed is guarded by it.
	probing chan struct{}
	probed  bool
	// The rest is set by the probe, once it has found a way that works, and never changed then. broken is why nothing works.
	broken   error
	problems []string
	program  *program
	groups   *cgroup.Groups
	seccomp  *specs.LinuxSeccomp
	// filter is seccomp as crun takes it without compiling it, if it does.
	filter string
	// masked and readonly are those of the paths that this kernel has.
	masked, readonly []string
	// places are where, in a start's own mount namespace, its stage may be.
	places []string
	// base is Config.IDBase if this node can do it, else 0; owners is then a user namespace that maps it.
	base   int
	owners *os.File
	// ranged: each sandbox has ids of its own, by ranges. Else all have those from base on.
	ranged bool
	// loops: writable layers are file systems of their own.
	loops bool
}

var (
	_ contract.ImageRuntime = (*Runtime)(nil)
	_ contract.Limited      = (*Runtime)(nil)
	_ contract.Isolating    = (*Runtime)(nil)
	_ contract.Sweeper      = (*Runtime)(nil)
)

// New makes the runtime; nothing is started or made.
func New(c Config) (*Runtime, error) {
	if !filepath.IsAbs(c.InitPath) {
		return nil, fmt.Errorf("runtime oci: path of muster-init %q is not absolute", c.InitPath)
	}
	if c.CgroupParent != "" && (!filepath.IsLocal(c.CgroupParent) || filepath.Clean(c.CgroupParent) == ".") {
		return nil, fmt.Errorf("runtime oci: cgroup parent %q: want a relative path below the root", c.CgroupParent)
	}
	if c.IDBase != 0 && c.IDBase < idRange {
		return nil, fmt.Errorf("runtime oci: first uid of sandboxes %d: want at least %d, or 0 for no user namespace", c.IDBase, idRange)
	}
	if c.PidsLimit <= 0 {
		c.PidsLimit = initbox.DefaultPidsLimit
	}
	if c.StartLimit <= 0 {
		c.StartLimit = initbox.DefaultStartLimit
	}
	if c.Scratch <= 0 {
		c.Scratch = DefaultScratch
	}
	ranges := newRanges(c.InitPath, c.IDBase, c.IDBlock)
	keeper, err := initbox.New(initbox.Config{Runtime: Name, Log: c.Log, EndLimit: c.EndLimit, Disk: scratchUsed, Found: ranges.hold, Ended: ranges.release})
	if err != nil {
		return nil, err
	}
	return &Runtime{config: c, keeper: keeper, ranges: ranges, probing: make(chan struct{}, 1)}, nil
}

// Name is "oci".
func (r *Runtime) Name() string { return Name }

// RunsImages makes it an agent.ImageRuntime.
func (r *Runtime) RunsImages() {}

// ready finds out, once, what this node has; if again is set, also when nothing has worked so far. It tells whether it looked.
func (r *Runtime) ready(ctx context.Context, again bool) (looked bool, err error) {
	select {
	case r.probing <- struct{}{}:
		defer func() { <-r.probing }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if r.probed && (r.broken == nil || !again) {
		return false, r.broken
	}
	r.broken = r.probe(ctx)
	r.probed = r.broken == nil || ctx.Err() == nil // who had no time has not seen that nothing works
	for _, p := range r.problems {
		r.keeper.Log().Warn("not all can be had on this node", "runtime", Name, "problem", p)
	}
	return true, r.broken
}

// found lets read copy what the last probe found, while no other changes it.
func (r *Runtime) found(read func()) {
	_, _ = r.ready(context.Background(), false)
	r.probing <- struct{}{}
	defer func() { <-r.probing }()
	read()
}

func (r *Runtime) probe(ctx context.Context) (err error) {
	r.problems, r.filter, r.ranged = nil, "", false
	if r.owners != nil {
		_ = r.owners.Close()
		r.owners = nil
	}
	if r.config.Refusal != "" {
		return errors.New(r.config.Refusal)
	}
	if os.Geteuid() != 0 {
		return errors.New("containers need root on the node")
	}
	if r.program, err = findProgram(ctx, r.config.Program); err != nil {
		return fmt.Errorf("no OCI runtime program: %w", err)
	}
	known := r.program.holesOfNode(ctx)
	if len(known) > 0 && r.config.RefuseHoles {
		return fmt.Errorf("runtime_holes of its pool is refuse, and %s", strings.Join(known, "; "))
	}
	if r.config.Groups != nil {
		r.groups, r.problems = r.config.Groups()
	} else {
		r.groups, r.problems = cgroup.Open(r.config.CgroupParent)
	}
	r.problems = append(known, r.problems...)
	if r.rootless() {
		if !r.program.leavesCgroups() {
			return fmt.Errorf("an ordinary user needs crun for containers, and this is %s; install crun, for example with `apt-get install crun`", r.program)
		}
	} else if r.groups == nil {
		return fmt.Errorf("containers need cgroups: %v", r.problems)
	}
	if r.places = stagePlaces(); len(r.places) == 0 {
		return errors.New("this node has none of the usual empty directories: " + fmt.Sprint(stageCandidates))
	}
	if r.seccomp = newSeccomp(runtime.GOARCH); r.seccomp == nil {
		r.problems = append(r.problems, "system calls are not filtered: there is no list for "+runtime.GOARCH)
	}
	r.masked, r.readonly = existing(maskedPaths), existing(readonlyPaths)
	if r.rootless() {
		r.base = 0
		r.problems = append(r.problems, r.userProblems()...)
	} else if r.base = r.config.IDBase; r.base > 0 {
		if owners, err := openOwners(r.config.InitPath, rootIs(r.base)); err != nil {
			r.base = 0
			r.problems = append(r.problems, "sandboxes have no user namespace, their root is the node's: "+err.Error())
		} else if r.owners, err = owners[0], r.ranges.try(cmp.Or(r.config.Images, os.TempDir()), r.places); err != nil {
			r.problems = append(r.problems, "all sandboxes have the same user ids on the node: "+err.Error())
		} else {
			r.ranged = true
		}
	} else {
		r.problems = append(r.problems, "sandboxes have no user namespace, their root is the node's: no range of ids is configured")
	}
	r.loops = !r.rootless()
	if code := newFilter(); r.program.leavesCgroups() && r.seccomp != nil && code != nil {
		r.filter = encode(code)
		if r.attempt(ctx) == nil {
			return nil
		}
		r.filter = ""
	}
	return r.try(ctx)
}

// rootless reports whether the agent is an ordinary user outside of its user namespace.
func (r *Runtime) rootless() bool { return r.config.UserIDs > 0 }

// userProblems are what containers of an ordinary user lack beside limits, which the cgroups are asked for.
func (r *Runtime) userProblems() (all []string) {
	if r.config.UserIDs == 1 {
		all = append(all, "containers have one user, root; programs that become another user fail in them, as apt-get and databases do: "+r.config.UserWhy)
	}
	return append(all,
		"containers run with the rights of the agent's user; a program that escapes from one can read and change all files of this user",
		"disk is not limited, except for jobs that ask for a size, which have it in memory; an ordinary user cannot mount file systems from files",
	)
}

func existing(paths []string) (there []string) {
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			there = append(there, p)
		}
	}
	return there
}

// try starts a sandbox in every way until one works, best first, and so learns what the program and the kernel can do.
// What only took too long, or went wrong once, is no reason to go without; and nothing is a reason to go without the filter of system calls.
func (r *Runtime) try(ctx context.Context) error {
	if r.attempt(ctx) == nil {
		return nil
	}
	first := r.attempt(ctx)
	if first == nil || errors.Is(first, context.DeadlineExceeded) || ctx.Err() != nil {
		return first
	}
	type without struct {
		problem string
		do      func() (undo func())
	}
	ways := []without{
		{"disk is not limited, except for jobs that ask for a size, which have it in memory; file systems from files cannot be mounted here", func() func() {
			if !r.loops {
				return nil
			}
			r.loops = false
			return func() { r.loops = true }
		}},
		{"sandboxes have no user namespace, their root is the node's: it does not work here", func() func() {
			if r.base == 0 {
				return nil
			}
			base := r.base
			r.base = 0
			return func() { r.base = base }
		}},
	}
	// Each alone before all together.
	for _, w := range ways {
		undo := w.do()
		if undo == nil {
			continue
		}
		if err := r.attempt(ctx); err == nil {
			r.problems = append(r.problems, fmt.Sprintf("%s (%v)", w.problem, first))
			return nil
		}
		undo()
	}
	var problems []string
	for _, w := range ways {
		if w.do() != nil {
			problems = append(problems, w.problem)
		}
	}
	if err := r.attempt(ctx); err != nil {
		return first
	}
	r.problems = append(r.problems, problems...)
	return nil
}

// attempt runs a sandbox of which nothing is asked. It has no image: its init is all that is in it.
func (r *Runtime) attempt(ctx context.Context) error { return r.attemptWith(ctx, nil) }

// attemptWith is attempt with devices of the node.
func (r *Runtime) attemptWith(ctx context.Context, devices *contract.Devices) error {
	empty, err := os.MkdirTemp("", "muster-check-shared-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(empty) }()
	ctx, cancel := context.WithTimeout(ctx, r.config.StartLimit*9/10)
	defer cancel()
	err = r.keeper.Check(ctx, starter{r}, r.groups, func(c *contract.SandboxConfig) {
		c.Command = []string{initAt, "--version"}
		c.Work = "/shared"
		c.Container = &contract.Container{
			Image: &contract.Image{Ref: "nothing", Root: "/"}, Network: &contract.Network{},
			Shared: empty, SharedAt: "/shared", Devices: devices,
		}
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// starter is the runtime without its preparation.
type starter struct{ *Runtime }

func (s starter) Start(ctx context.Context, c contract.SandboxConfig) (contract.Sandbox, error) {
	return s.start(ctx, c, true)
}

// Problems are sentences about what this runtime cannot do on this node.
func (r *Runtime) Problems() []string {
	var problems []string
	r.found(func() { problems = slices.Clone(r.problems) })
	return problems
}

// Version says which program makes the containers, "crun 1.8.1"; empty if none does.
func (r *Runtime) Version() string {
	version := ""
	r.found(func() {
		if r.program != nil {
			version = r.program.String()
		}
	})
	return version
}

// Isolation is that of the sandboxes here. A program that is not of the usual two is of a kind of its own: its name is told.
func (r *Runtime) Isolation() (i muster.Isolation) {
	r.found(func() {
		switch {
		case r.program == nil:
		case !r.program.usual():
			i = muster.Isolation(r.program.name)
		case r.base > 0:
			i = muster.IsolationUserNamespace
		default:
			i = muster.IsolationContainer
		}
	})
	return i
}

// IDBase is the first uid of sandboxes on this node: by how much the owners in the layers of images must be shifted. 0 if sandboxes
// have no user namespace here, whatever is configured.
func (r *Runtime) IDBase() int {
	base := 0
	r.found(func() { base = r.base })
	return base
}

// Check runs a sandbox of which nothing is asked. What did not work when it was tried last is tried again.
func (r *Runtime) Check(ctx context.Context) error {
	looked, err := r.ready(ctx, true)
	if looked || err != nil {
		return err
	}
	return r.attempt(ctx)
}

// Start makes a sandbox. See contract.Runtime.
func (r *Runtime) Start(ctx context.Context, c contract.SandboxConfig) (contract.Sandbox, error) {
	if _, err := r.ready(ctx, false); err != nil {
		return nil, initbox.NodeFault("start the sandbox: %v", err)
	}
	return r.start(ctx, c, false)
}

func (r *Runtime) start(ctx context.Context, c contract.SandboxConfig, canary bool) (contract.Sandbox, error) {
	if c.Container == nil || c.Container.Image == nil {
		return nil, initbox.UserFault(muster.ReasonNoRuntime, "the runtime %q makes sandboxes from images, and none is given", Name)
	}
	if err := initbox.Validate(&c); err != nil {
		return nil, err
	}
	if err := validate(&c); err != nil {
		return nil, err
	}
	name := cgroup.Name(c.ID, c.Dir)
	dirs := r.groups.Dirs(name)
	if !r.program.leavesCgroups() {
		dirs = r.groups.Everywhere(name)
	}
	own, err := r.take(c.Dir)
	if err != nil {
		return nil, initbox.NodeFault("start the sandbox: %v", err)
	}
	plan := &initbox.Plan{
		Groups: r.groups, Cgroups: dirs, StartLimit: r.config.StartLimit, Owner: own.base,
		Start: &initwire.Start{
			Work: c.Work, Command: c.Command, Env: c.Env,
			Timeout: c.Timeout, KillGrace: c.KillGrace, OutputLimit: c.OutputLimit, OpenFiles: initbox.OpenFiles,
			Contained: true, User: c.Container.User, StopSignal: c.Container.StopSignal,
			Capabilities: capabilityBits(commandCapabilities), Give: given(c.Container),
		},
	}
	st := &stage{r: r, c: &c, name: name, dirs: dirs, ids: own, box: filepath.Join(c.Dir, boxName), canary: canary}
	plan.Spawn = st.spawn
	// A program that was slow to read the image, or neighbours that keep the node busy, leave init too little time.
	plan.Late = func(ctx context.Context, err error) error { return st.blame(ctx, &programError{err}) }
	s, err := r.keeper.Start(ctx, &c, plan)
	if err != nil {
		r.ranges.release(c.Dir, own.base)
	}
	return s, err
}

// take gives the sandbox of a directory its ids.
func (r *Runtime) take(dir string) (ids, error) {
	if r.base == 0 || !r.ranged {
		return ids{base: r.base, shared: r.owners}, nil
	}
	return r.ranges.take(dir)
}

// given is the directory that the command's user is to write in.
func given(c *contract.Container) string {
	if c.Shared == "" {
		return ""
	}
	return c.SharedAt
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
