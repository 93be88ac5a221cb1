package launch

import (
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Workspace is where in a container the inputs and outputs of a job are.
const Workspace = "/workspace"

// defaultPath is PATH where the job gives none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Plan is what is known of an allocation before it is started.
type Plan struct {
	ID muster.AllocID
	// Dir is the allocation's directory on the node.
	Dir  journal.AllocDir
	Spec *wire.AllocSpec
}

// ownWork reports whether the job names a work directory of the node.
func (p Plan) ownWork() bool { return p.Spec.Workdir != "" && p.Spec.Image == "" }

// Work is the directory on the node where inputs are put and outputs found. A process starts there.
func (p Plan) Work() string {
	if p.ownWork() {
		return p.Spec.Workdir
	}
	return p.Dir.Work()
}

// MakeWork makes the work directory, unless the job names one of the node.
func (p Plan) MakeWork() error {
	if p.ownWork() {
		return nil
	}
	return p.Dir.MakeWork()
}

// Process is what the runtime is told of a sandbox that is a process of the node. It makes the
// directories that it names.
func (p Plan) Process() (contract.SandboxConfig, error) {
	if err := p.MakeWork(); err != nil {
		return contract.SandboxConfig{}, err
	}
	if err := p.Dir.MakeTemp(); err != nil {
		return contract.SandboxConfig{}, err
	}
	s := p.Spec
	return contract.SandboxConfig{
		ID: p.ID, Dir: string(p.Dir), Work: p.Work(),
		Command: s.Command, Env: p.environment(), Resources: s.Resources, Limits: contract.Limits{Pids: s.PidsLimit, CPUMax: s.CPUMax}, Cores: s.Cores,
		Timeout: wire.Millis(s.TimeoutMillis), KillGrace: wire.Millis(s.KillGraceMillis), OutputLimit: s.OutputLimit,
	}, nil
}

// environment is the whole environment of a process, sorted.
func (p Plan) environment() []string {
	return p.identify(map[string]string{"PATH": defaultPath, "HOME": p.Work(), "TMPDIR": p.Dir.Temp()})
}

// Contain changes the configuration of a process to that of a container: what image and job
// together say. It leaves the network to the caller.
func (p Plan) Contain(c *contract.SandboxConfig, image *contract.Image) *muster.Failure {
	s := p.Spec
	c.Command = commandOf(s, &image.Config)
	if len(c.Command) == 0 {
		return contract.Failure(muster.FailureUser, muster.ReasonSpec, "image %s has no command of its own: the job must give one", image.Ref)
	}
	c.Work = workdirOf(s, &image.Config)
	if !strings.HasPrefix(c.Work, "/") {
		return contract.Failure(muster.FailureUser, muster.ReasonImage, "image %s: its work directory %q is not an absolute path", image.Ref, c.Work)
	}
	stop, ok := signalOf(image.Config.StopSignal)
	if !ok {
		return contract.Failure(muster.FailureUser, muster.ReasonImage, "image %s: its stop signal %q is none", image.Ref, image.Config.StopSignal)
	}
	c.Env = p.containerEnvironment(&image.Config)
	c.Container = &contract.Container{
		Image: image, User: s.User, Volumes: image.Config.Volumes, StopSignal: int(stop), Hostname: hostname(s),
	}
	if c.Container.User == "" {
		c.Container.User = image.Config.User
	}
	if hasFiles(s) {
		c.Container.Shared, c.Container.SharedAt = p.Dir.Work(), Workspace
	}
	return nil
}

// Equip gives a container the devices that it was granted. Their variables count over those of image
// and job, but lists of directories are put before what is there.
func Equip(c *contract.SandboxConfig, d *contract.Devices) {
	if d == nil {
		return
	}
	c.Container.Devices = d
	for _, kv := range d.Env {
		name, value, _ := strings.Cut(kv, "=")
		at := slices.IndexFunc(c.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
		switch {
		case at < 0:
			c.Env = append(c.Env, kv)
		case name == "PATH" || name == "LD_LIBRARY_PATH":
			if _, have, _ := strings.Cut(c.Env[at], "="); have != "" {
				value += ":" + have
			}
			c.Env[at] = name + "=" + value
		default:
			c.Env[at] = kv
		}
	}
	sort.Strings(c.Env)
}

// hasFiles reports whether the job puts files in or takes some out.
func hasFiles(s *wire.AllocSpec) bool { return len(s.Inputs)+len(s.Outputs) > 0 }

// commandOf is what runs: as with Docker, the job's command stands for the image's, and an
// entrypoint of the job for both.
func commandOf(s *wire.AllocSpec, image *contract.ImageConfig) []string {
	if len(s.Entrypoint) > 0 {
		// An empty entrypoint takes that of the image away.
		if len(s.Entrypoint) == 1 && s.Entrypoint[0] == "" {
			return s.Command
		}
		return slices.Concat(s.Entrypoint, s.Command)
	}
	if len(s.Command) > 0 {
		return slices.Concat(image.Entrypoint, s.Command)
	}
	return slices.Concat(image.Entrypoint, image.Cmd)
}

// workdirOf is where the command starts: what the job says, where its files are, or what the image
// says, in this order.
func workdirOf(s *wire.AllocSpec, image *contract.ImageConfig) string {
	switch {
	case s.Workdir != "":
		return s.Workdir
	case hasFiles(s):
		return Workspace
	case image.Workdir != "":
		return image.Workdir
	}
	return "/"
}

// hostname is what the job says, else a DNS label made of the job's name and the member's index. The
// name is cut so that the index fits.
func hostname(s *wire.AllocSpec) string {
	if s.Hostname != "" {
		return s.Hostname
	}
	name := strings.Trim(strings.Map(func(r rune) rune {
		if r == '.' || r == '_' || r == ':' {
			return '-'
		}
		return r
	}, s.Job), "-")
	suffix := "-" + strconv.Itoa(s.Index)
	return name[:min(len(name), 63-len(suffix))] + suffix
}

// containerEnvironment is the whole environment of a command in a container, sorted: the image's
// variables, the job's over them, and who it is. HOME is not among them: init finds that of the
// user.
func (p Plan) containerEnvironment(image *contract.ImageConfig) []string {
	env := map[string]string{"PATH": defaultPath}
	for _, kv := range image.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			env[k] = v
		}
	}
	return p.identify(env)
}

// identify adds the job's variables, and those that tell a member who it is. The job may set all
// but the latter.
func (p Plan) identify(env map[string]string) []string {
	s := p.Spec
	for k, v := range s.Env {
		env[k] = v
	}
	env["MUSTER_ALLOC"] = string(p.ID)
	env["MUSTER_ATTEMPT"] = strconv.Itoa(s.Attempt)
	env["MUSTER_COUNT"] = strconv.Itoa(s.Count)
	env["MUSTER_INDEX"] = strconv.Itoa(s.Index)
	env["MUSTER_JOB"] = s.Job
	env["MUSTER_JOB_VERSION"] = strconv.FormatUint(s.Version, 10)
	env["MUSTER_NAMESPACE"] = string(s.Namespace)
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

// signalOf reads a signal as images write it: a name with or without SIG, RTMIN+n, or a number.
// Empty is 0, the runtime's default.
func signalOf(name string) (syscall.Signal, bool) {
	if name == "" {
		return 0, true
	}
	if n, err := strconv.Atoi(name); err == nil {
		return syscall.Signal(n), n > 0 && n <= 64
	}
	name = strings.ToUpper(name)
	if n, ok := strings.CutPrefix(strings.TrimPrefix(name, "SIG"), "RTMIN+"); ok {
		k, err := strconv.Atoi(n)
		// The C library keeps the two real-time signals below 34 for itself.
		return syscall.Signal(34 + k), err == nil && k >= 0 && k <= 30
	}
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}
