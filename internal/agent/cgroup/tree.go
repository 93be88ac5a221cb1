package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Groups are the parent cgroups of an agent. A nil *Groups does nothing.
type Groups struct {
	// name is the parent's path in every tree.
	name string
	// v2: one tree with all controllers; else one tree each, or shared.
	v2 bool
	// memory, cpu and pids are the parent's directory in the tree of that controller; empty if it is not to be had.
	memory, cpu, pids string
	// parents are the distinct ones among them, in this order.
	parents []string
	// others are the parent's directories in the other v1 hierarchies; they need not exist. Empty on v2.
	others []string
	// freezer is the parent's directory in the freezer's tree of v1; it need not exist. Empty on v2.
	freezer string
	// swap: swap can be limited as well.
	swap bool
	// home are open "tasks" files (v1) of the cgroups where this process lives, in
	// the order of parents. Empty if they cannot be told: then init is moved after its start.
	home []int
}

// Open finds the hierarchies and makes the parent in each. What cannot be enforced is told as problems.
func Open(parent string) (*Groups, []string) {
	if parent == "" {
		return nil, []string{Unlimited + "no cgroup parent is configured"}
	}
	if os.Geteuid() != 0 {
		return nil, []string{Unlimited + "cgroups need root"}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, []string{Unlimited + err.Error()}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, []string{Unlimited + err.Error()}
	}
	trees := parseTrees(string(mounts))
	g := choose(trees, filepath.Clean(parent))
	if len(g.parents) == 0 {
		return nil, []string{Unlimited + "no cgroup hierarchy with the controllers memory, cpu or pids is mounted"}
	}
	if err := g.makeParents(); err != nil {
		return nil, []string{Unlimited + err.Error()}
	}
	if !g.v2 {
		g.openHome(trees, string(own))
	}
	return g, g.problems()
}

// problems are sentences about what cannot be limited. It finds out whether swap can be.
func (g *Groups) problems() (problems []string) {
	if g.memory == "" {
		problems = append(problems, "memory limits are not enforced: there is no memory controller")
	} else {
		g.swap = exists(filepath.Join(g.memory, "memory.memsw.limit_in_bytes")) || exists(filepath.Join(g.memory, "memory.swap.max"))
	}
	if g.pids == "" {
		problems = append(problems, "the number of processes is not limited: there is no pids controller")
	}
	return problems
}

// Unified reports whether all controllers live in one tree (cgroup v2).
func (g *Groups) Unified() bool { return g != nil && g.v2 }

// LimitsPids reports whether the number of processes can be limited.
func (g *Groups) LimitsPids() bool { return g != nil && g.pids != "" }

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
func choose(trees []tree, parent string) *Groups {
	find := func(v2 bool, controller string) string {
		for _, t := range trees {
			if t.v2 == v2 && slices.Contains(t.controllers, controller) {
				return filepath.Join(t.mount, parent)
			}
		}
		return ""
	}
	g := &Groups{name: parent}
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
	if !g.v2 {
		g.freezer = find(false, "freezer")
	}
	for _, t := range trees {
		dir := filepath.Join(t.mount, parent)
		if !g.v2 && !t.v2 && !slices.Contains(g.parents, dir) && !slices.Contains(g.others, dir) {
			g.others = append(g.others, dir)
		}
	}
	return g
}

func (g *Groups) makeParents() error {
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
func (g *Groups) openHome(trees []tree, own string) {
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
