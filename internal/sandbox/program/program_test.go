package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

func TestFind(t *testing.T) {
	work := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "bin/plain": 0o644, "bin2/plain": 0o755, "here": 0o755, "locked/tool": 0o755} {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	abs := filepath.Join(work, "bin")
	for _, c := range []struct {
		command, path, want, reason, says string
	}{
		{"tool", "/nowhere:" + abs, abs + "/tool", "", ""},
		{"tool", "bin", "bin/tool", "", ""},
		{"here", ":/nowhere", "./here", "", ""},
		{"plain", abs + ":" + work + "/bin2", work + "/bin2/plain", "", ""},
		{"plain", abs, "", initwire.ReasonNotExecutable, abs + "/plain"},
		{"bin", work, "", initwire.ReasonNotExecutable, "/bin"},
		{"none", abs, "", initwire.ReasonCommandNotFound, abs},
		{"none", "", "", initwire.ReasonCommandNotFound, `PATH ""`},
		{"./here", abs, "./here", "", ""},
		{"./none", abs, "", initwire.ReasonCommandNotFound, "./none"},
		{abs + "/tool", "", abs + "/tool", "", ""},
		{"here/x", "", "", initwire.ReasonCommandNotFound, "here/x"},
	} {
		start := &Program{Work: work, Command: []string{c.command}, Env: []string{"PATH=wrong", "PATH=" + c.path}}
		path, failed := find(start)
		if c.reason == "" {
			if failed != nil || path != c.want {
				t.Errorf("%q in %q: %q, %+v", c.command, c.path, path, failed)
			}
			continue
		}
		if failed == nil || failed.Reason != c.reason || failed.Class != initwire.ClassUser || !strings.Contains(failed.Message, c.says) {
			t.Errorf("%q in %q: %q, %+v", c.command, c.path, path, failed)
		}
	}
	if path, failed := find(&Program{Work: "/", Command: []string{"sh"}}); failed != nil || !strings.HasSuffix(path, "/sh") {
		t.Errorf("without a PATH: %q, %+v", path, failed)
	}
	if _, failed := find(&Program{Work: "/", Command: []string{"no-such"}}); failed == nil || !strings.Contains(failed.Message, defaultPath) {
		t.Errorf("without a PATH: %+v", failed)
	}
}
