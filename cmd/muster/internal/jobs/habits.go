package jobs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// habit is a flag that users of Docker, Slurm and Kubernetes type and that `muster run` does not have. Whoever gives it
// is told what to use instead, which helps more than "unknown flag". It is in no help text.
type habit struct {
	// name and short are as they type them; short may be "".
	name, short string
	// takes says that the flag has a value.
	takes bool
	// instead is a sentence that says what to do.
	instead string
}

// habits are all of them.
func habits() []habit {
	const devices = "say how many GPUs each member needs with --gpus; a job file can ask for a model, a part or another kind of device"
	return []habit{
		{"mount", "", true, "it is --volume NAME:PATH for a directory that the pool's configuration names; bring files of your own with --input SOURCE:PATH, keep them with --output PATH"},
		{"publish", "p", true, "no port of the node is given away; reach any port of the sandbox with `muster port JOB LOCAL:PORT`, or let others on its node connect with --port PORT"},
		{"rm", "", false, "it is not needed: a sandbox is always deleted when its command has ended; what it printed is kept for `muster job logs`"},
		{"cpus", "", true, "say what is set aside with --cpu, and the most it may use with --cpu-max"},
		{"pids-limit", "", true, "it is --pids"},
		{"net", "", true, "it is --network none, bridge or host"},
		{"restart", "", true, "say how often with --attempts, and after which ends with --on"},
		{"privileged", "", false, "containers of jobs are never privileged; docs/isolation.md says what they may do"},
		{"gpu", "", true, devices},
		{"gres", "", true, devices},
		{"mem", "", true, "it is --memory"},
		{"mem-per-cpu", "", true, "it is --memory, for each member"},
		{"time", "", true, "it is --timeout, as 90m or 2h"},
		{"partition", "", true, "it is --pool"},
		{"array", "", true, "say how many with --count; each member has its index in MUSTER_INDEX"},
		{"ntasks", "", true, "it is --count"},
		{"nodes", "", true, "members are placed one by one; say how many with --count, and what each needs with --cpu and --memory"},
		{"cpus-per-task", "c", true, "it is --cpu"},
		{"job-name", "J", true, "it is --name"},
		{"dependency", "", true, "jobs do not depend on each other; wait for one with `muster job wait JOB`, then submit the next"},
		{"pty", "", false, "it is -it"},
		{"pull", "", true, "an image that a node does not have is pulled by itself; ahead of time: `muster image pull`"},
	}
}

// addHabits adds the flags to muster run. Each refuses any value.
func addHabits(f *pflag.FlagSet) {
	for _, h := range habits() {
		v := &refusal{flag: h}
		flag := f.VarPF(v, h.name, h.short, "")
		flag.Hidden = true
		// A flag without a value must not take the next word, which is part of the command.
		if !h.takes {
			flag.NoOptDefVal = "true"
		}
	}
}

// refusal is the value of a flag that cannot be given.
type refusal struct{ flag habit }

// String is the default, which is shown nowhere.
func (r *refusal) String() string { return "" }

// Type is what the flag parser calls the kind of value.
func (r *refusal) Type() string { return "string" }

// Set refuses the flag.
func (r *refusal) Set(string) error { return refused{r.flag} }

// refused is the error of a flag that cannot be given.
type refused struct{ flag habit }

// Error says what to use instead.
func (r refused) Error() string {
	name := "--" + r.flag.name
	if r.flag.short != "" {
		name = "-" + r.flag.short
	}
	return fmt.Sprintf("%s is not for `muster run`: %s", name, r.flag.instead)
}

// plainHabit takes off what the flag parser says around a refusal: "invalid argument" is not what
// is wrong.
func plainHabit(_ *cobra.Command, err error) error {
	var r refused
	if errors.As(err, &r) {
		return r
	}
	return err
}

// imageWord is how images are written that no program is named like: with a tag, a digest, or a
// registry before them.
var imageWord = regexp.MustCompile(`^([a-z0-9.-]+(:[0-9]+)?/)?([a-z0-9._-]+/)*[a-z0-9._-]+(:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})$|^[a-z0-9-]+(\.[a-z0-9-]+)+/[a-z0-9._/-]+$`)

// imageNames are images that everybody knows. Some are programs of a node as well.
var imageNames = []string{
	"alpine", "amazonlinux", "archlinux", "busybox", "centos", "debian", "fedora", "golang", "hello-world", "httpd", "mariadb", "mongo",
	"mysql", "nginx", "node", "openjdk", "php", "postgres", "python", "redis", "rockylinux", "ruby", "rust", "ubuntu",
}

// fromImage is how a command is written whose first word is an image.
func fromImage(command []string) string {
	again := "muster run --image " + command[0]
	if len(command) > 1 {
		again += " -- " + term.ShellWords(command[1:])
	}
	return again
}

// imageHint says where a command without an image was looked for; "" if that is no help. It is
// shown when the command was not found.
func imageHint(spec *api.JobSpec) string {
	switch {
	case spec.Image != "" || len(spec.Command) == 0:
		return ""
	case len(spec.Command) == 1 && strings.ContainsAny(spec.Command[0], " \t\n"):
		return fmt.Sprintf("%s is one word; a shell takes it apart: `muster run -- sh -c %s`", term.ShellWords(spec.Command), term.ShellWords(spec.Command))
	case strings.HasPrefix(spec.Command[0], "docker-archive:") || strings.HasPrefix(spec.Command[0], "oci:") || imageWord.MatchString(spec.Command[0]) || slices.Contains(imageNames, spec.Command[0]):
		return fmt.Sprintf("%s looks like an image: `%s`", spec.Command[0], fromImage(spec.Command))
	}
	// A path was meant for the node, or it is wrong; an image is no help with either.
	if strings.Contains(spec.Command[0], "/") {
		return ""
	}
	return fmt.Sprintf("no image was given, so that %s was looked for on the node itself; to take it from an image: `muster run --image IMAGE -- %s`",
		spec.Command[0], term.ShellWords(spec.Command))
}

// fileHint is for a command that failed: it says so if a word of it is a file of the current
// directory and the job had no such file. "" is no hint.
func fileHint(spec *api.JobSpec) string {
	if spec.Workdir != "" {
		return "" // it may be there
	}
	for _, word := range spec.Command {
		name := path.Clean(word)
		if strings.HasPrefix(word, "-") || path.IsAbs(word) || name == "." || strings.HasPrefix(name, "..") {
			continue
		}
		if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if slices.ContainsFunc(spec.Inputs, func(in api.InputSpec) bool { return path.Clean(in.Path) == name }) {
			continue
		}
		return fmt.Sprintf("%s is a file here, and the job did not have it: a job starts in an empty directory; bring the file with `--input %s`, or this directory with `--input .`", name, name)
	}
	return ""
}

// namedLikeImage is for a command that is about to run on the node although its first word is known
// as an image; "" for others. One word alone may be meant as either, and is found or not.
func namedLikeImage(spec *api.JobSpec) string {
	if spec.Image != "" || len(spec.Command) < 2 || !slices.Contains(imageNames, spec.Command[0]) {
		return ""
	}
	return fmt.Sprintf("no image was given: %s is the node's own program; from an image it is `%s`", spec.Command[0], fromImage(spec.Command))
}
