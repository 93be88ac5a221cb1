package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// stagesOf puts a program before the runtime in this host's PATH that ends itself and it with
// kill -9 at the stage that stands in the next line of a file, and is the runtime when none is left. It leaves the agent's own
// first look at what works alone.
func (h *host) stagesOf(runtime string, stages ...string) {
	h.t.Helper()
	h.write("stages", strings.Join(stages, "\n")+"\n")
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*" run "*%[2]s*) ;;
*) exec %[1]s "$@" ;;
esac
exec 8>>%[3]s/lock
flock 8
stage=$(head -n 1 %[3]s/stages)
sed -i 1d %[3]s/stages
exec 8>&-
kill9() { echo "$stage" >>%[3]s/killed; kill -9 $*; }
case $stage in
before) kill9 $$ ;;
after) %[1]s "$@" <&0; kill9 $$ ;;
[0-9]*) %[1]s "$@" <&0 & sleep $stage; kill9 $! $$ ;;
alone) %[1]s "$@" <&0 & sleep 0.002; kill9 $$ ;;
esac
exec %[1]s "$@"
`, runtime, "/sandboxes/", h.dir)
	dir := h.path("bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(runtime)), []byte(script), 0o755); err != nil {
		h.t.Fatal(err)
	}
	h.search = dir + ":" + os.Getenv("PATH")
}

// The runtime program is killed in the middle of a start, at one stage after the other: each time that is
// the node's fault, nothing of it is left, and the member starts on another node.
func TestRuntimeProgramKilled(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	stages := []string{"before", "0.002", "0.006", "after"}
	h.stagesOf(realRuntime(t), stages...)
	h.start()
	run := h.cli("run", "--name", "work", "--image", image, "--", "echo", "hello")
	run.says(0)
	if run.stdout.String() != "hello\n" {
		t.Errorf("%q", run.stdout)
	}
	if got := strings.Fields(h.file("killed")); !slices.Equal(got, stages) {
		t.Fatalf("killed at %q", got)
	}
	var nodes []string
	for _, a := range h.allocs("work") {
		if a.Outcome == string(muster.OutcomeSucceeded) {
			continue
		}
		t.Logf("attempt %d: %s", a.Attempt, failed(t, a, muster.FailureNode, muster.ReasonNodeFault))
		if slices.Contains(nodes, a.Node) {
			t.Errorf("tried again on node %s", a.Node)
		}
		nodes = append(nodes, a.Node)
	}
	if len(nodes) != len(stages) {
		t.Errorf("%d attempts failed, want %d", len(nodes), len(stages))
	}
	h.nothingLeft()
}

// The agent is killed while starts are in the middle: of each member exactly one container runs in the end.
func TestAgentKilledDuringContainerStarts(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t, func(c *api.ServerConfig) {
		c.Pools[0].Max = 1 // there is nowhere else to go
		c.Pools[0].Offerings = []string{"large"}
	})
	dice := chance(t)
	h.start()
	const members = 12
	h.cli("run", "-d", "--name", "many", "--count", fmt.Sprint(members), "--image", image, "--cpu", "0.2", "--memory", "32MiB", "--", "sh", "-c",
		"echo member $MUSTER_INDEX attempt $MUSTER_ATTEMPT; exec sleep 1009").says(0)
	run := h.muster("job", "logs", "-f", "many")
	h.eventually("some have been started", func() bool { return len(h.started("many")) > 0 })
	dir := h.theInstance()
	for range 3 {
		pause(durationUpTo(dice, 150))
		before := h.theAgent(dir)
		if err := before.Kill(); err != nil {
			t.Fatal(err)
		}
		h.anotherAgent(dir, before)
	}
	h.running("many", members)
	h.eventually("each has told", func() bool { return len(run.stdout.lines()) >= members })
	inits := 0
	for _, dir := range h.instanceDirs() {
		for _, m := range h.members(dir) {
			if m.Role == initbox.RoleInit {
				inits++
			}
		}
	}
	if inits != members {
		t.Errorf("%d containers run, want %d", inits, members)
	}
	if n := len(h.allocs("many")); n != members {
		t.Errorf("%d attempts of %d members", n, members)
	}
	h.cli("job", "stop", "many").says(0)
	run.wait()
	h.nothingLeft()
}

// started are the allocations of a job whose start was begun.
func (h *host) started(job string) (all []api.Alloc) {
	for _, a := range h.allocs(job) {
		if a.Status != string(muster.AllocPlaced) {
			all = append(all, a)
		}
	}
	return all
}

// Where no node can ever run containers, work with an image is refused at once with the reason. What
// only asks for nodes that have them waits, and says why; the node says what it lacks.
func TestNoContainers(t *testing.T) {
	t.Parallel()
	// bare has a PATH without crun and runc.
	bare := func(h *host) {
		h.search = h.path("bin")
		if err := os.Mkdir(h.search, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"sh", "true", "sleep", "cat"} {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("no %s", name)
			}
			if err := os.Symlink(path, filepath.Join(h.search, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	without := func(t *testing.T) (h *host) {
		h = newHost(t, func(c *api.ServerConfig) {
			c.Pools[0].Max, c.Pools[0].Min, c.Pools[0].IdleTimeout = 1, 1, api.Duration(1e12)
		})
		bare(h)
		h.start()
		return h
	}
	unprivileged := func(t *testing.T) *host {
		if os.Geteuid() != 0 {
			return without(t)
		}
		h := newHost(t)
		bare(h)
		h.user = 65534
		if err := os.Chown(h.dir, h.user, h.user); err != nil {
			t.Fatal(err)
		}
		h.start("dev", "--data-dir", h.data, "--listen", "127.0.0.1:0", "--log-level", "info")
		return h
	}
	for name, make := range map[string]func(*testing.T) *host{"no program": without, "no root": unprivileged} {
		t.Run(name, func(t *testing.T) {
			h := make(t)
			if name == "no program" && os.Geteuid() != 0 {
				t.Skip("the same as without root")
			}
			// One that needs none runs, so that there is a node.
			other := h.muster("run", "--name", "other", "--memory", "64MiB", "--", "sleep", "1010")
			h.running("other", 1)
			reason := map[string]string{"no program": "neither crun nor runc is installed", "no root": "for an ordinary user they need crun"}[name]
			h.cli("run", "-d", "--name", "work", "--image", "debian:13", "--", "true").says(2, "body.spec.image", reason)
			file := h.path("e.yaml")
			if err := os.WriteFile(file, []byte("name: e\nimage: debian:13\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			h.cli("env", "apply", file).says(2, "body.spec.image", reason)
			h.cli("run", "-d", "--name", "work", "--constraint", "containers", "--", "true").says(0)
			// One of each offering is launched to see what it has.
			filtered := map[string]string{"no program": "1 filtered by containers is set", "no root": "2 filtered by containers is set"}[name]
			h.eventually("the job says why it waits", func() bool { return strings.Contains(h.job("work").Waits, filtered) })
			t.Logf("waits: %s", h.job("work").Waits)
			show := h.cli("job", "show", "work")
			if show.says(0); !strings.Contains(show.stdout.String(), "containers") {
				t.Errorf("%s", show.stdout)
			}
			if a := h.allocs("work"); len(a) != 0 {
				t.Errorf("%+v", a)
			}
			nodes := h.nodes()
			node := must(h.client().Node(t.Context(), muster.NodeID(nodes[0].ID)))(t)
			if v, ok := node.Attributes[muster.AttributeContainers]; ok {
				t.Errorf("the node says that it runs containers: %q", v)
			}
			if !slices.ContainsFunc(node.Problems, func(s string) bool { return strings.Contains(s, "containers") || strings.Contains(s, "crun") }) {
				t.Errorf("the node does not say what it lacks: %q", node.Problems)
			}
			t.Logf("node: %q", node.Problems)
			for _, job := range []string{"work", "other"} {
				h.cli("job", "stop", job).says(0)
			}
			other.wait()
			h.quiet()
		})
	}
}

// asUser lets a program run as who this host's server is.
func (h *host) asUser(cmd *exec.Cmd) {
	if h.user > 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(h.user), Gid: uint32(h.user)}}
	}
}
