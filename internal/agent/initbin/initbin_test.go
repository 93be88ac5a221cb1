package initbin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	build := func(text string) fstest.MapFS {
		return fstest.MapFS{"bin/" + name: {Data: []byte("#!/bin/sh\necho " + text + "\n")}}
	}
	says := func(path, want string) {
		t.Helper()
		if out, err := exec.Command(path).Output(); err != nil || string(out) != want+"\n" {
			t.Errorf("%s: %q %v", path, out, err)
		}
	}
	one, err := place(build("one"), dir)
	if err != nil {
		t.Fatal(err)
	}
	says(one, "one")
	two, err := place(build("two"), dir)
	if err != nil || two == one {
		t.Fatalf("%s and %s: %v", one, two, err)
	}
	says(one, "one")
	says(two, "two")
	// Torn by a power cut, and without permission.
	if err := os.WriteFile(one, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(two, 0o600); err != nil {
		t.Fatal(err)
	}
	for text, path := range map[string]string{"one": one, "two": two} {
		if again, err := place(build(text), dir); err != nil || again != path {
			t.Errorf("%s: %v", again, err)
		}
		says(path, text)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("%v", entries)
	}
	if _, err := place(build("x"), filepath.Join(dir, "no", "such")); err == nil {
		t.Error("it made more than its own directory")
	}
}

func TestNothingCarried(t *testing.T) {
	if _, err := place(fstest.MapFS{}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "--init") {
		t.Errorf("%v", err)
	}
}
