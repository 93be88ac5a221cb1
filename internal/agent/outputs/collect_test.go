package outputs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// S-M2: a file of 900 GB without one byte in it cost its owner nothing, and its copy the disk of
// one node after the other.
func TestOutputsWithHolesAreBounded(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	make := func(name string, size int64) {
		t.Helper()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600), os.Truncate(filepath.Join(dir, name), size)); err != nil {
			t.Fatal(err)
		}
	}
	make("small", 1<<20)
	make("huge", 900<<30)
	holes := mostHoles
	to := filepath.Join(t.TempDir(), "0.tar")
	if _, err := writeTar(t.Context(), root, "huge", to, &holes); !errors.Is(err, errHoles) {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(to); err != nil || info.Size() > 1<<20 {
		t.Errorf("%v bytes were written, %v", info.Size(), err)
	}
	holes = mostHoles
	if n, err := writeTar(t.Context(), root, "small", to, &holes); err != nil || n < 1<<20 {
		t.Errorf("%d, %v", n, err)
	}
	// All outputs of an allocation together.
	holes = 1 << 20
	if _, err := writeTar(t.Context(), root, "small", to, &holes); err != nil {
		t.Error(err)
	}
	if _, err := writeTar(t.Context(), root, "small", to, &holes); !errors.Is(err, errHoles) {
		t.Errorf("a second one: %v", err)
	}
}
