package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/imagetest"
)

// A server, and the agent with it, are killed while runners are starting: none can be claimed until it runs.
func TestKilledDuringStarts(t *testing.T) {
	t.Parallel()
	h, image := newContainerHost(t)
	h.gateRuntime(realRuntime(t))
	h.start()
	const warm = 3
	h.environment("e", image, warm)
	h.eventually("they are starting", func() bool { return h.counts("e").Starting == warm && h.has("waiting") })
	refused := func() {
		t.Helper()
		if c, err := h.client().Patient(-1).Claim(t.Context(), api.ClaimRequest{Environment: "e"}, ""); client.Code(err) != api.CodeNoneWarm {
			t.Errorf("a claim of what is starting: %+v %v", c, err)
		}
	}
	refused()
	dir := h.theInstance()
	for _, both := range []bool{false, true} {
		h.kill()
		if both {
			if err := h.theAgent(dir).Kill(); err != nil {
				t.Fatal(err)
			}
		}
		h.start()
		refused()
		if n := h.counts("e"); n.Starting != warm || n.Warm != 0 {
			t.Errorf("after a restart runners are %+v", n)
		}
	}
	// One that waits is served as soon as there is one.
	claimed := make(chan api.Alloc, 1)
	go func() { claimed <- h.claim(api.ClaimRequest{}) }()
	h.eventually("it waits", func() bool { return must(h.client().Environment(t.Context(), "default", "e"))(t).Waiting == 1 })
	h.write("open", "")
	a := <-claimed
	if got := h.execute(a, api.ExecRequest{Command: []string{"echo", "runs"}}); got.Stdout != "runs\n" {
		t.Errorf("%+v", got)
	}
	h.warm("e", warm)
	h.endRunners()
}

// gateRuntime has the starts of containers wait until the file open is there; the file waiting tells that one does.
func (h *host) gateRuntime(runtime string) {
	h.t.Helper()
	dir := h.path("bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*" run "*/sandboxes/*)
	touch %[2]s/waiting
	until [ -e %[2]s/open ]; do sleep 0.02; done ;;
esac
exec %[1]s "$@"
`, runtime, h.dir)
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(runtime)), []byte(script), 0o755); err != nil {
		h.t.Fatal(err)
	}
	h.search = dir + ":" + os.Getenv("PATH")
}

// Another number of warm runners disturbs nobody; another image replaces what is warm, and claimed ones live on.
func TestEnvironmentChanged(t *testing.T) {
	t.Parallel()
	h := runnerHost(t, 2)
	a := h.claim(api.ClaimRequest{})
	h.inside(a, "sh", "-c", "echo mine >/mine")
	init := h.initOf(a)
	version := func() uint64 { return must(h.client().Environment(t.Context(), "default", "e"))(t).Version }
	before := version()
	h.warm("e", 2)
	stays := func(what string) {
		t.Helper()
		if got := h.inside(a, "cat", "/mine"); got != "mine\n" || !init.alive() || h.runner(a).State != string(muster.RunnerClaimed) {
			t.Errorf("%s: the claimed runner says %q and is %+v", what, got, h.runner(a))
		}
	}

	image := must(h.client().Environment(t.Context(), "default", "e"))(t).Spec.Image
	for _, n := range []int{4, 1} {
		h.environment("e", image, n)
		h.warm("e", n)
		stays(fmt.Sprintf("%d warm", n))
	}
	if now := version(); now != before {
		t.Errorf("version %d became %d", before, now)
	}

	h.environment("e", image, 3)
	h.warm("e", 3)
	created := h.counts("e").Created
	other := h.archive("other", imagetest.With(t, imagetest.Busybox(t), imagetest.Layer(t, imagetest.File("etc/which", "the other\n", 0o644))))
	h.environment("e", other, 3)
	h.eventually("what was warm is replaced", func() bool {
		e := must(h.client().Environment(t.Context(), "default", "e"))(t)
		if e.Runners.Warm < 3 {
			t.Errorf("only %d are warm on the way", e.Runners.Warm)
		}
		return e.Outdated == 0 && e.Runners.Created >= created+3 && e.Runners.Starting == 0
	})
	if now := version(); now != before+1 {
		t.Errorf("version %d became %d", before, now)
	}
	stays("another image")
	if b := h.claim(api.ClaimRequest{}); h.inside(b, "cat", "/etc/which") != "the other\n" {
		t.Error("it is of the old image")
	}
	if err := h.client().Release(t.Context(), muster.AllocID(a.ID)); err != nil {
		t.Error(err)
	}
	h.eventually("the old one ends when it is released", func() bool { return !init.alive() })
	h.endRunners()
}

// Pools say what makes containers on their nodes, and who demands a program or a kind of isolation gets nodes of the pool that has it.
func TestRuntimeOfAPool(t *testing.T) {
	t.Parallel()
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Skip("crun is not installed")
	}
	h, image := newContainerHost(t)
	// One that calls itself something of its own.
	wall := h.path("wall")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$*\" != --version ] || { echo wall version 1.2; exit 0; }\nexec %s --cgroup-manager=disabled \"$@\"\n", crun)
	if err := os.WriteFile(wall, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	pool := h.config.Pools[0]
	none, other := pool, pool
	pool.OCIRuntime = "crun"
	none.Name, none.OCIRuntime, none.PriceFactor = "none", api.RuntimeNone, 1
	other.Name, other.OCIRuntime = "other", wall
	h.config.Pools = []api.PoolSpec{none, pool, other}
	h.start()
	h.environment("e", image, 1, func(s *api.EnvironmentSpec) { s.Runtime = "crun" })
	h.environment("walled", image, 1, func(s *api.EnvironmentSpec) { s.Isolation = "wall" })
	for _, c := range []struct{ environment, pool, containers, isolation string }{{"e", "main", "crun ", "container"}, {"walled", "other", "wall 1.2", "wall"}} {
		h.warm(c.environment, 1)
		a := h.claim(api.ClaimRequest{Environment: c.environment})
		if got := h.inside(a, "echo", "inside"); got != "inside\n" {
			t.Errorf("%s: %q", c.environment, got)
		}
		n := must(h.client().Node(t.Context(), muster.NodeID(a.Node)))(t)
		if n.Pool != c.pool || !strings.HasPrefix(n.Attributes[muster.AttributeContainers], c.containers) || !strings.HasPrefix(n.Attributes[muster.AttributeIsolation], c.isolation) {
			t.Errorf("%s is on a node of pool %s with %q", c.environment, n.Pool, n.Attributes)
		}
	}
	// A pool whose nodes make no containers is not asked for any.
	for _, n := range h.nodes() {
		if n.Pool == "none" {
			t.Errorf("node %s was made: %s", n.ID, n.Reason)
		}
	}
	h.endRunners()
}
