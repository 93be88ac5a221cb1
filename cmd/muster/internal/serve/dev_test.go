package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A server of a data directory says at its end that agents stay, and how to end them.
func TestAgentsThatStayAreNamed(t *testing.T) {
	dir := t.TempDir()
	if got := stays(dir); got != "" {
		t.Errorf("without agents: %q", got)
	}
	for _, name := range []string{"i-1", "i-2", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, "local", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got := stays(dir)
	for _, want := range []string{"2 agents and what runs there keep running", "`muster dev --data-dir " + dir + "`", "`muster node destroy`", "`muster node list` is empty"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
