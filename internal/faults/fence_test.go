package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// gated is a member that runs until a file is there.
func (h *host) gated(j *memberJournal) string {
	return j.script("while ! [ -e " + h.path("gate") + " ]; do sleep 0.02; done")
}

// A fresh data directory whose provider keeps its instances where another server's are.
func TestForeignServer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	j := h.journal()
	run := h.muster("run", "--name", "mine", "--", "sh", "-c", h.gated(j))
	h.running("mine", 1)
	dir := h.theInstance()
	before := h.members(dir)

	other := &host{t: t, dir: h.dir, data: h.path("e"), config: h.config, node: h.node, logs: h.logs}
	other.config.DataDir = other.data
	if err := os.MkdirAll(other.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.instances(), other.instances()); err != nil {
		t.Fatal(err)
	}
	other.start()
	t.Cleanup(func() { other.srv.kill() })
	// It works there, with instances of its own, which it gives back; and neither sees nor touches the other's.
	theirs := other.cli("run", "--count", "3", "--", "sh", "-c", "echo other $MUSTER_INDEX")
	theirs.says(0)
	other.eventually("the other server has given its instances back", func() bool {
		return len(must(filepath.Glob(filepath.Join(h.instances(), "i-*")))(t)) == 1
	})
	other.eventually("its nodes are gone", func() bool {
		return !slices.ContainsFunc(other.nodes(), func(n api.Node) bool { return n.Stage != string(muster.NodeGone) })
	})
	for _, n := range other.nodes() {
		if n.Instance == filepath.Base(dir) {
			t.Errorf("the other server took node %s of ours for its own", n.ID)
		}
	}

	// Told directly, the agent refuses, in words that name both.
	c := wire.NewClient(journal.Dialer(dir))
	defer c.Close()
	mine, theirID := h.cluster(), other.cluster()
	_, err := c.SendDesired(t.Context(), wire.Desired{
		Fence:  wire.Fence{Cluster: theirID, Epoch: 9, Term: 9, Index: 1 << 40},
		Allocs: []wire.DesiredAlloc{{ID: muster.AllocID(h.allocs("mine")[0].ID), Desired: muster.AllocStop}},
	})
	var refusal *wire.Refusal
	if !errors.As(err, &refusal) || refusal.Code != wire.RefusedCluster || !strings.Contains(refusal.Message, mine) || !strings.Contains(refusal.Message, theirID) {
		t.Errorf("a set of another cluster: %v", err)
	}
	// And what is older than what it obeyed.
	_, err = c.SendDesired(t.Context(), wire.Desired{Fence: wire.Fence{Cluster: mine, Epoch: 1, Term: 1}})
	if !errors.As(err, &refusal) || refusal.Code != wire.RefusedFence || !strings.Contains(refusal.Message, "older") {
		t.Errorf("a set of an older server: %v", err)
	}
	for _, m := range before {
		if now := h.members(dir); !slices.Contains(now, m) && m.Role != "descendant" {
			t.Errorf("%+v is gone; there are %+v", m, now)
		}
	}
	other.kill()
	h.write("gate", "")
	run.says(0)
	j.once(1)
	h.lostNone()
	h.idle()
	h.quiet()
}

func (h *host) cluster() string {
	h.t.Helper()
	return must(h.client().Server(h.t.Context()))(h.t).ClusterID
}

// An old backup begins a new epoch: the agents obey it, and nothing ends because it does not know it.
func TestOldBackupRestored(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Min = 1 })
	h.start()
	j := h.journal()
	known := h.muster("run", "--name", "known", "--", "sh", "-c", h.gated(j))
	h.running("known", 1)
	h.cli("backup", h.path("backup")).says(0)
	old := h.cluster()
	// What comes after the backup: a job on a node that it knows, and one on a node that it does not.
	after := &memberJournal{t, h.path("after")}
	h.cli("run", "-d", "--name", "after", "--count", "5", "--", "sh", "-c", h.gated(after)).says(0)
	h.running("after", 5)
	nodes := h.instanceDirs()
	h.kill()
	stale := filepath.Join(h.dir, "stale")
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(h.data, "log"), filepath.Join(stale, "log")); err != nil {
		t.Fatal(err)
	}
	restored := h.cli("restore", h.path("backup"))
	restored.says(0)
	t.Logf("muster restore: %s", strings.TrimSpace(restored.stdout.String()))
	h.start()
	info := must(h.client().Server(t.Context()))(t)
	if info.ClusterID != old || info.Epoch <= 1 {
		t.Errorf("%+v, before %s", info, old)
	}
	h.running("known", 1)
	h.eventually("it is in touch with all that are there", func() bool { return h.metric("muster_links_up") == len(nodes) })
	// Those that run what it does not know are neither free nor idle, however long that takes.
	h.eventually("it is known of two nodes that they run something unknown", func() bool {
		n := 0
		for _, node := range h.nodes() {
			if strings.Contains(node.Reason, "that nothing is known of") && !node.Schedulable {
				n++
			}
		}
		return n == 2
	})
	pause(3 * time.Second) // three times the idle time-out

	// The server of before the restore comes back: it is refused, in words, and harms nothing.
	zombie := &host{t: t, dir: h.dir, data: stale, config: h.config, node: h.node, logs: must(os.Create(h.path("zombie.log")))(t)}
	zombie.config.DataDir = stale
	if err := os.Symlink(h.instances(), zombie.instances()); err != nil {
		t.Fatal(err)
	}
	zombie.start()
	t.Cleanup(func() { zombie.srv.kill() })
	zombie.eventually("the old server says of all nodes that it is not obeyed", func() bool {
		refused := 0
		for _, n := range zombie.nodes() {
			// It may make nodes of its own, which obey it.
			if slices.Contains(nodes, filepath.Join(h.instances(), n.Instance)) && !n.Schedulable && strings.Contains(n.Reason, "its agent has obeyed a newer server") {
				refused++
			}
		}
		return refused == len(nodes)
	})
	for _, n := range nodes {
		if text := h.file("zombie.log"); strings.Contains(text, "agent started\" provider=here instance="+filepath.Base(n)) {
			t.Errorf("the old server has started agents of others:\n%s", text)
		}
	}
	zombie.kill()

	// Nothing has been stopped: all six go on, and end by themselves.
	if n := len(after.lines()) + len(j.lines()); n != 6 {
		t.Errorf("%d lines; %v %v", n, after.lines(), j.lines())
	}
	h.write("gate", "")
	h.eventually("all have ended", func() bool { return len(after.lines()) == 10 && len(j.lines()) == 2 })
	after.once(5)
	j.once(1)
	known.says(0)
	if a := h.allocs("known"); len(a) != 1 || a[0].Attempt != 1 {
		t.Errorf("%+v", a)
	}
	h.cli("job", "show", "after").says(1, "not found")
	h.lostNone()

	// The next restart begins no further epoch.
	h.kill()
	h.start()
	if again := must(h.client().Server(t.Context()))(t); again.Epoch != info.Epoch {
		t.Errorf("epoch %d, then %d", info.Epoch, again.Epoch)
	}
	h.cli("run", "--", "true").says(0)
	h.stop()
	h.quiet("unknown since a backup was restored", "instance adopted")
}

// Told of a data directory of a later version, or of none of ours, a server says so in one sentence.
func TestRestoreIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	h.cli("run", "--", "true").says(0)
	h.cli("backup", h.path("backup")).says(0)
	h.cli("restore", h.path("backup")).says(1, h.data, "not empty")
	h.idle()
	h.stop()
	h.cli("restore", h.path("backup")).says(1, h.data, "not empty")
	good := h.file("backup")
	for name, content := range map[string]string{
		"empty":     "",
		"torn":      good[:len(good)-20],
		"flipped":   good[:len(good)/2] + string([]byte{good[len(good)/2] ^ 1}) + good[len(good)/2+1:],
		"something": "muster\n" + strings.Repeat("x", 5000),
	} {
		h.write(name, content)
		into := h.path("into-" + name)
		p := newProgram(t, "--data-dir", into, "restore", h.path(name))
		p.cmd.Env = h.env()
		p.start()
		p.says(1, h.path(name))
		if n := strings.Count(p.stderr.String(), "\n"); n != 1 {
			t.Errorf("%s: %d lines: %s", name, n, p.stderr)
		}
		t.Logf("%s: %s", name, strings.TrimSpace(p.stderr.String()))
		// What was refused leaves nothing that a server would take for a state.
		if _, err := os.Stat(filepath.Join(into, "log", "format")); err == nil {
			t.Errorf("%s: a refused backup left a state", name)
		}
	}
	if fmt.Sprint(h.file("backup")) != good {
		t.Error("the backup was changed")
	}
}
