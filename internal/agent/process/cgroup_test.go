package process

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/testwait"
)

// TestTakenCgroup: a start that finds its cgroup in use fails and leaves those in it alone.
func TestTakenCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r := newRuntime(t, testParent(t))
	config := func() contract.SandboxConfig {
		dir := t.TempDir()
		return contract.SandboxConfig{ID: "taken-0-1", Dir: dir, Work: dir, Command: []string{"sleep", "1000"}}
	}
	first, second := config(), config()
	s, err := r.Start(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), second); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second start: %v", err)
	}
	select {
	case <-s.Done():
		t.Errorf("the first was ended: %+v", s.Result())
	default:
	}
	if err := r.Remove(t.Context(), first.Dir); err != nil {
		t.Fatal(err)
	}
	// Who watches the first sweeps up behind it, in the cgroup that bears its id: only then it is free.
	<-s.Done()
	s, err = r.Start(t.Context(), second)
	if err != nil {
		t.Fatalf("start when it is free again: %v", err)
	}
	if err := r.Remove(t.Context(), second.Dir); err != nil {
		t.Error(err)
	}
	<-s.Done()
}

// TestForkBomb: the number of processes is limited, and all of them end.
func TestForkBomb(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r, err := New(Config{InitPath: initPath, CgroupParent: testParent(t), PidsLimit: 60})
	if err != nil {
		t.Fatal(err)
	}
	r.ready()
	if !r.groups.LimitsPids() {
		t.Skip("no pids controller here")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = initbox.Destroy(context.Background(), dir) })
	if _, err := r.Start(t.Context(), contract.SandboxConfig{
		ID: "bomb-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20,
		Command: []string{"sh", "-c", `trap '' TERM; f() { f & f & sleep 0.01; }; f; sleep 1000`},
	}); err != nil {
		t.Fatal(err)
	}
	most := 0
	testwait.Until(t, "the limit is reached", func() bool {
		hit := false
		for _, d := range r.groups.Dirs("a-bomb-0-1") {
			text, _ := cgroup.ReadSmall(filepath.Join(d, "pids.events"))
			hit = hit || cgroup.Keyed(text)["max"] > 0
		}
		pids, _ := cgroup.Pids(r.groups.Dirs("a-bomb-0-1"))
		most = max(most, len(pids))
		return hit
	})
	if most > 60+cgroup.InitThreads {
		t.Errorf("%d processes", most)
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if left, err := initbox.Members(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
