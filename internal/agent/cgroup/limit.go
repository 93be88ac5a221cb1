package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// Room that the limits have for init itself. InitThreads covers all threads that it starts ahead, see package sandbox.
const (
	InitMemory  = 4 << 20
	InitThreads = 16
)

// period is over how long a quota of processor time counts, in microseconds.
const period = 100_000

// Limits of one sandbox. Zero: no such limit; of CPU: the smallest weight.
type Limits struct {
	Memory muster.Bytes
	// CPU is a weight: what is idle may be used. CPUMax is a quota: more is not given even then.
	CPU, CPUMax muster.MilliCPU
	// Pids are processes and threads.
	Pids int
}

// How the names of sandboxes' cgroups begin: none can be that of a control file.
const (
	plainName  = "a-"
	hashedName = "h-" // where the id cannot be a name
)

// Name is the name of a sandbox's cgroup.
func Name(id muster.AllocID, dir string) string {
	name := string(id)
	if name == "" {
		name = filepath.Base(dir)
	}
	plain := len(name) <= 200 && name[0] != '.' && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
	if plain && filepath.IsLocal(name) {
		return plainName + name
	}
	sum := sha256.Sum256([]byte(name))
	return hashedName + hex.EncodeToString(sum[:16])
}

// Dirs are the directories of a sandbox's cgroup; they need not exist.
func (g *Groups) Dirs(name string) (dirs []string) {
	if g == nil {
		return nil
	}
	for _, p := range g.parents {
		dirs = append(dirs, filepath.Join(p, name))
	}
	return dirs
}

// Below is the name of the cgroup within a sandbox's own where, on v2, a container runtime that insists on
// making one makes it: the one that it was started in has members already.
const Below = "box"

// Everywhere are Dirs and then those that container runtimes make of their own accord: on v1 the directories of the
// same name in all other hierarchies, on v2 the one Below.
func (g *Groups) Everywhere(name string) []string {
	if g == nil {
		return nil
	}
	dirs := g.Dirs(name)
	if g.v2 {
		return append(dirs, filepath.Join(dirs[0], Below))
	}
	for _, p := range g.others {
		dirs = append(dirs, filepath.Join(p, name))
	}
	return dirs
}

// Path is where, in each hierarchy, such a runtime shall put the sandbox of this name.
func (g *Groups) Path(name string) string {
	if g.v2 {
		return "/" + filepath.Join(g.name, name, Below)
	}
	return "/" + filepath.Join(g.name, name)
}

// Starter are those of Dirs in which such a runtime itself is started: not where its memory would count.
func (g *Groups) Starter(dirs []string) (starter []string) {
	for i, p := range g.parents {
		if g.v2 || p != g.memory {
			starter = append(starter, dirs[i])
		}
	}
	return starter
}

// Create makes the cgroup of a sandbox, of Dirs or Everywhere, and sets its limits.
func (g *Groups) Create(dirs []string, want Limits) error {
	if g == nil {
		return nil
	}
	for i, parent := range g.parents {
		dir := dirs[i]
		err := unix.Mkdir(dir, 0o755)
		if err == unix.ENOENT {
			// Somebody removed the parent while nothing was in it.
			if err = g.makeParents(); err == nil {
				err = unix.Mkdir(dir, 0o755)
			}
		}
		if err != nil {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
		if err := g.limit(parent, dir, want); err != nil {
			return fmt.Errorf("limits of cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// Vacate makes sure that none of the directories exists. An empty one was left by
// an agent whose files are lost; one where something lives is another sandbox, which must be left alone.
func (g *Groups) Vacate(dirs []string) error {
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			return fmt.Errorf("cgroup %s is in use: %w", dir, err)
		}
	}
	return nil
}

// limit writes the limits of every controller that lives in this directory's tree.
func (g *Groups) limit(parent, dir string, want Limits) error {
	type setting struct{ file, value string }
	var all []setting
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	if parent == g.memory && want.Memory > 0 {
		limit := number(int64(want.Memory) + InitMemory)
		all = append(all, setting{pick(g.v2, "memory.max", "memory.limit_in_bytes"), limit})
		if g.swap {
			// v1 counts memory and swap together, v2 swap alone.
			all = append(all, setting{pick(g.v2, "memory.swap.max", "memory.memsw.limit_in_bytes"), pick(g.v2, "0", limit)})
		}
		if !g.v2 && exists(filepath.Join(dir, tcpMemory)) {
			// Version 1 counts buffers of TCP apart, and bounds them only if told so; version 2 counts them as memory.
			all = append(all, setting{tcpMemory, limit})
		}
	}
	if parent == g.cpu {
		shares := max(2, int64(want.CPU)*1024/1000)
		weight := 1 + (min(shares, 262144)-2)*9999/262142
		all = append(all, setting{pick(g.v2, "cpu.weight", "cpu.shares"), pick(g.v2, number(weight), number(shares))})
		if want.CPUMax > 0 {
			// The kernel takes no quota below a millisecond.
			quota := number(max(1000, int64(want.CPUMax)*period/1000))
			if g.v2 {
				all = append(all, setting{"cpu.max", quota + " " + number(period)})
			} else {
				all = append(all, setting{"cpu.cfs_period_us", number(period)}, setting{"cpu.cfs_quota_us", quota})
			}
		}
	}
	if parent == g.pids && want.Pids > 0 {
		all = append(all, setting{"pids.max", strconv.Itoa(want.Pids + InitThreads)})
	}
	for _, s := range all {
		if err := writeFile(filepath.Join(dir, s.file), s.value); err != nil {
			return err
		}
	}
	return nil
}

// tcpMemory is the limit of buffers of TCP in version 1, where the kernel has it.
const tcpMemory = "memory.kmem.tcp.limit_in_bytes"

// Inside runs fork so that its child begins in the cgroup. A pid that comes with an error is a child that runs elsewhere.
func (g *Groups) Inside(dirs []string, attr *syscall.SysProcAttr, fork func() (pid int, err error)) error {
	if !g.moves() {
		_, err := g.ThreadInside(dirs, attr, fork)
		return err
	}
	// On a goroutine of its own: if the way home fails, its thread must die with it. Never on the first thread of this
	// process: where that one is, is where /proc says that the process is, to whoever opens its own home meanwhile, and
	// what was taken for home would be gone a moment later.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// As long as this goroutine holds the first thread, the next one cannot get it.
			err := g.Inside(dirs, attr, fork)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		away, err := g.ThreadInside(dirs, attr, fork)
		if !away {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// moves reports whether the forking thread itself goes into the cgroup.
func (g *Groups) moves() bool { return g != nil && !g.v2 && len(g.home) > 0 }

// ThreadInside is Inside for a caller that has locked its thread; away: the
// thread did not come back from the cgroup and must die.
func (g *Groups) ThreadInside(dirs []string, attr *syscall.SysProcAttr, fork func() (pid int, err error)) (away bool, err error) {
	switch {
	case g == nil:
		_, err := fork()
		return false, err
	case g.v2:
		fd, err := unix.Open(dirs[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, fmt.Errorf("cgroup %s: %w", dirs[0], err)
		}
		defer func() { _ = unix.Close(fd) }()
		attr.UseCgroupFD, attr.CgroupFD = true, fd
		_, err = fork()
		return false, err
	case !g.moves():
		pid, err := fork()
		for _, dir := range dirs {
			if err == nil {
				err = writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
			}
		}
		return false, err
	}
	for _, dir := range dirs {
		if err == nil {
			err = writeFile(filepath.Join(dir, "tasks"), "0")
		}
	}
	if err == nil {
		_, err = fork()
	}
	for _, fd := range g.home {
		if werr := write(fd, "0"); werr != nil {
			away = true
			err = errors.Join(err, fmt.Errorf("return from the cgroup: %w", werr))
		}
	}
	return away, err
}
