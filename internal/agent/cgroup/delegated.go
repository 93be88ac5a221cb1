package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leaf is the cgroup into which the processes of a delegated one move: on version 2 none may be in a
// cgroup that hands controllers down.
const leaf = "muster.main"

// Unlimited is what does not work without cgroups.
const Unlimited = "memory limits are not enforced and processes are not counted: "

// Delegated finds the cgroup that was delegated to this process's user, and says why there is none.
// It changes nothing.
func Delegated() (dir string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return delegated(parseTrees(string(mounts)), string(own))
}

func delegated(trees []tree, own string) (string, error) {
	i := slices.IndexFunc(trees, func(t tree) bool { return t.v2 })
	v1 := slices.ContainsFunc(trees, func(t tree) bool { return !t.v2 && slices.Contains(t.controllers, "memory") })
	if i < 0 || v1 {
		return "", errors.New("this host has cgroups of version 1, which are for root only; an ordinary user gets limits on hosts with cgroups of version 2")
	}
	path := ""
	for line := range strings.Lines(own) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = rest
		}
	}
	rel, err := filepath.Rel(trees[i].root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("the cgroup of this process, %q, is outside of what is mounted here", path)
	}
	dir := filepath.Join(trees[i].mount, rel)
	if filepath.Base(dir) == leaf {
		dir = filepath.Dir(dir)
	}
	const how = "no cgroup is delegated to this user; start it with `systemd-run --user --scope -p Delegate=yes …`"
	for _, file := range []string{"cgroup.procs", "cgroup.subtree_control", ""} {
		if unix.Access(filepath.Join(dir, file), unix.W_OK) != nil {
			return "", errors.New(how)
		}
	}
	text, _ := ReadSmall(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range []string{"memory", "pids"} {
		if !slices.Contains(strings.Fields(text), c) {
			return "", fmt.Errorf("the cgroup that is delegated to this user has no controller %s; systemd gives it with `Delegate=yes`", c)
		}
	}
	return dir, nil
}

// Vacuum moves the processes of a delegated cgroup into a leaf of it, so that it can hand its
// controllers down. They are those of this user: the server, its agents, and what started them.
func Vacuum(dir string) error {
	below := filepath.Join(dir, leaf)
	if err := unix.Mkdir(below, 0o755); err != nil && err != unix.EEXIST {
		return fmt.Errorf("make cgroup %s: %w", below, err)
	}
	for range 100 { // what they start meanwhile is where they were
		pids, _ := Pids([]string{dir})
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := writeFile(filepath.Join(below, "cgroup.procs"), strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("the processes of cgroup %s cannot be moved: there are always new ones", dir)
}

// OpenBelow is Open for a cgroup of version 2 that was delegated: the parent is below its directory.
func OpenBelow(dir, parent string) (*Groups, []string) {
	text, _ := ReadSmall(filepath.Join(dir, "cgroup.controllers"))
	g := choose([]tree{{root: "/", mount: dir, v2: true, controllers: strings.Fields(text)}}, filepath.Clean(parent))
	if len(g.parents) == 0 {
		return nil, []string{Unlimited + "the delegated cgroup has no controllers"}
	}
	if err := g.makeParents(); err != nil {
		return nil, []string{Unlimited + err.Error()}
	}
	return g, g.problems()
}

// RemoveBelow deletes the parent cgroup of an agent that is gone, below a delegated one.
func RemoveBelow(dir, parent string) error {
	at := filepath.Join(dir, parent)
	g := &Groups{parents: []string{at}}
	g.Sweep(func(string) bool { return true })
	err := Remove(at)
	for at = filepath.Dir(at); err == nil && at != dir; at = filepath.Dir(at) {
		if unix.Rmdir(at) != nil {
			break // shared with another agent
		}
	}
	return err
}
