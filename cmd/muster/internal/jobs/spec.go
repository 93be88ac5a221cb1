package jobs

import (
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/specfile"
)

// specFlags are the flags that describe a job.
type specFlags struct {
	file        string
	name        string
	namespace   string
	count       int
	cpu         float64
	memory      string
	disk        string
	env         []string
	timeout     string
	killGrace   string
	priority    int
	attempts    int
	on          []string
	inputs      []string
	outputs     []string
	workdir     string
	pool        string
	image       string
	constraints []string
	outputLimit string
	replace     bool
	exclusive   bool

	entrypoint string
	user       string
	network    string
	egress     []string
	ports      []int
	cpuMax     float64
	pids       int
}

func (s *specFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.file, "file", "f", "", "job file (YAML or JSON, - is stdin); flags change what it says")
	f.StringVar(&s.name, "name", "", "name of the job; one is made if it is left out")
	f.StringVarP(&s.namespace, "namespace", "n", "", "namespace of the job (default \"default\")")
	f.IntVar(&s.count, "count", 0, "how many members (default 1)")
	f.Float64Var(&s.cpu, "cpu", 0, "cores that a member needs, as 0.5 (default 1)")
	f.StringVar(&s.memory, "memory", "", "memory that a member needs, as 64MiB (default 256MiB)")
	f.StringVar(&s.disk, "disk", "", "disk that a member needs, and the most that a container may write, as 1GiB (default none; 10GiB for a container)")
	f.Float64Var(&s.cpuMax, "cpu-max", 0, "at most so many cores, even if more are idle (default no limit)")
	f.IntVar(&s.pids, "pids", 0, "at most so many processes and threads (default 4096)")
	f.StringArrayVarP(&s.env, "env", "e", nil, "environment variable NAME=VALUE, or NAME to pass on its own; may be repeated")
	f.StringVar(&s.timeout, "timeout", "", "end an attempt that runs longer, as 10m")
	f.StringVar(&s.killGrace, "kill-grace", "", "time between TERM and KILL (default 10s)")
	f.IntVar(&s.priority, "priority", 0, "0 to 100, higher first (default 50)")
	f.IntVar(&s.attempts, "attempts", 0, "attempts of a member in all (default 1; 3 with --on)")
	f.StringSliceVar(&s.on, "on", nil, "ends that are tried again: exit codes and ranges as 1,3-5, or any, timeout, out-of-memory, signal")
	f.StringArrayVar(&s.inputs, "input", nil, "local file SOURCE:PATH to put into the work directory; may be repeated")
	f.StringArrayVar(&s.outputs, "output", nil, "file or directory in the work directory to keep, for muster job fetch; may be repeated")
	f.StringVarP(&s.workdir, "workdir", "w", "", "where the command starts (default: a fresh directory, or the image's)")
	f.StringVar(&s.pool, "pool", "", "only nodes of this pool")
	f.StringVar(&s.image, "image", "", "container image, as python:3.13 (default: none, a process on the node); without a command, the image's own is run")
	f.StringVar(&s.entrypoint, "entrypoint", "", "program instead of the image's entrypoint and command; empty for none")
	f.StringVarP(&s.user, "user", "u", "", "who runs the command in the container: NAME, UID, NAME:GROUP or UID:GID (default: as the image says, else root)")
	f.StringVar(&s.network, "network", "", "of the container: none, bridge or host (default bridge)")
	f.StringArrayVar(&s.egress, "egress", nil, "the only networks that a bridge reaches, as 10.0.0.0/8; may be repeated (default all)")
	f.IntSliceVar(&s.ports, "port", nil, "TCP port of the container that others on the node may connect to; may be repeated; muster port reaches any without")
	f.StringArrayVar(&s.constraints, "constraint", nil, "node attribute: NAME=VALUE, NAME!=VALUE, NAME in A,B, or NAME; may be repeated")
	f.BoolVar(&s.exclusive, "exclusive", false, "no member is ever run by two nodes at once: one that is cut off from the server for the pool's fence is killed")
	f.StringVar(&s.outputLimit, "output-limit", "", "how much is kept of stdout and of stderr (default 256MiB)")
	f.BoolVar(&s.replace, "replace", false, "stop a running job of this name, and run this one instead")
	addHabits(f)
}

// submission is the job that flags and arguments describe, checked, and the
// folder that its local files are relative to.
func (s *specFlags) submission(c *cobra.Command, args []string, stdin io.Reader) (api.JobSubmission, string, error) {
	out := api.JobSubmission{Replace: s.replace}
	spec, folder := &api.JobSpec{}, "."
	if s.file != "" {
		read, err := specfile.JobAt(s.file, stdin)
		if err != nil {
			return out, "", err
		}
		spec, folder = read, cli.FolderOf(s.file)
	}
	if len(args) > 0 {
		spec.Command = args
	}
	if err := s.apply(spec, c.Flags().Changed); err != nil {
		return out, "", cli.Usage(err)
	}
	// An image may bring a command of its own.
	if len(spec.Command) == 0 && spec.Image == "" {
		return out, "", cli.Usage(errors.New("there is no command; write it behind the flags, as in `muster run -- echo hello`"))
	}
	spec.Defaults()
	if problems := spec.ValidateFile(); problems != nil {
		return out, "", cli.Usage(&api.Problem{Title: "the job is wrong", Errors: problems})
	}
	out.Spec = *spec
	return out, folder, nil
}

// apply puts what the flags say into the spec. Given is whether a flag was given.
func (s *specFlags) apply(spec *api.JobSpec, given func(string) bool) error {
	for _, t := range []struct {
		flag, value string
		to          *string
	}{
		{"name", s.name, &spec.Name},
		{"namespace", s.namespace, &spec.Namespace},
		{"workdir", s.workdir, &spec.Workdir},
		{"pool", s.pool, &spec.Pool},
		{"image", s.image, &spec.Image},
		{"user", s.user, &spec.User},
		{"network", s.network, &spec.Network},
	} {
		if given(t.flag) {
			*t.to = t.value
		}
	}
	if given("exclusive") {
		spec.Exclusive = s.exclusive
	}
	if given("count") {
		if s.count < 1 {
			return fmt.Errorf("--count is %d; a job has 1 to %d members", s.count, api.MaxCount)
		}
		spec.Count = s.count
	}
	if given("cpu") {
		if s.cpu == 0 {
			return fmt.Errorf("--cpu is 0; give at least %g", api.MinCPU)
		}
		spec.Resources.CPU = s.cpu
	}
	if given("priority") {
		p := s.priority
		spec.Priority = &p
	}
	if given("attempts") {
		if s.attempts < 1 {
			return fmt.Errorf("--attempts is %d; it is 1 to %d", s.attempts, api.MaxAttempts)
		}
		spec.Restart.Attempts = s.attempts
	}
	if given("on") {
		spec.Restart.On = s.on
		if !given("attempts") && s.file == "" {
			spec.Restart.Attempts = 0 // the default changes with it
		}
	}
	if err := s.container(spec, given); err != nil {
		return err
	}
	if err := s.quantities(spec, given); err != nil {
		return err
	}
	if err := s.environment(spec); err != nil {
		return err
	}
	for _, c := range s.constraints {
		k, err := parseConstraint(c)
		if err != nil {
			return err
		}
		spec.Constraints = append(spec.Constraints, k)
	}
	for _, i := range s.inputs {
		in, err := parseInput(i)
		if err != nil {
			return err
		}
		// Relative to where the command was typed, not to the job file.
		if in.File, err = filepath.Abs(in.File); err != nil {
			return err
		}
		spec.Inputs = append(spec.Inputs, in)
	}
	for _, o := range s.outputs {
		spec.Outputs = append(spec.Outputs, api.OutputSpec{Path: o})
	}
	return nil
}

// container puts in what is of containers only, and their limits.
func (s *specFlags) container(spec *api.JobSpec, given func(string) bool) error {
	if given("image") && s.image == "" {
		return errors.New("--image is empty; name one, as python:3.13")
	}
	if given("entrypoint") {
		spec.Entrypoint = []string{s.entrypoint}
	}
	if given("egress") {
		spec.Egress = s.egress
	}
	if given("port") {
		spec.Ports = s.ports
	}
	if given("cpu-max") {
		if s.cpuMax <= 0 {
			return fmt.Errorf("--cpu-max is %g; leave it out for no limit", s.cpuMax)
		}
		spec.Resources.CPUMax = s.cpuMax
	}
	if given("pids") {
		if s.pids < 1 {
			return fmt.Errorf("--pids is %d; leave it out for the default", s.pids)
		}
		spec.Resources.Pids = s.pids
	}
	return nil
}

func (s *specFlags) quantities(spec *api.JobSpec, given func(string) bool) error {
	for _, q := range []struct {
		flag, value string
		to          *api.Size
	}{{"memory", s.memory, &spec.Resources.Memory}, {"disk", s.disk, &spec.Resources.Disk}, {"output-limit", s.outputLimit, &spec.OutputLimit}} {
		if !given(q.flag) {
			continue
		}
		v, err := api.ParseSize(q.value)
		if err == nil && v == 0 && q.flag != "disk" {
			err = errors.New("is 0; leave it out for the default")
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", q.flag, err)
		}
		*q.to = v
	}
	for _, q := range []struct {
		flag, value string
		to          *api.Duration
	}{{"timeout", s.timeout, &spec.Timeout}, {"kill-grace", s.killGrace, &spec.KillGrace}} {
		if !given(q.flag) {
			continue
		}
		v, err := api.ParseDuration(q.value)
		if err == nil && v == 0 && q.flag == "kill-grace" {
			v = api.Duration(time.Millisecond) // as good as at once; 0 would stand for the default
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", q.flag, err)
		}
		*q.to = v
	}
	return nil
}

func (s *specFlags) environment(spec *api.JobSpec) error {
	env, err := cli.ParseEnv(s.env)
	if err != nil {
		return err
	}
	for name, value := range env {
		if spec.Env == nil {
			spec.Env = map[string]string{}
		}
		spec.Env[name] = value
	}
	return nil
}

// parseInput reads SOURCE:PATH, or SOURCE alone for the same name in the work directory.
func parseInput(s string) (api.InputSpec, error) {
	source, to := s, path.Base(filepath.ToSlash(s))
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		source, to = s[:i], s[i+1:]
	}
	if source == "" || to == "" {
		return api.InputSpec{}, fmt.Errorf("--input %s: write SOURCE:PATH, a local file and where it goes in the work directory", s)
	}
	if strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://") {
		return api.InputSpec{}, fmt.Errorf("--input %s: an address needs a digest beside it; write it into a job file (url and digest)", s)
	}
	return api.InputSpec{File: source, Path: to}, nil
}

// parseConstraint reads a constraint as users write it.
func parseConstraint(s string) (api.ConstraintSpec, error) {
	if name, list, ok := strings.Cut(s, " in "); ok {
		return api.ConstraintSpec{Attribute: strings.TrimSpace(name), Op: muster.OpIn, Values: strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })}, nil
	}
	if name, value, ok := strings.Cut(s, "="); ok {
		if before, not := strings.CutSuffix(name, "!"); not {
			return api.ConstraintSpec{Attribute: strings.TrimSpace(before), Op: muster.OpNotEqual, Value: strings.TrimSpace(value)}, nil
		}
		return api.ConstraintSpec{Attribute: strings.TrimSpace(name), Op: muster.OpEqual, Value: strings.TrimSpace(value)}, nil
	}
	if s == "" || strings.ContainsAny(s, " <>") {
		return api.ConstraintSpec{}, fmt.Errorf("--constraint %q: write NAME=VALUE, NAME!=VALUE, NAME in A,B, or NAME", s)
	}
	return api.ConstraintSpec{Attribute: s, Op: muster.OpIsSet}, nil
}
