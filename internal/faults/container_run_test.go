package faults

import (
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/imagetest"
)

// What an image says of how it wants to be run is honoured, and what the user says instead of it.
func TestImageConfiguration(t *testing.T) {
	t.Parallel()
	needContainers(t)
	registry := imagetest.NewRegistry(t, imagetest.Anonymous)
	h := newHost(t)
	h.plain(registry)
	h.start()
	for _, v := range imagetest.Variants(t) {
		if v.Name == "stop-signal" {
			continue // see TestContainerStopSignal
		}
		t.Run(v.Name, func(t *testing.T) {
			args := []string{"run", "--image", registry.Push(t, "variants:"+v.Name, v.Image), "--cpu", "0.1"}
			if v.Command != nil {
				args = append(append(args, "--"), v.Command...)
			}
			h.prints(v.Stdout, args...)
		})
	}
	odd := imagetest.Configured(t, imagetest.Busybox(t), func(c *v1.Config) {
		c.Entrypoint, c.Cmd, c.User, c.WorkingDir = []string{"echo", "entry"}, []string{"cmd"}, "worker", "/srv"
		c.Env = append(c.Env, "WORD=image", "OTHER=image")
	})
	image := registry.Push(t, "odd:1", odd)
	who := `echo $(id -u):$(id -g) $HOME $PWD $WORD $OTHER`
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"as it is":         {nil, "entry cmd\n"},
		"command":          {[]string{"--", "a", "b"}, "entry a b\n"},
		"entrypoint":       {[]string{"--entrypoint", "echo", "--", "a"}, "a\n"},
		"entrypoint alone": {[]string{"--entrypoint", "pwd"}, "/srv\n"},
		"no entrypoint":    {[]string{"--entrypoint", "", "--", "sh", "-c", who}, "1001:1001 /home/worker /srv image image\n"},
		"user":             {[]string{"--user", "app", "--entrypoint", "", "--", "sh", "-c", who}, "1000:1000 /home/app /srv image image\n"},
		"number":           {[]string{"--user", "4711:50", "--entrypoint", "", "--", "sh", "-c", who}, "4711:50 / /srv image image\n"},
		"root":             {[]string{"--user", "root", "--entrypoint", "", "--", "sh", "-c", who}, "0:0 /root /srv image image\n"},
		"workdir":          {[]string{"--workdir", "/made/anew", "--entrypoint", "", "--", "sh", "-c", who}, "1001:1001 /home/worker /made/anew image image\n"},
		"env":              {[]string{"-e", "WORD=job", "--entrypoint", "", "--", "sh", "-c", who}, "1001:1001 /home/worker /srv job image\n"},
	} {
		t.Run(name, func(t *testing.T) {
			h.prints(c.want, append([]string{"run", "--image", image, "--cpu", "0.1"}, c.args...)...)
		})
	}
	h.nothingLeft()
	h.quiet()
}

// prints fails the test unless the CLI succeeds and prints this on stdout.
func (h *host) prints(want string, args ...string) {
	h.t.Helper()
	p := h.cli(args...)
	p.says(0)
	if got := p.stdout.String(); got != want {
		h.t.Errorf("%s printed %q, want %q", p, got, want)
	}
}

// Inputs are where the command starts, whoever it runs as, and what it makes there comes back.
func TestContainerFiles(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	h.write("data", "some data\n")
	script := `pwd; id -u; cp in out/copy; echo x >out/sub/more; ln -s copy out/link; chmod 750 out/sub; stat -c %u in out .`
	for name, user := range map[string]string{"root": "root", "app": "app", "number": "4711"} {
		t.Run(name, func(t *testing.T) {
			run := h.cli("run", "--name", name, "--image", image, "--user", user, "--cpu", "0.1", "--input", h.path("data")+":in", "--output", "out", "--", "sh", "-c",
				"mkdir -p out/sub; "+script)
			run.says(0)
			uid := map[string]string{"root": "0", "app": "1000", "number": "4711"}[name]
			if want := "/workspace\n" + uid + "\n" + strings.Repeat(uid+"\n", 3); run.stdout.String() != want {
				t.Errorf("it printed %q, want %q", run.stdout, want)
			}
			dest := h.path("got-" + name)
			h.cli("job", "fetch", name, "--dest", dest).says(0)
			for file, want := range map[string]string{"out/copy": "some data\n", "out/sub/more": "x\n", "out/link": "some data\n"} {
				if got := readFile(t, filepath.Join(dest, file)); got != want {
					t.Errorf("%s is %q", file, got)
				}
			}
		})
	}
	missing := h.cli("run", "--name", "missing", "--image", image, "--cpu", "0.1", "--output", "out", "--", "true")
	missing.says(1, "out")
	t.Logf("%s", failed(t, h.allocs("missing")[0], muster.FailureUser, muster.ReasonOutputMissing))
	// A work directory elsewhere leaves them where they are. What is found there is never followed out of it.
	h.prints("some data\n/tmp\n", "run", "--image", image, "--cpu", "0.1", "--workdir", "/tmp", "--input", h.path("data")+":in", "--", "sh", "-c", "cat /workspace/in; pwd")
	// Its host name is its own, or what the job says, in /etc/hosts as well.
	h.prints("db.local\ndb.local\n1\n", "run", "--image", image, "--cpu", "0.1", "--hostname", "db.local", "--", "sh", "-c", "hostname; cat /etc/hostname; grep -c db.local /etc/hosts")
	evil := h.cli("run", "--name", "evil", "--image", image, "--cpu", "0.1", "--output", "out", "--", "sh", "-c", "ln -s /etc/passwd out")
	t.Logf("an output that is a link: exit code %d: %s", evil.cmd.ProcessState.ExitCode(), strings.TrimSpace(evil.stderr.String()))
	if evil.cmd.ProcessState.ExitCode() == 0 {
		h.cli("job", "fetch", "evil", "--dest", h.path("got-evil")).wait()
		if got := h.path("got-evil/out"); exists(got) {
			if to, err := filepath.EvalSymlinks(got); err == nil && to == got {
				t.Errorf("the node followed a link out of the work directory: %q", readFile(t, got))
			}
		}
	}
	h.nothingLeft()
	h.quiet()
}

// An execution is beside the command: in the same container, as the same user unless it says another, in the same directory.
func TestExecutionInContainer(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	run, a := h.container("web", image, []string{"--user", "app", "--workdir", "/srv", "-e", "WORD=job"}, "sh", "-c",
		`echo made >/tmp/file; until [ -e /tmp/gate ]; do sleep 0.05; done; exit 3`)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"same files":     {[]string{"web", "--", "cat", "/tmp/file"}, "made\n"},
		"same processes": {[]string{"web", "--", "cat", "/proc/1/comm"}, "init\n"},
		"same host":      {[]string{"web", "--", "hostname"}, "web-0\n"},
		"same user":      {[]string{"web", "--", "sh", "-c", "id -u; pwd; echo $WORD $HOME"}, "1000\n/srv\njob /home/app\n"},
		"root":           {[]string{"--user", "root", "--workdir", "/etc", "-e", "WORD=exec", "web", "--", "sh", "-c", "id -u; pwd; echo $WORD $HOME"}, "0\n/etc\nexec /root\n"},
		"member":         {[]string{"web/0", "--", "echo", "x"}, "x\n"},
		"id":             {[]string{a.ID, "--", "echo", "x"}, "x\n"},
	} {
		t.Run(name, func(t *testing.T) { h.prints(c.want, append([]string{"exec"}, c.args...)...) })
	}
	for name, c := range map[string]struct {
		code int
		args []string
		says string
	}{
		"exit code":   {7, []string{"web", "--", "sh", "-c", "exit 7"}, ""},
		"signal":      {137, []string{"web", "--", "sh", "-c", "kill -9 $$"}, ""},
		"time limit":  {124, []string{"--timeout", "200ms", "--kill-grace", "50ms", "web", "--", "sleep", "1011"}, "time limit"},
		"not found":   {127, []string{"web", "--", "no-such-program"}, "no-such-program"},
		"not a file":  {126, []string{"web", "--", "/etc"}, "/etc"},
		"no user":     {2, []string{"--user", "nobody-knows", "web", "--", "true"}, "nobody-knows"},
		"no job":      {1, []string{"none", "--", "true"}, "none"},
		"init is not": {1, []string{"--user", "root", "web", "--", "sh", "-c", "cat /proc/1/environ"}, "Permission denied"},
	} {
		t.Run(name, func(t *testing.T) { h.cli(append([]string{"exec"}, c.args...)...).says(c.code, c.says) })
	}
	// One that eats the container's memory ends; what is beside it goes on, and its end is its own.
	eats := h.cli("exec", "web", "--", "sh", "-c", `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`)
	if code := eats.wait(); code != 137 {
		t.Errorf("%s: exit code %d: %s", eats, code, eats.stderr)
	}
	h.prints("made\n", "exec", "web", "--", "cat", "/tmp/file")
	h.open(a, "/tmp/gate")
	run.says(3)
	t.Logf("%+v", *h.allocs("web")[0].Failure)
	h.cli("exec", "web", "--", "true").says(1, "ended")
	h.nothingLeft()
	h.quiet()
}
