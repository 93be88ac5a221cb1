package process

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// initDescriptors are those that init begins with, see package initwire.
const initDescriptors = 7

// Start makes a sandbox. See contract.Runtime.
func (r *Runtime) Start(ctx context.Context, c contract.SandboxConfig) (contract.Sandbox, error) {
	if c.Container != nil {
		return nil, initbox.UserFault(muster.ReasonNoRuntime, "image %q: the runtime %q has no images, a container runtime is needed", c.Container.Image.Ref, Name)
	}
	if err := initbox.Validate(&c); err != nil {
		return nil, err
	}
	r.ready()
	dirs := r.groups.Dirs(cgroup.Name(c.ID, c.Dir))
	plan := &initbox.Plan{
		Groups: r.groups, Cgroups: dirs, StartLimit: r.config.StartLimit,
		Start: &initwire.Start{
			Work: c.Work, Command: c.Command, Env: c.Env,
			Timeout: c.Timeout, KillGrace: c.KillGrace, OutputLimit: c.OutputLimit,
			OpenFiles: initbox.OpenFiles, ResetOOM: r.keeper.Shielded(), ShieldOOM: r.config.Outside == nil && os.Geteuid() == 0,
		},
	}
	plan.Spawn = func(_ context.Context, descriptors []int) (int, int, error) { return r.spawn(&c, dirs, descriptors) }
	return r.keeper.Start(ctx, &c, plan)
}

// spawn starts init in its cgroup.
func (r *Runtime) spawn(c *contract.SandboxConfig, dirs []string, descriptors []int) (pid, pidfd int, err error) {
	limits := cgroup.Limits{Memory: c.Resources.Memory, CPU: c.Resources.CPU, CPUMax: c.Limits.CPUMax, Pids: c.Limits.Pids}
	if limits.Pids <= 0 {
		limits.Pids = r.config.PidsLimit
	}
	if err := r.groups.Create(dirs, limits); err != nil {
		return 0, -1, err
	}
	if r.config.Outside != nil {
		return r.spawnOutside(c, dirs, descriptors)
	}
	pidfd = -1
	attr := &syscall.ProcAttr{Dir: "/", Env: initbox.InitEnv(), Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}}
	for _, fd := range descriptors {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	argv := []string{initbox.InitName, string(c.ID)}
	err = r.groups.Inside(dirs, attr.Sys, func() (int, error) {
		defer initbox.Sleepy()()
		defer initbox.OnCores(c.Cores)()
		var err error
		pid, _, err = syscall.StartProcess(r.config.InitPath, argv, attr)
		return pid, err
	})
	if pid <= 0 {
		return 0, -1, fmt.Errorf("start %s: %w", r.config.InitPath, err)
	}
	if err != nil {
		// It runs, but not where it should. It is our child and not reaped: the pid is its own.
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
		return 0, -1, err
	}
	noMoreDescriptors(pid)
	return pid, pidfd, nil
}

// spawnOutside has init started outside of the user namespace of this agent.
func (r *Runtime) spawnOutside(c *contract.SandboxConfig, dirs []string, descriptors []int) (pid, pidfd int, err error) {
	group := -1
	if len(dirs) > 0 {
		if group, err = unix.Open(dirs[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return 0, -1, fmt.Errorf("cgroup %s: %w", dirs[0], err)
		}
		defer func() { _ = unix.Close(group) }()
	}
	pid, pidfd, err = r.config.Outside.Spawn(r.config.InitPath, []string{initbox.InitName, string(c.ID)}, initbox.InitEnv(), descriptors, group, c.Cores)
	if err != nil {
		return 0, -1, fmt.Errorf("start %s: %w", r.config.InitPath, err)
	}
	noMoreDescriptors(pid)
	return pid, pidfd, nil
}

// noMoreDescriptors keeps a new init from opening files until it knows the limit
// of its command, which comes with the start that is only sent after this. The Go runtime would read its cgroup and all
// of the host's mounts to find out how many processors it may use, which init is told: a tenth of its start, more
// where there are many mounts. If init was quicker, it just takes that long.
func noMoreDescriptors(pid int) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = min(limit.Max, initDescriptors)
		_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
	}
}
