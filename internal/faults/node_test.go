package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// A server that is killed while 40 members of a job are on five nodes, five of them done. All succeed, the five do not run again,
// and none runs twice.
func TestServerKilledWithFortyMembers(t *testing.T) {
	t.Parallel()
	const members, done = 40, 5
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Max, c.Pools[0].Offerings = 5, []string{"small"} })
	j := h.journal()
	h.write("job.yaml", fmt.Sprintf(`
name: forty
count: %d
command: [sh, -c, %q]
resources: {cpu: 0.125, memory: 32MiB}
`, members, j.script(fmt.Sprintf(`[ $MUSTER_INDEX -lt %d ] || while ! [ -e %s ]; do sleep 0.1; done`, done, h.path("gate")))))
	h.start()
	run := h.muster("run", "-f", h.path("job.yaml"))
	h.eventually("five are done and the others run", func() bool {
		job, err := h.client().Job(h.t.Context(), key("forty"))
		return err == nil && job.Counts.Succeeded == done && job.Counts.Running == members-done
	})
	busy := map[string]bool{}
	for _, a := range h.allocs("forty") {
		busy[a.Node] = true
	}
	if len(busy) != 5 {
		t.Errorf("they are on %d nodes", len(busy))
	}
	h.kill()
	h.write("gate", "") // the others end while there is no server
	h.start()
	run.says(0, fmt.Sprintf("all %d members succeeded", members))
	j.once(members)
	if a := h.allocs("forty"); len(a) != members {
		t.Errorf("%d allocations", len(a))
	}
	h.lostNone()
	h.idle()
	h.quiet()
}

// A file on the host says that a node is broken: it is seen with its reason, gets no more work, ends what it has, and is replaced.
func TestBrokenByAFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Offerings = []string{"small"} })
	h.start()
	first := h.muster("run", "--name", "first", "--cpu", "0.5", "--", "sh", "-c", "while ! [ -e "+h.path("gate")+" ]; do sleep 0.05; done")
	h.running("first", 1)
	dir, id := h.theInstance(), h.nodes()[0].ID
	if err := os.WriteFile(filepath.Join(dir, "broken"), []byte("dimm 7 is bad\nmore\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.eventually("the node is broken, and drains", func() bool {
		n := h.nodes()[0]
		return n.Health == string(muster.NodeBroken) && n.Stage == string(muster.NodeDraining)
	})
	if out := h.cli("node", "list"); !strings.Contains(out.stdout.String(), "broken says: dimm 7 is bad") {
		t.Errorf("%s", out.stdout)
	}
	second := h.muster("run", "--name", "second", "--cpu", "0.5", "--", "true")
	second.says(0)
	if a := h.allocs("second"); len(a) != 1 || a[0].Node == id {
		t.Errorf("%+v", a)
	}
	h.write("gate", "")
	first.says(0)
	h.eventually("it is gone", func() bool {
		for _, n := range h.nodes() {
			if n.ID == id {
				return n.Stage == string(muster.NodeGone)
			}
		}
		return false
	})
	h.cli("node", "show", id).says(0)
	h.idle()
}

// On real processes: what is exclusive goes on through the restart of its server and of its agent, and is killed by its agent when no
// server has spoken for the fence; then it runs again, and never twice at once.
func TestExclusiveEndsWithoutItsServer(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(c *api.ServerConfig) {
		// Server and agent both start again within the fence, which takes seconds on a busy machine.
		c.Pools[0].Grace, c.Pools[0].Fence = api.Duration(24*time.Second), api.Duration(12*time.Second)
	})
	j := h.journal()
	h.write("job.yaml", fmt.Sprintf(`
name: only
exclusive: true
command: [sh, -c, %q]
resources: {cpu: 0.5, memory: 32MiB}
restart: {backoff: 10ms}
`, j.script(fmt.Sprintf(`echo $$ > %s; while ! [ -e %s ]; do sleep 0.05; done`, h.path("pid"), h.path("gate")))))
	h.start()
	run := h.muster("run", "-f", h.path("job.yaml"))
	h.running("only", 1)
	pid := 0
	h.eventually("it has begun", func() bool {
		n := 0
		if h.has("pid") {
			n, _ = fmt.Sscan(h.file("pid"), &pid)
		}
		return n == 1
	})
	p, _ := look(pid)
	dir := h.theInstance()
	if err := h.theAgent(dir).Kill(); err != nil {
		t.Fatal(err)
	}
	h.kill()
	h.start()
	h.eventually("the node is reached again", func() bool { return h.metric("muster_links_up") == 1 })
	pause(13 * time.Second) // longer than a fence
	if a := h.allocs("only"); !p.alive() || len(a) != 1 {
		t.Fatalf("it did not live through the restarts: %+v, of which the first failed with %+v", a, a[0].Failure)
	}
	h.kill()
	killed := time.Now()
	h.eventually("its agent kills it", func() bool { return !p.alive() })
	if took := time.Since(killed); took < 6*time.Second || took > 18*time.Second {
		t.Errorf("killed after %s, with a fence of 12s", took)
	}
	h.start()
	h.eventually("it runs again", func() bool { a := h.allocs("only"); return len(a) == 2 && a[1].Status == string(muster.AllocRunning) })
	if a := h.allocs("only")[0]; a.Failure == nil || a.Failure.Reason != string(muster.ReasonUnguarded) || a.Failure.Class != string(muster.FailureOutside) {
		t.Errorf("%+v", a)
	}
	h.write("gate", "")
	run.says(0)
	h.idle()
}
