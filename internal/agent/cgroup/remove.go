package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeTime bounds the wait for a cgroup that the kernel still calls busy.
const removeTime = 2 * time.Second

// RemoveAll deletes the cgroup of a sandbox in every hierarchy.
func RemoveAll(dirs []string) error {
	Thaw(dirs)
	var errs []error
	for _, dir := range slices.Backward(dirs) {
		errs = append(errs, Remove(dir))
	}
	return errors.Join(errs...)
}

// Remove deletes one cgroup directory, killing what is in it. The kernel
// may call it busy for a moment after its last process ended.
func Remove(dir string) error {
	deadline := time.Now().Add(removeTime)
	pause := 200 * time.Microsecond
	for {
		err := unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY && err != unix.EINTR || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		pids, _ := Pids([]string{dir})
		for _, pid := range pids {
			kill(dir, pid)
		}
		time.Sleep(pause)
		pause = min(pause*2, 50*time.Millisecond)
	}
}

// Check begins the id of a sandbox that an agent makes only to see whether it can. No directory remembers it
// if the agent dies over it.
const Check = "check-"

// Sweep deletes the cgroups of such sandboxes whose agent is gone, as told by the rest of their id.
func (g *Groups) Sweep(gone func(rest string) bool) {
	if g == nil {
		return
	}
	for _, parent := range append(slices.Clone(g.parents), g.others...) {
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if rest, ok := strings.CutPrefix(e.Name(), Name(Check, "")); ok && gone(rest) {
				dir := filepath.Join(parent, e.Name())
				_ = RemoveAll([]string{dir, filepath.Join(dir, Below)})
			}
		}
	}
}

// Names are the names of the cgroups of all sandboxes that there are, those of checks excepted.
func (g *Groups) Names() (names []string) {
	if g == nil {
		return nil
	}
	check := Name(Check, "")
	for _, parent := range g.parents {
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if name := e.Name(); e.IsDir() && !strings.HasPrefix(name, check) && (strings.HasPrefix(name, plainName) || strings.HasPrefix(name, hashedName)) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RemoveParent deletes the parent cgroup of an agent that is gone, in every
// hierarchy, and those above it that become empty. Its sandboxes must have been removed.
func RemoveParent(parent string) error {
	if !filepath.IsLocal(parent) || filepath.Clean(parent) == "." {
		return fmt.Errorf("cgroup parent %q: want a relative path below the root", parent)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	g := choose(parseTrees(string(mounts)), filepath.Clean(parent))
	g.Sweep(func(string) bool { return true })
	for _, dir := range append(g.parents, g.others...) {
		if err := Remove(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		for p := filepath.Dir(parent); p != "."; p = filepath.Dir(p) {
			dir = filepath.Dir(dir)
			if unix.Rmdir(dir) != nil {
				break // shared with another agent
			}
		}
	}
	return errors.Join(errs...)
}

// Pids are the processes in a sandbox's cgroup; ok only if there is one.
func Pids(dirs []string) (pids []int, ok bool) {
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		ok = true
		for field := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids) // each controller's tree lists them again
	return slices.Compact(pids), ok
}

// kill ends a process if it is in the cgroup. Looked at once more after it is held:
// now its number cannot change hands unseen.
func kill(dir string, pid int) {
	if pid == os.Getpid() {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if now, _ := Pids([]string{dir}); slices.Contains(now, pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
