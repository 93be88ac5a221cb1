package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// A data directory that holds a state is left alone, and the error says how to go on.
func TestRestoreIntoUsedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "log", "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), file, dir)
	if err == nil || !strings.HasSuffix(err.Error(), "log: not empty; use another data directory, or stop the server of this one and move its log/ away") {
		t.Error(err)
	}
}

// An empty directory of instances must not pass for proof that they are gone.
func TestRestoredElsewhere(t *testing.T) {
	st, err := state.New(16)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &Server{state: st, cfg: api.ServerConfig{DataDir: dir, Providers: []api.ProviderSpec{{Name: "here", Type: api.ProviderLocal}}}}
	if err := s.checkRestored(); err != nil {
		t.Errorf("without nodes: %v", err)
	}
	for i, f := range []state.Fact{
		&state.NodeLaunching{ID: "n1", Token: "t1", Offering: muster.Offering{Provider: "here", Name: "o"}},
		&state.NodeLaunched{ID: "n1", Instance: "i1"},
	} {
		b, err := st.Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		st.Apply(uint64(i+1), 1, 1, [][]byte{b})
	}
	if err := s.checkRestored(); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "here")) {
		t.Errorf("instances that cannot be found: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "here"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.checkRestored(); err != nil {
		t.Errorf("with the directory there: %v", err)
	}
}
