package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// content fails unless the directory has only these files: names and contents alternate.
func content(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Name(), string(b))
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWriteReplacesWhole(t *testing.T) {
	for name, write := range map[string]func(string, []byte) error{
		"Write":     Write,
		"Replace":   Replace,
		"WriteFrom": func(path string, b []byte) error { _, err := WriteFrom(path, strings.NewReader(string(b))); return err },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "record")
			// What a killed writer has left is longer than what comes, and must not show through.
			if err := os.WriteFile(path, []byte("the old content"), 0o600); err != nil {
				t.Fatal(err)
			}
			if name != "WriteFrom" {
				if err := os.WriteFile(path+TempSuffix, []byte("half of something longer"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := write(path, []byte("new")); err != nil {
				t.Fatal(err)
			}
			content(t, dir, "record", "new")
		})
	}
}

func TestFailedWriteLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if _, err := WriteFrom(path, &failing{err: broken}); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	content(t, dir, "record", "old")
	// A directory cannot be replaced by a file.
	inTheWay := filepath.Join(dir, "sub", "directory")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, write := range []func(string, []byte) error{Write, Replace} {
		if write(inTheWay, []byte("new")) == nil {
			t.Error("a directory was replaced")
		}
	}
	if left, err := os.ReadDir(filepath.Dir(inTheWay)); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestCreateFromReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	if n, err := CreateFrom(path, strings.NewReader("first")); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := CreateFrom(path, strings.NewReader("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v", err)
	}
	content(t, dir, "token", "first")
}

func TestSyncDirNeedsADirectory(t *testing.T) {
	if err := SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := SyncDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// failing gives some bytes, and then an error.
type failing struct {
	err  error
	gave bool
}

func (f *failing) Read(p []byte) (int, error) {
	if f.gave {
		return 0, f.err
	}
	f.gave = true
	return copy(p, "half"), nil
}
