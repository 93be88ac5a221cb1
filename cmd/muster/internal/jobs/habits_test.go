package jobs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestRunContainerFlags(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.End(0, 1, 0)
		s.EndJob("succeeded", "")
	}
	s.Muster(nil, "run", "--image", "python:3.13", "--entrypoint", "", "-u", "1000:1000", "-w", "/srv", "--network", "bridge", "--egress", "10.0.0.0/8", "--egress", "192.0.2.1/32",
		"--port", "80", "--port", "443", "--cpu-max", "1.5", "--pids", "100").Check(t, 0, "", "muster: job run-1\n")
	got := s.Submitted[0].Spec
	if got.Image != "python:3.13" || len(got.Command) != 0 || len(got.Entrypoint) != 1 || got.Entrypoint[0] != "" || got.User != "1000:1000" || got.Workdir != "/srv" || got.Network != "bridge" ||
		strings.Join(got.Egress, " ") != "10.0.0.0/8 192.0.2.1/32" || len(got.Ports) != 2 || got.Resources.CPUMax != 1.5 || got.Resources.Pids != 100 {
		t.Errorf("%+v", got)
	}
	for args, want := range map[string]string{
		"run --image= -- x":                           "--image is empty",
		"run --cpu-max 0 -- x":                        "--cpu-max is 0",
		"run --pids 0 -- x":                           "--pids is 0",
		"run --user bob -- x":                         "needs an image",
		"run --image a --network lan":                 "none, bridge or host",
		"run --image a --network none --egress 0/0 x": "egress",
	} {
		if r := s.Muster(nil, strings.Fields(args)...); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
}

// A job is exclusive if the flag says so, and what the flag says wins over the file.
func TestRunExclusive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(file, []byte("command: [x]\nexclusive: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]bool{
		"run -- x":                              false,
		"run --exclusive -- x":                  true,
		"run -f " + file:                        true,
		"run -f " + file + " --exclusive=false": false,
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, 0)
			s.EndJob("succeeded", "")
		}
		s.Muster(nil, strings.Fields(args)...).Check(t, 0, "", "muster: job run-1\n")
		if got := s.Submitted[0].Spec.Exclusive; got != want {
			t.Errorf("%s: exclusive is %v", args, got)
		}
	}
}

// What users of Docker type is answered with what to use instead.
func TestRunHabits(t *testing.T) {
	s := newServer(t)
	for args, want := range map[string]string{
		"run --pty x":                   "muster: --pty is not for `muster run`: it is -it\n",
		"run --mount /a:/b --image x":   "muster: --mount is not for `muster run`: it is --volume NAME:PATH .*\n",
		"run -p 80:80 --image x":        "muster: -p is not for `muster run`: .*`muster port JOB LOCAL:PORT`.*\n",
		"run --publish=80:80 --image x": "muster: -p is not for `muster run`: .*\n",
		"run --rm --image x":            "muster: --rm is not for `muster run`: it is not needed: .*\n",
		"run --cpus 2 x":                "muster: --cpus is not for `muster run`: say what is set aside with --cpu, .*\n",
		"run --mem 1G x":                "muster: --mem is not for `muster run`: it is --memory\n",
		"run --time 60 x":               "muster: --time is not for `muster run`: it is --timeout, .*\n",
		"run --partition fast x":        "muster: --partition is not for `muster run`: it is --pool\n",
		"run --array 1-9 x":             "muster: --array is not for `muster run`: say how many with --count; .*\n",
		"run --gres gpu:2 x":            "muster: --gres is not for `muster run`: .*--gpus;.*\n",
		"run --gpus all x":              "muster: invalid argument \"all\" for \"--gpus\" flag: .*\n",
		"run --nope x":                  "muster: unknown flag: --nope\n",
	} {
		r := s.Muster(nil, strings.Fields(args)...)
		if ok, _ := regexp.MatchString("^"+want+"`muster run --help` tells more.\n$", r.Stderr); !ok || r.Code != 2 {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
	for args, want := range map[string]string{
		"run -it --image python:3.13 python3": "muster: -t needs a terminal, and stdin is none; `muster run -i` .*\n",
		"run -itd x":                          "muster: -t has no terminal with --detach; .*\n",
		"run -t --count 2 x":                  "muster: -t gives the terminal to one member, and count is 2\n",
		"run -t --attempts 2 --on any x":      "muster: -t runs the command once; .*\n",
		"run -t --entrypoint a --image b c":   "muster: -t starts the command without an entrypoint; .*\n",
		"run -t --json x":                     "muster: --json has no terminal; .*\n",
	} {
		s.Muster(nil, strings.Fields(args)...).Check(t, 2, "", want)
	}
	if r := s.Muster(nil, "run", "--help"); strings.Contains(r.Stdout, "--publish") {
		t.Error("the help tells of flags that there are not")
	}
}

func TestRunImageHint(t *testing.T) {
	missing := func(al *api.Alloc) {
		al.ExitCode, al.Failure = nil, &api.Failure{Reason: "command-not-found", Message: "no such program"}
	}
	for args, hint := range map[string]string{
		"run python:3.13 python3 -c print(1)": "muster: python:3.13 looks like an image: `muster run --image python:3.13 -- python3 -c 'print\\(1\\)'`\n",
		"run ghcr.io/team/app":                "muster: ghcr.io/team/app looks like an image: `muster run --image ghcr.io/team/app`\n",
		"run ./tool":                          "",
		"run bin/tool":                        "",
		"run pyhton3 -V":                      "muster: no image was given, so that pyhton3 was looked for on the node itself; to take it from an image: `muster run --image IMAGE -- pyhton3 -V`\n",
		"run docker-archive:/x.tar true":      "muster: docker-archive:/x.tar looks like an image: `muster run --image docker-archive:/x.tar -- true`\n",
		"run hello-world":                     "muster: hello-world looks like an image: `muster run --image hello-world`\n",
		"run --image alpine:3 a:b":            "",
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, 1, missing)
			s.EndJob("failed", "")
		}
		s.Muster(nil, strings.Fields(args)...).Check(t, 127, "", "muster: job run-1\nmuster: attempt 1 failed: no such program\n"+hint)
	}
}

// A command line in quotes is one word, which no program is named like.
func TestRunOneWord(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.End(0, 1, 1, func(al *api.Alloc) {
			al.ExitCode, al.Failure = nil, &api.Failure{Reason: "command-not-found", Message: "no such program"}
		})
		s.EndJob("failed", "")
	}
	s.Muster(nil, "run", "echo hi | cat").Check(t, 127, "", "muster: job run-1\nmuster: attempt 1 failed: no such program\n"+
		"muster: 'echo hi \\| cat' is one word; a shell takes it apart: `muster run -- sh -c 'echo hi \\| cat'`\n")
}

// Volumes have names; a path of the node is refused with what to do instead.
func TestRunVolume(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) { s.EndJob("succeeded", "") }
	s.Muster(nil, "run", "-v", "data:/data", "--volume", "out:/out:rw", "--volume=models:/m:ro", "--image", "a", "x").Check(t, 0, "", "muster: job run-1\n")
	want := []api.VolumeSpec{{Name: "data", Path: "/data"}, {Name: "out", Path: "/out", Writable: true}, {Name: "models", Path: "/m"}}
	if got := s.Submitted[0].Spec.Volumes; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for arg, want := range map[string]string{
		"/data:/data": "by the name that the pool's configuration gives it", "./x:/x": "--input SOURCE:PATH",
		"data": "is not NAME:PATH", "data:/x:rx": "is not NAME:PATH", ":/x": "is not NAME:PATH",
	} {
		if r := s.Muster(nil, "run", "-v", arg, "--image", "a", "x"); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %q", arg, r.Code, r.Stderr)
		}
	}
	// Whoever names a directory learns which volumes there are.
	byPath := func(want string, args ...string) {
		t.Helper()
		if r := s.Muster(nil, append([]string{"run", "-v", "/data:/data", "--image", "a"}, append(args, "x")...)...); r.Code != 2 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
	s.Config = &api.ServerConfig{Pools: []api.PoolSpec{{Name: "main"}}}
	byPath("no pool has a volume yet, see docs/volumes.md")
	s.Config.Pools = []api.PoolSpec{
		{Name: "main", Volumes: map[string]api.PoolVolume{"results": {Path: "/srv/results"}, "data": {Path: "/srv/data"}}},
		{Name: "other", Volumes: map[string]api.PoolVolume{"data": {Path: "/srv/data"}, "scratch": {Path: "/scratch"}}},
	}
	byPath("the volumes here are: data, results, scratch\n")
	byPath("the volumes here are: data, scratch\n", "--pool", "other")
}

// srun's -n is a number of tasks, ours the namespace.
func TestRunInNamespaceOfNumber(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) { s.EndJob("succeeded", "") }
	s.Muster(nil, "run", "-n", "4", "--gpus", "2", "-m", "1g", "x").Check(t, 0, "", "muster: -n is the namespace, so the job is in namespace 4; for 4 members it is --count 4\nmuster: job 4/run-1\n")
	if r := s.Submitted[0].Spec.Resources; r.Memory != api.Size(muster.GiB) || len(r.Devices) != 1 || r.Devices[0].Count != 2 {
		t.Errorf("%+v", r)
	}
	if r := s.Muster(nil, "run", "--gpus", "-1", "x"); r.Code != 2 || !strings.Contains(r.Stderr, "--gpus is -1; give the number of GPUs that each member needs") {
		t.Errorf("exit code %d, %q", r.Code, r.Stderr)
	}
}

// The digest that members were started from is shown.
func TestJobShowImage(t *testing.T) {
	s := withJob(t, 1)
	s.Job.Spec = &api.JobSpec{Template: api.Template{Image: "python:3.13", Command: []string{"x"}}}
	s.Allocs[0].Image = "sha256:abc"
	if r := s.Muster(nil, "job", "show", "web"); !strings.Contains(r.Stdout, "Image      python:3.13 (sha256:abc)\n") {
		t.Error(r.Stdout)
	}
}

// What is the node's own program and known as an image as well runs, and which of the two it is is
// said.
func TestRunNamedLikeImage(t *testing.T) {
	const hint = "muster: no image was given: busybox is the node's own program; from an image it is `muster run --image busybox -- sh`\n"
	for args, says := range map[string]string{
		"run busybox sh": hint, "run -q busybox sh": "", "run python3 x.py": "", "run busybox": "", "run --image busybox busybox sh": "",
	} {
		s := newServer(t)
		s.OnSubmit = func(s *clitest.Server) {
			s.Start(0, 1)
			s.End(0, 1, 0)
			s.EndJob("succeeded", "")
		}
		if !strings.Contains(args, "-q") {
			says += "muster: job run-1\n"
		}
		s.Muster(nil, strings.Fields(args)...).Check(t, 0, "", says)
	}
}

// A shell that exits with 127 was found; it is another program that was not.
func TestRunImageHintIsNotForExitCode127(t *testing.T) {
	s := newServer(t)
	s.OnSubmit = func(s *clitest.Server) {
		s.Start(0, 1)
		s.End(0, 1, 127)
		s.EndJob("failed", "")
	}
	s.Muster(nil, "run", "--", "sh", "-c", "nope").Check(t, 127, "", "muster: job run-1\nmuster: attempt 1 failed: [^\n]*\n")
}
