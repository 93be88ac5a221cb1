package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/specfile"
)

// specFlags are the flags that describe a job. They are named as in a job file where that has the
// field.
type specFlags struct {
	// file is the job file; what other flags say takes the place of what it says.
	file      string
	name      string
	namespace string
	// count, cpu and the like are 0 where the flag was not given, which apply tells from a 0 that
	// was.
	count int
	cpu   float64
	// memory, disk and outputLimit are sizes as users write them, timeout and killGrace durations.
	// They stay text until quantities reads them, so that an error can name the flag.
	memory string
	disk   string
	// env, inputs, outputs and constraints may be given several times, and add to those of the
	// file.
	env       []string
	timeout   string
	killGrace string
	priority  int
	attempts  int
	// on says after which ends an attempt is followed by another one.
	on          []string
	inputs      []string
	outputs     []string
	workdir     string
	pool        string
	image       string
	constraints []string
	outputLimit string
	// replace stops a running job of this name. It is of the submission and not of the job.
	replace bool
	// exclusive asks that no member is ever run by two nodes at once.
	exclusive bool

	// What follows is about containers.
	entrypoint string
	user       string
	hostname   string
	network    string
	egress     []string
	ports      []int
	cpuMax     float64
	pids       int
	gpus       int
	volumes    []string
}

// flags adds them to a command. Defaults are said and not set: the job file or the server has them,
// and a flag counts only if it was given.
func (s *specFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.file, "file", "f", "", "job file (YAML or JSON, - is stdin); flags change what it says")
	f.StringVar(&s.name, "name", "", "name of the job (default: generated)")
	f.StringVarP(&s.namespace, "namespace", "n", "", "namespace of the job (default \"default\")")
	f.IntVar(&s.count, "count", 0, "how many members (default 1)")
	cli.CoresVar(f, &s.cpu, "cpu", "cores that a member needs, for example 0.5 or 500m (default 1)")
	f.StringVarP(&s.memory, "memory", "m", "", "memory that a member needs, for example 64MiB (default 256MiB)")
	f.StringVar(&s.disk, "disk", "", "disk that a member needs, and the most that a container may write, for example 1GiB (default none; 10GiB for a container)")
	cli.CoresVar(f, &s.cpuMax, "cpu-max", "most cores, even if more are idle (default no limit)")
	f.IntVar(&s.gpus, "gpus", 0, "whole GPUs that a member needs (default none)")
	f.IntVar(&s.pids, "pids", 0, "most processes and threads (default 4096)")
	f.StringArrayVarP(&s.env, "env", "e", nil, "environment variable NAME=VALUE, or NAME to pass your own; may be repeated")
	f.StringVar(&s.timeout, "timeout", "", "stop an attempt that runs longer, for example 10m")
	f.StringVar(&s.killGrace, "kill-grace", "", "time between TERM and KILL (default 10s)")
	f.IntVar(&s.priority, "priority", 0, "0 to 100, higher first (default 50)")
	f.IntVar(&s.attempts, "attempts", 0, "most attempts of a member (default 1; 3 with --on)")
	f.StringSliceVar(&s.on, "on", nil, "failures that are retried: exit codes and ranges, for example 1,3-5, or any, timeout, out-of-memory, signal")
	f.StringArrayVar(&s.inputs, "input", nil, "local file or directory SOURCE:PATH to put into the work directory, . for what is in this directory; may be repeated")
	f.StringArrayVar(&s.outputs, "output", nil, "file or directory in the work directory to keep, for muster job fetch; may be repeated")
	f.StringVarP(&s.workdir, "workdir", "w", "", "working directory (default: a new directory, or the image's)")
	f.StringVar(&s.pool, "pool", "", "only nodes of this pool")
	f.StringVar(&s.image, "image", "", "container image, for example python:3.13 (default: none, a process on the node); without a command, the image's own is run")
	f.StringVar(&s.entrypoint, "entrypoint", "", "program instead of the image's entrypoint and command; empty for none")
	f.StringVarP(&s.user, "user", "u", "", "user in the container: NAME, UID, NAME:GROUP or UID:GID (default: as the image says, else root)")
	f.StringVar(&s.hostname, "hostname", "", "the container's host name (default: the name of the job and the index of the member)")
	f.StringVar(&s.network, "network", "", "of the container: none, bridge or host (default bridge)")
	f.StringArrayVar(&s.egress, "egress", nil, "restrict the bridge network to these destinations, for example 10.0.0.0/8; may be repeated (default all)")
	f.IntSliceVar(&s.ports, "port", nil, "TCP port of the container that others on the node may connect to; may be repeated; muster port does not need it")
	f.StringArrayVarP(&s.volumes, "volume", "v", nil, "volume of the pool, mounted in the container: NAME:PATH, read-only, or NAME:PATH:rw; may be repeated")
	f.StringArrayVar(&s.constraints, "constraint", nil, "node attribute: NAME=VALUE, NAME!=VALUE, NAME in A,B, or NAME; may be repeated")
	f.BoolVar(&s.exclusive, "exclusive", false, "never run a member on two nodes at once: its agent kills it when it is cut off from the server for the pool's fence")
	f.StringVar(&s.outputLimit, "output-limit", "", "most bytes kept of stdout, and of stderr (default 256MiB)")
	f.BoolVar(&s.replace, "replace", false, "stop a running job of this name, and run this one instead")
	addHabits(f)
}

// submission is the job that flags and arguments describe, and the folder that its local files are
// relative to. The job is checked as the server will check it, so that most mistakes are found
// without one.
func (s *specFlags) submission(c *cobra.Command, args []string, stdin io.Reader) (api.JobSubmission, string, error) {
	out := api.JobSubmission{Replace: s.replace}
	// Without a file the flags are all of it.
	spec, folder := &api.JobSpec{}, "."
	if s.file != "" {
		read, err := specfile.JobAt(s.file, stdin)
		if err != nil {
			return out, "", err
		}
		spec, folder = read, cli.FolderOf(s.file)
	}
	// A command behind the flags takes the place of the file's.
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
	// The defaults are set before the check, as the server does it.
	spec.Defaults()
	if problems := spec.ValidateFile(); problems != nil {
		return out, "", cli.Usage(&api.Problem{Title: "the job is wrong", Errors: problems})
	}
	out.Spec = *spec
	return out, folder, nil
}

// apply puts what the flags say into the spec. Given reports whether a flag was given: a value
// alone cannot say whether the job file's is meant.
func (s *specFlags) apply(spec *api.JobSpec, given func(string) bool) error {
	// Texts are taken as they are; what is wrong with one is found when the whole is checked.
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
		{"hostname", s.hostname, &spec.Hostname},
		{"network", s.network, &spec.Network},
	} {
		if given(t.flag) {
			*t.to = t.value
		}
	}
	if given("exclusive") {
		spec.Exclusive = s.exclusive
	}
	// The server would take 0 for its default. Whoever types it means something else.
	if given("count") {
		if s.count < 1 {
			return fmt.Errorf("--count is %d; a job has 1 to %d members", s.count, api.MaxCount)
		}
		spec.Count = s.count
	}
	// A member needs some of a processor, so 0 is a mistake here too.
	if given("cpu") {
		if s.cpu == 0 {
			return fmt.Errorf("--cpu is 0; give at least %g", api.MinCPU)
		}
		spec.Resources.CPU = s.cpu
	}
	if given("priority") {
		// The spec keeps a pointer, and the flag's own variable may be parsed again.
		p := s.priority
		spec.Priority = &p
	}
	if given("attempts") {
		if s.attempts < 1 {
			return fmt.Errorf("--attempts is %d; it is 1 to %d", s.attempts, api.MaxAttempts)
		}
		spec.Restart.Attempts = s.attempts
	}
	// What is tried again decides how often by default.
	if given("on") {
		spec.Restart.On = s.on
		if !given("attempts") && s.file == "" {
			// The default changes with --on.
			spec.Restart.Attempts = 0
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
	// Constraints, inputs and outputs add to those of the file: a list has no name by which one
	// could be replaced.
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
		// The file is relative to where the command was typed, not to the job file.
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

// container puts in what only containers have, and their limits. An empty or zero value is refused
// where leaving the flag out says the same: whoever gives it means something else.
func (s *specFlags) container(spec *api.JobSpec, given func(string) bool) error {
	if given("image") && s.image == "" {
		return errors.New("--image is empty; name one, as python:3.13")
	}
	// An empty one takes the image's entrypoint away, so it is not the same as none.
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
	if given("gpus") {
		if s.gpus < 0 {
			return fmt.Errorf("--gpus is %d; give the number of GPUs that each member needs", s.gpus)
		}
		spec.Resources.Devices = slices.DeleteFunc(spec.Resources.Devices, func(d api.DeviceAskSpec) bool { return d.Kind == "" || d.Kind == api.DefaultDeviceKind })
		if s.gpus > 0 {
			spec.Resources.Devices = append(spec.Resources.Devices, api.DeviceAskSpec{Count: s.gpus})
		}
	}
	for _, v := range s.volumes {
		volume, err := parseVolume(v)
		if err != nil {
			return err
		}
		spec.Volumes = append(spec.Volumes, volume)
	}
	if given("pids") {
		if s.pids < 1 {
			return fmt.Errorf("--pids is %d; leave it out for the default", s.pids)
		}
		spec.Resources.Pids = s.pids
	}
	return nil
}

// volumeByPath is the value of a --volume that names a directory of the node by its path.
type volumeByPath string

// Error says how a volume is named. The names that there are come from the server; see addVolumes.
func (v volumeByPath) Error() string {
	return fmt.Sprintf("--volume %q: a container gets no directory of its node by its path, but by the name that the pool's configuration gives it in volumes, as in -v data:/data; to bring files of your own use --input SOURCE:PATH", string(v))
}

// addVolumes adds to such an error which volumes the server's pools have. Without an answer the
// error stays as it is: a command that is wrong needs no server to be refused.
func addVolumes(ctx context.Context, app *cli.App, pool string, err error) error {
	if !errors.As(err, new(volumeByPath)) {
		return err
	}
	cl, offline := app.Connect()
	if offline != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	config, offline := cl.Config(ctx)
	if offline != nil {
		return err
	}
	var known []string
	for _, p := range config.Pools {
		if pool != "" && p.Name != pool {
			continue
		}
		for name := range p.Volumes {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	if known = slices.Compact(known); len(known) == 0 {
		return cli.Usage(fmt.Errorf("%w; no pool has a volume yet, see docs/volumes.md", err))
	}
	return cli.Usage(fmt.Errorf("%w; the volumes here are: %s", err, strings.Join(known, ", ")))
}

// parseVolume reads NAME:PATH, NAME:PATH:ro or NAME:PATH:rw.
func parseVolume(text string) (api.VolumeSpec, error) {
	name, rest, ok := strings.Cut(text, ":")
	at, mode, _ := strings.Cut(rest, ":")
	switch {
	case strings.ContainsAny(name, "/.~"):
		return api.VolumeSpec{}, volumeByPath(text)
	case !ok || name == "" || at == "" || mode != "" && mode != "ro" && mode != "rw":
		return api.VolumeSpec{}, fmt.Errorf("--volume %q is not NAME:PATH, NAME:PATH:ro or NAME:PATH:rw, as data:/data", text)
	}
	return api.VolumeSpec{Name: name, Path: at, Writable: mode == "rw"}, nil
}

// quantities reads sizes and durations.
func (s *specFlags) quantities(spec *api.JobSpec, given func(string) bool) error {
	for _, q := range []struct {
		flag, value string
		to          *api.Size
	}{{"memory", s.memory, &spec.Resources.Memory}, {"disk", s.disk, &spec.Resources.Disk}, {"output-limit", s.outputLimit, &spec.OutputLimit}} {
		if !given(q.flag) {
			continue
		}
		v, err := api.ParseSize(q.value)
		// A disk of 0 is none, which can be meant.
		if err == nil && v == 0 && q.flag != "disk" {
			// In a spec 0 stands for the default, so it cannot be asked for.
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
			// A millisecond is as good as at once; 0 would stand for the default.
			v = api.Duration(time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("--%s: %w", q.flag, err)
		}
		*q.to = v
	}
	return nil
}

// environment adds variables to those of the job file.
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

// parseInput reads SOURCE:PATH, or SOURCE alone for the same name in the work directory. The last
// colon counts: names on this host have more of them than names inside.
func parseInput(s string) (api.InputSpec, error) {
	source, to := s, path.Base(filepath.ToSlash(filepath.Clean(s)))
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		source, to = s[:i], s[i+1:]
	} else if to == ".." {
		to = "." // a directory without a name of its own
	}
	if source == "" || to == "" {
		return api.InputSpec{}, fmt.Errorf("--input %s: write SOURCE:PATH, a local file or directory and where it goes in the work directory", s)
	}
	// What is fetched by a node must be known by its digest, or two members could get two files.
	if strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://") {
		return api.InputSpec{}, fmt.Errorf("--input %s: an address needs a digest beside it; write it into a job file (url and digest)", s)
	}
	return api.InputSpec{File: source, Path: to}, nil
}

// parseConstraint reads a constraint as users write it: NAME=VALUE, NAME!=VALUE, NAME in A,B, or
// NAME alone, which asks for any value.
func parseConstraint(s string) (api.ConstraintSpec, error) {
	if name, list, ok := strings.Cut(s, " in "); ok {
		return api.ConstraintSpec{Attribute: strings.TrimSpace(name), Op: muster.OpIn, Values: strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })}, nil
	}
	if name, value, ok := strings.Cut(s, "="); ok {
		// A ! before the = belongs to the operator and not to the name.
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
