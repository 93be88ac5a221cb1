package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

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

func TestName(t *testing.T) {
	for id, want := range map[string]string{"abc-0-1": "a-abc-0-1", "cgroup.procs": "a-cgroup.procs"} {
		if got := Name(muster.AllocID(id), "/d"); got != want {
			t.Errorf("%q: %q", id, got)
		}
	}
	for _, id := range []string{"../../x", "a/b", ".hidden", strings.Repeat("x", 300), "a b"} {
		if got := Name(muster.AllocID(id), "/d"); !strings.HasPrefix(got, "h-") || len(got) != 34 {
			t.Errorf("%q: %q", id, got)
		}
	}
}

// open makes a parent for one test, gone after it.
func open(t *testing.T) *Groups {
	t.Helper()
	parent := "muster-test/" + t.Name() + "-" + strconv.Itoa(os.Getpid())
	g, problems := Open(parent)
	if g == nil {
		t.Skip(problems)
	}
	t.Cleanup(func() {
		if err := RemoveParent(parent); err != nil {
			t.Error(err)
		}
	})
	return g
}

// sleeper starts a process inside.
func sleeper(t *testing.T, g *Groups, dirs []string) (pid int) {
	t.Helper()
	attr := &syscall.ProcAttr{Sys: &syscall.SysProcAttr{}}
	err := g.Inside(dirs, attr.Sys, func() (int, error) {
		var err error
		pid, _, err = syscall.StartProcess("/bin/sleep", []string{"sleep", "1000"}, attr)
		return pid, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
	})
	return pid
}

// TestInside: a process begins in every hierarchy, also where the agent cannot tell its own cgroups and has to move it.
func TestInside(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run("moved="+strconv.FormatBool(moved), func(t *testing.T) {
			g := open(t)
			if moved {
				if g.v2 {
					t.Skip("never moved on v2")
				}
				g.home = nil
			}
			dirs := g.Dirs("a-x")
			if err := g.Create(dirs, Limits{Memory: 64 * muster.MiB, CPU: 100, CPUMax: 250, Pids: 20}); err != nil {
				t.Fatal(err)
			}
			pid := sleeper(t, g, dirs)
			for _, dir := range dirs {
				if pids, ok := Pids([]string{dir}); !ok || !slices.Equal(pids, []int{pid}) {
					t.Errorf("in %s: %v, want %d", dir, pids, pid)
				}
			}
			if own, _ := Pids(dirs); slices.Contains(own, os.Getpid()) {
				t.Error("this process is inside")
			}
			if u := Measure(dirs); g.LimitsPids() && u.Pids != 1 {
				t.Errorf("usage %+v", u)
			}
			// Who is inside is ended, and reaped by its parent, who is this test.
			go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
			if err := RemoveAll(dirs); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLimits: what was asked for is what the kernel says, with the room for init.
func TestLimits(t *testing.T) {
	g := open(t)
	dirs := g.Dirs("a-x")
	if err := g.Create(dirs, Limits{Memory: 64 * muster.MiB, CPU: 2000, CPUMax: 1500, Pids: 20}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"memory.limit_in_bytes": "71303168", "memory.max": "71303168", "memory.swap.max": "0", tcpMemory: "71303168",
		"cpu.shares": "2048", "cpu.cfs_quota_us": "150000", "cpu.max": "150000 100000", "pids.max": "36",
	}
	seen := 0
	for _, dir := range dirs {
		for file, value := range want {
			text, ok := ReadSmall(filepath.Join(dir, file))
			if !ok {
				continue
			}
			if seen++; strings.TrimSpace(text) != value {
				t.Errorf("%s is %q, want %q", file, text, value)
			}
		}
	}
	if seen == 0 {
		t.Error("no limit is there")
	}
	if err := RemoveAll(dirs); err != nil {
		t.Error(err)
	}
}

// TestSweep: what a dead agent's check left goes, that of a living one and everything else stays.
func TestSweep(t *testing.T) {
	g := open(t)
	for _, name := range []string{"a-check-dead", "a-check-alive", "a-job-0-1"} {
		for _, dir := range g.Dirs(name) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	dirs := g.Dirs("a-check-dead")
	pid := sleeper(t, g, dirs)
	go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
	g.Sweep(func(rest string) bool { return rest == "dead" })
	for name, want := range map[string]bool{"a-check-dead": false, "a-check-alive": true, "a-job-0-1": true} {
		for _, dir := range g.Dirs(name) {
			if _, err := os.Lstat(dir); (err == nil) != want {
				t.Errorf("%s: %v, want it there: %v", dir, err, want)
			}
			if err := RemoveAll([]string{dir}); err != nil {
				t.Error(err)
			}
		}
	}
}

// The first thread of the process is where the process is said to be, so it stays at home whoever is started meanwhile.
func TestInsideNeverMovesTheFirstThread(t *testing.T) {
	g := open(t)
	if !g.moves() {
		t.Skip("threads are not moved here")
	}
	dirs := g.Dirs("a-x")
	if err := g.Create(dirs, Limits{Memory: 64 * muster.MiB, CPU: 100, Pids: 1000}); err != nil {
		t.Fatal(err)
	}
	nothing := errors.New("nothing is started")
	var wg sync.WaitGroup
	var moved atomic.Int32
	for range 300 {
		wg.Go(func() {
			err := g.Inside(dirs, &syscall.SysProcAttr{}, func() (int, error) {
				if unix.Gettid() == unix.Getpid() {
					moved.Add(1)
				}
				return 0, nothing
			})
			if !errors.Is(err, nothing) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := moved.Load(); n > 0 {
		t.Errorf("the first thread was moved %d times", n)
	}
	if err := RemoveAll(dirs); err != nil {
		t.Error(err)
	}
}

// TestDelegated: the cgroup of an ordinary user is found, also after its processes were moved; else the reason is said.
func TestDelegated(t *testing.T) {
	mount := t.TempDir()
	unit := filepath.Join(mount, "user.slice/unit")
	if err := os.MkdirAll(filepath.Join(unit, leaf), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(unit, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v2 := []tree{{root: "/", mount: mount, v2: true}}
	refused := func(trees []tree, own, want string) {
		t.Helper()
		if dir, err := delegated(trees, own); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found %q, %v, want an error with %q", dir, err, want)
		}
	}
	refused(append(v2, tree{root: "/", controllers: []string{"memory"}}), "0::/user.slice/unit\n", "version 1")
	refused(nil, "", "version 1")
	refused(v2, "0::/user.slice/unit\n", "Delegate=yes")
	write("cgroup.procs", "")
	write("cgroup.subtree_control", "")
	write("cgroup.controllers", "cpu pids\n")
	refused(v2, "0::/user.slice/unit\n", "no controller memory")
	write("cgroup.controllers", "cpu memory pids\n")
	for _, own := range []string{"0::/user.slice/unit\n", "1:name=systemd:/x\n0::/user.slice/unit/" + leaf + "\n"} {
		if dir, err := delegated(v2, own); err != nil || dir != unit {
			t.Errorf("%q: found %q, %v, want %q", own, dir, err, unit)
		}
	}
}
