package serve

import (
	"os"
	"path/filepath"
	"testing"
)

func TestBackup(t *testing.T) {
	s := newServer(t)
	path := filepath.Join(t.TempDir(), "b")
	s.Muster(nil, "backup", path).Check(t, 0, "", "muster: .*/b: 8B\n")
	if b, err := os.ReadFile(path); string(b) != "a backup" {
		t.Errorf("%q, %v", b, err)
	}
	s.Muster(nil, "backup", "-").Check(t, 0, "a backup", "")
	s.Kill()
	s.Muster(nil, "backup", filepath.Join(filepath.Dir(path), "c")).Check(t, 3, "", "muster: no server answers at .*\n")
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(good, []byte("data_dir: /x\nproviders:\n- {name: a, type: local, offerings: [{name: s, cpu: 1, memory: 1GiB}]}\npools:\n- {name: p, provider: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("data_dirr: /x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	s.Muster(nil, "config", "check", "-c", good).Check(t, 0, good+" is right: 1 provider, 1 pool, listening on 127.0.0.1:4750\nChanges are unknown: 404 page not found\n", "")
	s.Muster(nil, "config", "check", "-c", bad).Check(t, 2, "", "muster: .*bad.yaml:1:1: unknown field \"data_dirr\"; did you mean \"data_dir\"\\?\n.*")
	s.Muster(nil, "config", "check").Check(t, 2, "", "muster: which file\\? give it with -c\n")
}
