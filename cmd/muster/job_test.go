package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestBackup(t *testing.T) {
	s := newStub(t)
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

func TestEvents(t *testing.T) {
	s := ran(t)
	lines := func(r clitest.Result) string {
		var types []string
		for line := range strings.Lines(r.Stdout) {
			types = append(types, strings.Fields(line)[2])
		}
		return strings.Join(types, " ")
	}
	r := s.Muster(nil, "events")
	if got := lines(r); got != "alloc.running alloc.ended alloc.running alloc.ended alloc.running alloc.ended alloc.running" || r.Code != 0 {
		t.Error(r)
	}
	r = s.Muster(nil, "events", "--after", "15.0")
	if got := lines(r); got != "alloc.ended alloc.running" || r.Code != 0 {
		t.Error(r)
	}
	if r := s.Muster(nil, "events", "--json", "--after", "16"); strings.Count(r.Stdout, "\n") != 1 || !strings.HasPrefix(r.Stdout, `{"id":"17.0","index":17,`) {
		t.Error(r)
	}
	s.Do(func() { s.Forgotten = 14 })
	s.Muster(nil, "events", "--after", "12").Check(t, 1, "", "muster: events after 12 are no longer kept: kept from 14; without --after it begins with the oldest that are kept\n")
	s.Muster(nil, "events", "--node", "nope").Check(t, 0, "", "muster: no events of node nope are kept; `muster node list --all` shows the nodes\n")
	s.Muster(nil, "events", "--job", "nope").Check(t, 0, "", "muster: no events of job nope are kept; `muster job list` shows the jobs\n")
	s.Muster(nil, "events", "--json", "-n", "nope").Check(t, 0, "", "muster: no events of namespace nope are kept; `muster namespace list` shows the namespaces\n")
	s.Muster(nil, "events", "--after", "bogus").Check(t, 2, "", "muster: --after: is \"bogus\"; give the id of an event, an index, or oldest\n")
	signals := make(chan os.Signal, 4)
	go func() {
		s.Start(1, 2)
		signals <- os.Interrupt
	}()
	s.Muster(signals, "events", "-f", "--after", "17").Check(t, 130, "", "")
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
	s := newStub(t)
	s.Muster(nil, "config", "check", "-c", good).Check(t, 0, good+" is right: 1 provider, 1 pool, listening on 127.0.0.1:4750\nWhat would change is not known: 404 page not found\n", "")
	s.Muster(nil, "config", "check", "-c", bad).Check(t, 2, "", "muster: .*bad.yaml:1:1: unknown field \"data_dirr\"; did you mean \"data_dir\"\\?\n.*")
	s.Muster(nil, "config", "check").Check(t, 2, "", "muster: which file\\? give it with -c\n")
}
