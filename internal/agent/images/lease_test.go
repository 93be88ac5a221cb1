package images

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// TestLease: each agent has a cache of its own, the same one again after a restart, and the
// cache of one that is gone goes to the next.
func TestLease(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "images")
	agent := func(n int) string { return filepath.Join(filepath.Dir(parent), "agent"+strconv.Itoa(n)) }
	lease := func(n int) string {
		t.Helper()
		dir, err := Lease(parent, agent(n))
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		if err := os.Mkdir(agent(i), 0o700); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { got[i] = lease(i) })
	}
	wg.Wait()
	seen := map[string]bool{}
	for i, dir := range got {
		if seen[dir] || lease(i) != dir {
			t.Errorf("agent %d has %s, and then %s", i, dir, lease(i))
		}
		seen[dir] = true
	}
	if err := os.Mkdir(agent(8), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(agent(3)); err != nil {
		t.Fatal(err)
	}
	if dir := lease(8); dir != got[3] || lease(8) != dir {
		t.Errorf("agent 8 has %s, want that of agent 3, which is gone: %s", dir, got[3])
	}
}
