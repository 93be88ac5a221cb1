package process

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
)

// TestTakenCgroup: a start that finds its cgroup in use fails and leaves those in it alone.
func TestTakenCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r := newRuntime(t, testParent(t))
	config := func() agent.SandboxConfig {
		dir := t.TempDir()
		return agent.SandboxConfig{ID: "taken-0-1", Dir: dir, Work: dir, Command: []string{"sleep", "1000"}}
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

// TestMovedAfterStart: where the agent cannot tell its own cgroups, init is moved once it exists.
func TestMovedAfterStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	r := newRuntime(t, testParent(t))
	r.ready()
	if r.groups == nil || r.groups.v2 {
		t.Skip("no cgroups v1 here")
	}
	r.groups.home = nil
	dir := t.TempDir()
	s, err := r.Start(t.Context(), agent.SandboxConfig{ID: "moved-0-1", Dir: dir, Work: dir, Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, parent := range r.groups.parents {
		pids, _ := cgroupPids([]string{filepath.Join(parent, "a-moved-0-1")})
		if len(pids) != 2 {
			t.Errorf("in the cgroup below %s: %v, want init and the command", parent, pids)
		}
	}
	if err := r.Remove(t.Context(), dir); err != nil {
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
	if r.groups == nil || r.groups.pids == "" {
		t.Skip("no pids controller here")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = Destroy(context.Background(), dir) })
	if _, err := r.Start(t.Context(), agent.SandboxConfig{
		ID: "bomb-0-1", Dir: dir, Work: dir, Env: []string{"PATH=/usr/bin:/bin"}, OutputLimit: 1 << 20,
		Command: []string{"sh", "-c", `trap '' TERM; f() { f & f & sleep 0.01; }; f; sleep 1000`},
	}); err != nil {
		t.Fatal(err)
	}
	most := 0
	waitFor(t, "the limit is reached", func() bool {
		text, _ := readSmall(filepath.Join(r.groups.pids, "a-bomb-0-1", "pids.events"))
		pids, _ := cgroupPids([]string{filepath.Join(r.groups.pids, "a-bomb-0-1")})
		most = max(most, len(pids))
		return keyed(text)["max"] > 0
	})
	if most > 60+initThreads {
		t.Errorf("%d processes", most)
	}
	if err := r.Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if left, err := Members(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestParseTrees(t *testing.T) {
	const mounts = `22 27 0:21 / /proc rw,relatime - proc proc rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /with\040space rw - cgroup cgroup rw,pids
`
	trees := parseTrees(mounts)
	if len(trees) != 3 || trees[2].mount != "/with space" {
		t.Fatalf("trees %+v", trees)
	}
	g := choose(trees, "muster/n1")
	want := []string{"/sys/fs/cgroup/memory/muster/n1", "/sys/fs/cgroup/cpu,cpuacct/muster/n1", "/with space/muster/n1"}
	if g.v2 || !slices.Equal(g.parents, want) {
		t.Errorf("chosen %+v", g)
	}
	const own = "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/x\n2:pids:/\n"
	if dir, ok := ownCgroup(own, trees[1]); !ok || dir != "/sys/fs/cgroup/memory/inner" {
		t.Errorf("own memory cgroup %q, %v", dir, ok)
	}
	if dir, ok := ownCgroup(own, trees[0]); !ok || dir != "/sys/fs/cgroup/cpu,cpuacct/x" {
		t.Errorf("own cpu cgroup %q, %v", dir, ok)
	}
	// Outside of what the mount shows: not to be told.
	if dir, ok := ownCgroup("4:memory:/elsewhere\n", trees[1]); ok {
		t.Errorf("own memory cgroup %q", dir)
	}
}

func TestCgroupName(t *testing.T) {
	for id, want := range map[string]string{"abc-0-1": "a-abc-0-1", "cgroup.procs": "a-cgroup.procs"} {
		if got := cgroupName(muster.AllocID(id), "/d"); got != want {
			t.Errorf("%q: %q", id, got)
		}
	}
	for _, id := range []string{"../../x", "a/b", ".hidden", strings.Repeat("x", 300), "a b"} {
		if got := cgroupName(muster.AllocID(id), "/d"); !strings.HasPrefix(got, "h-") || len(got) != 34 {
			t.Errorf("%q: %q", id, got)
		}
	}
}
