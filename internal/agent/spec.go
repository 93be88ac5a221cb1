package agent

import (
	"context"
	"path/filepath"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/inputs"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// defaultPath is PATH where the job gives none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// check finds the runtime for a spec, or why this agent cannot carry it out.
func (a *Agent) check(spec *wire.AllocSpec) (contract.Runtime, *muster.Failure) {
	bad := func(format string, args ...any) (contract.Runtime, *muster.Failure) {
		return nil, contract.Failure(muster.FailureUser, muster.ReasonSpec, format, args...)
	}
	if len(spec.Command) == 0 && spec.Image == "" {
		return bad("no command is given")
	}
	switch spec.Network {
	case "", muster.NetworkNone, muster.NetworkBridge, muster.NetworkHost:
	default:
		return bad("network %q is not none, bridge or host", string(spec.Network))
	}
	if spec.Workdir != "" && !filepath.IsAbs(spec.Workdir) {
		return bad("work directory %q is not an absolute path", spec.Workdir)
	}
	for _, in := range spec.Inputs {
		if !filepath.IsLocal(in.Path) || filepath.Clean(in.Path) == "." {
			return bad("input %q is not a path inside the work directory", in.Path)
		}
		if in.Digest != "" {
			if _, err := inputs.ParseDigest(in.Digest); err != nil {
				return bad("input %s: %v", in.Path, err)
			}
		} else if in.URL != "" {
			return bad("input %s: a URL needs a digest", in.Path)
		}
	}
	for _, out := range spec.Outputs {
		if !filepath.IsLocal(out.Path) {
			return bad("output %q is not a path inside the work directory", out.Path)
		}
	}
	if spec.Ready != nil && len(spec.Ready.Command) == 0 {
		return bad("its readiness has no command")
	}
	return a.runtimeFor(spec)
}

// brings reports whether the job's work directory is one of the node's own.
func (al *alloc) brings() bool { return al.spec.Workdir != "" && al.spec.Image == "" }

// work is the directory on the node where inputs are put and outputs found; a process starts there.
func (al *alloc) work() string {
	if al.brings() {
		return al.spec.Workdir
	}
	return al.dir.Work()
}

// makeWork makes the work directory, unless the job brings its own.
func (al *alloc) makeWork() error {
	if al.brings() {
		return nil
	}
	return al.dir.MakeWork()
}

// config is what the runtime is told. It makes the directories that it names.
func (al *alloc) config() (contract.SandboxConfig, error) {
	if err := al.makeWork(); err != nil {
		return contract.SandboxConfig{}, err
	}
	if err := al.dir.MakeTemp(); err != nil {
		return contract.SandboxConfig{}, err
	}
	s := al.spec
	return contract.SandboxConfig{
		ID: al.id, Dir: string(al.dir), Work: al.work(),
		Command: s.Command, Env: al.environment(), Resources: s.Resources, Limits: contract.Limits{Pids: s.PidsLimit, CPUMax: s.CPUMax}, Cores: s.Cores,
		Timeout: millis(s.TimeoutMillis), KillGrace: millis(s.KillGraceMillis), OutputLimit: s.OutputLimit,
	}, nil
}

// environment is the command's whole environment, sorted. The job may set
// everything but what tells a member who it is.
func (al *alloc) environment() []string {
	env := map[string]string{
		"PATH":   defaultPath,
		"HOME":   al.work(),
		"TMPDIR": al.dir.Temp(),
	}
	return al.identify(env)
}

// untilStop is ctx, ended as well when the allocation is to stop.
func (al *alloc) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		select {
		case <-al.stop:
			cancel()
		case <-left:
		}
	}()
	return ctx, func() { cancel(); close(left) }
}
