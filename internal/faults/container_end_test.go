package faults

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/imagetest"
)

// Ends that look alike from outside are told apart: out of memory, an exit code that means the same to shells, and a
// kill -9 of the user's own.
func TestContainerEnds(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	// The shell's memory grows until it ends; it cannot be swapped out or given back.
	eat := `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`
	for name, c := range map[string]struct {
		flags  []string
		script string
		code   int
		class  muster.FailureClass
		reason muster.Reason
		stderr string // of the command
		says   string
	}{
		"out-of-memory":       {[]string{"--memory", "24MiB"}, eat, 137, muster.FailureUser, muster.ReasonOutOfMemory, "", "24MiB"},
		"child-out-of-memory": {[]string{"--memory", "24MiB"}, `sh -c '` + eat + `'; exit 137`, 137, muster.FailureUser, muster.ReasonOutOfMemory, "", "24MiB"},
		"exit-137":            {nil, "exit 137", 137, muster.FailureUser, muster.ReasonExit, "", "137"},
		"own-kill":            {nil, "kill -9 $$", 137, muster.FailureUser, muster.ReasonSignal, "", "KILL"},
		"own-term":            {nil, "kill -TERM $$", 143, muster.FailureUser, muster.ReasonSignal, "", "TERM"},
		"kill-init":           {nil, "kill -9 1; kill -TERM 1; sleep 0.1; exit 5", 5, muster.FailureUser, muster.ReasonExit, "", "5"},
		"disk-full":           {[]string{"--disk", "16MiB"}, "dd if=/dev/zero of=/big bs=1M count=64", 1, muster.FailureUser, muster.ReasonExit, "No space left on device", "1"},
		"not-found":           {nil, "", 127, muster.FailureUser, muster.ReasonCommandNotFound, "", "no-such-program"},
		"no-user":             {[]string{"--user", "nobody-knows"}, "true", 1, muster.FailureUser, muster.ReasonSpec, "", "nobody-knows"},
		"no-entrypoint":       {[]string{"--entrypoint", "/etc/passwd"}, "true", 126, muster.FailureUser, muster.ReasonNotExecutable, "", "/etc/passwd"},
		"time-limit":          {[]string{"--timeout", "300ms", "--kill-grace", "50ms"}, "trap '' TERM; while :; do sleep 0.05; done", 124, muster.FailureUser, muster.ReasonTimeout, "", "300ms"},
	} {
		t.Run(name, func(t *testing.T) {
			command := []string{"sh", "-c", c.script}
			if name == "not-found" {
				command = []string{"no-such-program"}
			}
			args := append([]string{"run", "--name", name, "--image", image, "--cpu", "0.2"}, c.flags...)
			run := h.cli(append(append(args, "--"), command...)...)
			run.says(c.code, c.stderr, c.says)
			all := h.allocs(name)
			if len(all) != 1 {
				t.Fatalf("%d attempts", len(all))
			}
			t.Logf("%s", failed(t, all[0], c.class, c.reason))
		})
	}
	h.nothingLeft()
	h.quiet()
}

// What fills its disk harms nobody else: its neighbour on the node writes on, and so does it once it has made room.
func TestContainerDiskFull(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.start()
	full, a := h.container("full", image, []string{"--disk", "16MiB"}, "sh", "-c", "cat /dev/zero >/big; echo full; until [ -e /gate ]; do sleep 0.05; done")
	beside, b := h.container("beside", image, []string{"--disk", "16MiB"}, "sh", "-c", "until [ -e /gate ]; do sleep 0.05; done")
	h.eventually("its disk is full", func() bool { return full.stdout.String() == "full\n" })
	h.eventually("it is told so", func() bool { return strings.Contains(full.stderr.String(), "No space left on device") })
	// A file that does not fit is refused with what is true, and the rest of it is not seen.
	h.write("large", strings.Repeat("x", 1<<20))
	cp := h.cli("cp", h.path("large"), "full:/large")
	cp.says(1, "no space", "/large")
	if ls := h.inside(a, "ls", "/"); strings.Contains(ls, "large") {
		t.Errorf("inside / is:\n%s", ls)
	}
	h.cli("cp", h.path("large"), "beside:/large").says(0)
	if got := h.inside(b, "wc", "-c", "/large"); got != "1048576 /large\n" {
		t.Errorf("%q", got)
	}
	h.inside(a, "rm", "/big")
	h.cli("cp", h.path("large"), "full:/large").says(0)
	h.open(a, "/gate")
	h.open(b, "/gate")
	full.says(0)
	beside.says(0)
	h.nothingLeft()
	h.quiet()
}

// A job that is stopped gets the signal that its image asks for, and KILL if it does not listen.
func TestContainerStopSignal(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	asks := h.archive("usr1", imagetest.Configured(t, imagetest.Busybox(t), func(c *v1.Config) { c.StopSignal = "SIGUSR1" }))
	h.start()
	script := `trap 'echo asked; exit 0' USR1; trap 'echo wrong' TERM INT HUP; echo ready; while :; do sleep 0.02; done`
	polite := h.muster("run", "--name", "polite", "--image", asks, "--cpu", "0.2", "--", "sh", "-c", script)
	deaf := h.muster("run", "--name", "deaf", "--image", image, "--cpu", "0.2", "--kill-grace", "200ms", "--", "sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done")
	for _, x := range []struct {
		run  *program
		name string
		want string
	}{{polite, "polite", "ready\nasked\n"}, {deaf, "deaf", "ready\nasked\n"}} {
		h.eventually(x.name+" is ready", func() bool { return strings.HasPrefix(x.run.stdout.String(), "ready\n") })
		h.cli("job", "stop", x.name).says(0)
		x.run.wait()
		if x.run.stdout.String() != x.want {
			t.Errorf("%s printed %q", x.name, x.run.stdout)
		}
		if all := h.allocs(x.name); len(all) != 1 || all[0].Outcome != string(muster.OutcomeStopped) {
			t.Errorf("%s: %+v", x.name, all)
		} else {
			t.Logf("%s: %s %s", x.name, all[0].Outcome, fmt.Sprint(all[0].Signal))
		}
	}
	h.nothingLeft()
	h.quiet()
}
