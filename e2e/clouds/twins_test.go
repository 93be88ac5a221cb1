package clouds

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/servertest"
)

// A backup is restored elsewhere while the server that it is of lives on, and both have one account:
// a machine that the backup knows, one that was made later, and one of the restored server. That is
// obeyed by all three. The old one runs nothing a second time, ends no machine, and says why.
func TestRestoredBesideTheOldServer(t *testing.T) {
	needFull(t)
	t.Parallel()
	c := openEC2(t, "")
	old := serve(t, c, "2s")
	file := func(name string) string { return filepath.Join(old.dir, name) }
	run := func(w *world, name string) {
		if err := w.submit(name, 1, fmt.Sprintf("echo x >> %s; until [ -e %s ]; do sleep 0.1; done", file(name), file(name+".gate")), "--cpu", "1.5"); err != nil {
			t.Fatal(err)
		}
		w.Until(name+" runs", func() bool { return starts(file(name)) == 1 })
	}
	run(old, "known")
	old.succeeds("backup", file("backup"))
	run(old, "after")

	restored := serveWith(t, c, "2s", func(s *servertest.Server) {
		if out, status := s.Run("restore", file("backup"), "--data-dir", s.DataDir()); status != 0 {
			t.Fatalf("muster restore: %s", out)
		}
		// With these the server logs in to the instances.
		if err := os.CopyFS(filepath.Join(s.DataDir(), "keys"), os.DirFS(filepath.Join(old.DataDir(), "keys"))); err != nil {
			t.Fatal(err)
		}
	})
	run(restored, "new")
	held := map[string]bool{}
	old.Until("the old server holds all three nodes, and says why", func() bool {
		clear(held)
		for n, err := range old.Client.AllNodes(t.Context(), client.NodeQuery{}) {
			if err == nil && n.Intent == string(muster.NodeHold) && strings.HasPrefix(n.IntentReason, "refuses to obey: ") {
				held[n.Instance] = true
			}
		}
		return len(held) == 3
	})
	// Each looks once a minute at all instances, and has ended none.
	before := c.lists()
	old.Until("more lists", func() bool { return c.lists() > before+2 })
	if b := c.books(t); len(b.machines) != 3 {
		t.Errorf("machines: %v", b.machines)
	}
	for _, name := range []string{"known", "after", "new"} {
		if err := os.WriteFile(file(name+".gate"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The restored server ends what is idle, and the old one takes that for no reason to begin again.
	restored.ended("known", "new")
	restored.empty()
	before = c.lists()
	old.Until("more lists", func() bool { return c.lists() > before+3 })
	for _, name := range []string{"known", "after", "new"} {
		if n := starts(file(name)); n != 1 {
			t.Errorf("%s began %d times", name, n)
		}
	}
	if b := c.books(t); !b.empty() {
		t.Errorf("the old server has made %v", b.machines)
	}
}

// starts is how often a job began.
func starts(mark string) int {
	b, _ := os.ReadFile(mark)
	return strings.Count(string(b), "x")
}
