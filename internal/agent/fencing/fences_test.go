package fencing

import (
	"os"
	"path/filepath"
	"testing"

	wire "github.com/musterhq/muster/internal/wire/agent"
)

// TestFencesAreFound: whatever was saved last is what the next agent finds, also when an earlier
// one wrote its second file in another way or another size.
func TestFencesAreFound(t *testing.T) {
	dir := t.TempDir()
	find := func(want wire.Fence) *Fences {
		t.Helper()
		s, err := LoadFences(dir)
		if err != nil {
			t.Fatal(err)
		}
		if s.last != want {
			t.Fatalf("found %s, want %s", s.last, want)
		}
		return s
	}
	save := func(s *Fences, f wire.Fence) {
		t.Helper()
		if err := s.Save(f); err != nil {
			t.Fatal(err)
		}
		find(f)
	}
	s := find(wire.Fence{})
	f := wire.Fence{Cluster: "c1", Epoch: 1, Term: 1, Index: 1_000_000}
	save(s, f)
	for _, index := range []uint64{1_000_001, 1_000_002, 1 << 60, 1<<60 + 1} {
		f.Index = index
		save(s, f)
	}
	s.Close()
	f.Index++
	save(find(wire.Fence{Cluster: "c1", Epoch: 1, Term: 1, Index: 1<<60 + 1}), f)
	if info, err := os.Stat(filepath.Join(dir, fenceTipName)); err != nil || info.Size() != tipSize {
		t.Errorf("the second file: %v, %v", info.Size(), err)
	}

	// A later term starts with a smaller index, and an index of the term before says nothing about
	// it.
	f.Term, f.Index = 2, 7
	save(s, f)
	f.Index = 8
	save(s, f)

	f.Index = 9
	if err := os.WriteFile(filepath.Join(dir, fenceTipName), []byte(`{"cluster":"c1","epoch":1,"term":2,"index":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s = find(f)
	f.Index = 10
	save(s, f)
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	find(wire.Fence{})
}
