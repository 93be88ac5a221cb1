package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/testwait"
)

// still is a state machine with an empty state.
type still struct{}

func (still) Apply(_, _ uint64, _ int64, p [][]byte) []any { return make([]any, len(p)) }
func (still) Snapshot() (raftlog.Image, error)             { return still{}, nil }
func (still) WriteTo(w io.Writer) (int64, error)           { return io.Copy(w, strings.NewReader("state")) }
func (still) Restore(io.Reader) error                      { return nil }

// backup is one of a log with a few entries.
func backup(t *testing.T) []byte {
	t.Helper()
	l, err := raftlog.Open(raftlog.Config{Dir: t.TempDir(), Machine: still{}, LowWater: func(uint64) uint64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	testwait.Until(t, "a proposal is taken", func() bool { _, err := l.Propose(t.Context(), []byte("x")); return err == nil })
	var b bytes.Buffer
	if _, err := l.Backup(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBackup(t *testing.T) {
	s := newServer(t)
	s.Backup = backup(t)
	path := filepath.Join(t.TempDir(), "b")
	s.Muster(nil, "backup", path).Check(t, 0, "", `muster: .*/b: [0-9]+B, state of 20.*Z \(log index [0-9]+\)`+"\n")
	if b, err := os.ReadFile(path); !bytes.Equal(b, s.Backup) {
		t.Errorf("%d bytes of %d, %v", len(b), len(s.Backup), err)
	}
	s.Muster(nil, "backup", "-").Check(t, 0, string(s.Backup), "")
	var said struct {
		File  string
		Bytes int
		Index uint64
		Made  time.Time
	}
	got := s.Muster(nil, "--json", "backup", path)
	if err := json.Unmarshal([]byte(got.Stdout), &said); err != nil || said.File != path || said.Bytes != len(s.Backup) || said.Index == 0 || said.Made.IsZero() {
		t.Errorf("%+v, %v of %q", said, err, got.Stdout)
	}
	s.Muster(nil, "--json", "backup", "-").Check(t, 2, "", "muster: --json and the backup both want stdout; name a file\n.*")

	// What did not arrive whole replaces nothing.
	whole := s.Backup
	s.Backup = whole[:len(whole)-3]
	s.Muster(nil, "backup", path).Check(t, 1, "", "muster: .*/b was read back and is not what the server sent: damaged: it is cut short; check the disk\n")
	s.Kill()
	s.Muster(nil, "backup", path).Check(t, 3, "", "muster: no server answers at .*\n")
	if b, err := os.ReadFile(path); !bytes.Equal(b, whole) {
		t.Errorf("the earlier backup has %d bytes of %d now, %v", len(b), len(whole), err)
	}
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
