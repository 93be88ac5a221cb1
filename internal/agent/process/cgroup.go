package process

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// Room that the limits have for init itself.
const (
	initMemory  = 4 << 20
	initThreads = 16
)

// cgroups are the parent cgroups of an agent. A nil *cgroups does nothing.
type cgroups struct {
	// name is the parent's path in every tree.
	name string
	// v2: one tree with all controllers; else one tree each, or shared.
	v2 bool
	// memory, cpu and pids are the parent's directory in the tree of that controller; empty if it is not to be had.
	memory, cpu, pids string
	// parents are the distinct ones among them, in this order.
	parents []string
	// swap: swap can be limited as well.
	swap bool
	// home are open "tasks" files (v1) of the cgroups where this process lives, in
	// the order of parents. Empty if they cannot be told: then init is moved after its start.
	home []int
}

// openCgroups finds the hierarchies and makes the parent in each. What cannot be enforced is told as problems.
func openCgroups(parent string) (*cgroups, []string) {
	const unlimited = "memory limits are not enforced and processes are not counted: "
	if parent == "" {
		return nil, []string{unlimited + "no cgroup parent is configured"}
	}
	if os.Geteuid() != 0 {
		return nil, []string{unlimited + "cgroups need root"}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, []string{unlimited + err.Error()}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, []string{unlimited + err.Error()}
	}
	trees := parseTrees(string(mounts))
	g := choose(trees, filepath.Clean(parent))
	if len(g.parents) == 0 {
		return nil, []string{unlimited + "no cgroup hierarchy with the controllers memory, cpu or pids is mounted"}
	}
	if err := g.makeParents(); err != nil {
		return nil, []string{unlimited + err.Error()}
	}
	if !g.v2 {
		g.openHome(trees, string(own))
	}
	var problems []string
	if g.memory == "" {
		problems = append(problems, "memory limits are not enforced: there is no memory controller")
	} else {
		g.swap = exists(filepath.Join(g.memory, "memory.memsw.limit_in_bytes")) || exists(filepath.Join(g.memory, "memory.swap.max"))
	}
	if g.pids == "" {
		problems = append(problems, "the number of processes is not limited: there is no pids controller")
	}
	return g, problems
}

// tree is one mounted hierarchy.
type tree struct {
	// root is what of the hierarchy the mount shows, mount where.
	root, mount string
	v2          bool
	controllers []string
}

// parseTrees reads /proc/self/mountinfo.
func parseTrees(mountinfo string) (trees []tree) {
	for raw := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(strings.TrimSpace(raw), " - ")
		f, t := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(t) < 3 {
			continue
		}
		switch t[0] {
		case "cgroup":
			trees = append(trees, tree{root: unescape(f[3]), mount: unescape(f[4]), controllers: strings.Split(t[2], ",")})
		case "cgroup2":
			b, _ := os.ReadFile(filepath.Join(unescape(f[4]), "cgroup.controllers"))
			trees = append(trees, tree{root: unescape(f[3]), mount: unescape(f[4]), v2: true, controllers: strings.Fields(string(b))})
		}
	}
	return trees
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// choose takes v1 if any controller that we need lives there, else v2.
func choose(trees []tree, parent string) *cgroups {
	find := func(v2 bool, controller string) string {
		for _, t := range trees {
			if t.v2 == v2 && slices.Contains(t.controllers, controller) {
				return filepath.Join(t.mount, parent)
			}
		}
		return ""
	}
	g := &cgroups{name: parent}
	for _, v2 := range []bool{false, true} {
		g.v2 = v2
		g.memory, g.cpu, g.pids = find(v2, "memory"), find(v2, "cpu"), find(v2, "pids")
		if g.memory+g.cpu+g.pids != "" {
			break
		}
	}
	for _, dir := range []string{g.memory, g.cpu, g.pids} {
		if dir != "" && !slices.Contains(g.parents, dir) {
			g.parents = append(g.parents, dir)
		}
	}
	return g
}

func (g *cgroups) makeParents() error {
	for _, dir := range g.parents {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if !g.v2 {
			continue
		}
		// A controller works in a cgroup if every one above hands it down.
		at := strings.TrimSuffix(dir, "/"+g.name)
		for _, step := range append([]string{""}, strings.Split(g.name, "/")...) {
			at = filepath.Join(at, step)
			for _, controller := range []string{"memory", "cpu", "pids"} {
				if err := writeFile(filepath.Join(at, "cgroup.subtree_control"), "+"+controller); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("enable controller %s: %w", controller, err)
				}
			}
		}
	}
	return nil
}

// openHome opens the cgroups where this process lives now, or none of them.
func (g *cgroups) openHome(trees []tree, own string) {
	for _, dir := range g.parents {
		i := slices.IndexFunc(trees, func(t tree) bool { return !t.v2 && filepath.Join(t.mount, g.name) == dir })
		path, ok := ownCgroup(own, trees[i])
		fd := -1
		if ok {
			var err error
			if fd, err = unix.Open(filepath.Join(path, "tasks"), unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
				ok = false
			}
		}
		if !ok {
			for _, fd := range g.home {
				_ = unix.Close(fd)
			}
			g.home = nil
			return
		}
		g.home = append(g.home, fd)
	}
}

// ownCgroup finds in /proc/self/cgroup where we are in a v1 hierarchy.
func ownCgroup(own string, t tree) (dir string, ok bool) {
	for raw := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(raw), ":", 3)
		if len(f) != 3 || !slices.Contains(t.controllers, strings.Split(f[1], ",")[0]) {
			continue
		}
		rel, err := filepath.Rel(t.root, f[2])
		if err != nil || !filepath.IsLocal(rel) {
			return "", false
		}
		return filepath.Join(t.mount, rel), true
	}
	return "", false
}

// cgroupName is the name of a sandbox's cgroup.
func cgroupName(id muster.AllocID, dir string) string {
	name := string(id)
	if name == "" {
		name = filepath.Base(dir)
	}
	plain := len(name) <= 200 && name[0] != '.' && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
	})
	if plain && filepath.IsLocal(name) {
		return "a-" + name // no name can be that of a control file
	}
	sum := sha256.Sum256([]byte(name))
	return "h-" + hex.EncodeToString(sum[:16])
}

// dirs are the directories of a sandbox's cgroup; they need not exist.
func (g *cgroups) dirs(name string) (dirs []string) {
	if g == nil {
		return nil
	}
	for _, p := range g.parents {
		dirs = append(dirs, filepath.Join(p, name))
	}
	return dirs
}

// create makes the cgroup of a sandbox and sets its limits.
func (g *cgroups) create(dirs []string, want muster.Resources, pids int) error {
	if g == nil {
		return nil
	}
	for i, dir := range dirs {
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
		if err := g.limit(g.parents[i], dir, want, pids); err != nil {
			return fmt.Errorf("limits of cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// vacate makes sure that none of the directories exists. An empty one was left by
// an agent whose files are lost; one where something lives is another sandbox, which must be left alone.
func (g *cgroups) vacate(dirs []string) error {
	for _, dir := range dirs {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			return fmt.Errorf("cgroup %s is in use: %w", dir, err)
		}
	}
	return nil
}

// limit writes the limits of every controller that lives in this directory's tree.
func (g *cgroups) limit(parent, dir string, want muster.Resources, pids int) error {
	shares := max(2, int64(want.CPU)*1024/1000)
	if parent == g.memory && want.Memory > 0 {
		limit := strconv.FormatInt(int64(want.Memory)+initMemory, 10)
		if err := writeFile(filepath.Join(dir, pick(g.v2, "memory.max", "memory.limit_in_bytes")), limit); err != nil {
			return err
		}
		if g.swap {
			// v1 counts memory and swap together, v2 swap alone.
			if err := writeFile(filepath.Join(dir, pick(g.v2, "memory.swap.max", "memory.memsw.limit_in_bytes")), pick(g.v2, "0", limit)); err != nil {
				return err
			}
		}
	}
	if parent == g.cpu {
		weight := strconv.FormatInt(1+(min(shares, 262144)-2)*9999/262142, 10)
		if err := writeFile(filepath.Join(dir, pick(g.v2, "cpu.weight", "cpu.shares")), pick(g.v2, weight, strconv.FormatInt(shares, 10))); err != nil {
			return err
		}
	}
	if parent == g.pids {
		return writeFile(filepath.Join(dir, "pids.max"), strconv.Itoa(pids+initThreads))
	}
	return nil
}

// inside runs fork so that its child begins in the cgroup. A pid that comes with an error is a child that runs elsewhere.
func (g *cgroups) inside(dirs []string, attr *syscall.SysProcAttr, fork func() (pid int, err error)) error {
	switch {
	case g == nil:
		_, err := fork()
		return err
	case g.v2:
		fd, err := unix.Open(dirs[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cgroup %s: %w", dirs[0], err)
		}
		defer func() { _ = unix.Close(fd) }()
		attr.UseCgroupFD, attr.CgroupFD = true, fd
		_, err = fork()
		return err
	case len(g.home) == 0:
		pid, err := fork()
		for _, dir := range dirs {
			if err == nil {
				err = writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
			}
		}
		return err
	}
	// On a goroutine of its own: if the way home fails, its thread must die with it.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		var err error
		for _, dir := range dirs {
			if err == nil {
				err = writeFile(filepath.Join(dir, "tasks"), "0")
			}
		}
		if err == nil {
			_, err = fork()
		}
		away := false
		for _, fd := range g.home {
			if werr := write(fd, "0"); werr != nil {
				away = true
				err = errors.Join(err, fmt.Errorf("return from the cgroup: %w", werr))
			}
		}
		if !away {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// RemoveCgroupParent deletes the parent cgroup of an agent that is gone, in every
// hierarchy, and those above it that become empty. Its sandboxes must have been removed.
func RemoveCgroupParent(parent string) error {
	if !filepath.IsLocal(parent) || filepath.Clean(parent) == "." {
		return fmt.Errorf("cgroup parent %q: want a relative path below the root", parent)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range choose(parseTrees(string(mounts)), filepath.Clean(parent)).parents {
		if err := removeCgroup(dir); err != nil {
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

// writeFile writes to a control file, which exists or the feature does not.
func writeFile(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	err = write(fd, value)
	_ = unix.Close(fd)
	if err != nil {
		return &os.PathError{Op: "write " + value + " to", Path: path, Err: err}
	}
	return nil
}

// write writes once more when a signal came between: the Go runtime interrupts its
// own threads, and the kernel gives up a change of a memory limit then.
func write(fd int, value string) error {
	for {
		if _, err := unix.Write(fd, []byte(value)); err != unix.EINTR {
			return err
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func pick(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}
