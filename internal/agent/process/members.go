package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Bounds of ending what will not end.
const (
	killTime   = 10 * time.Second
	removeTime = 2 * time.Second
)

// allocVariable marks the environment of every command that the agent starts.
// It finds those that left the session of a sandbox whose init is dead.
const allocVariable = "MUSTER_ALLOC"

// Role is what a process is in its sandbox.
type Role string

// Roles.
const (
	RoleInit       Role = "init"
	RoleCommand    Role = "command"
	RoleDescendant Role = "descendant"
)

// Member is one living process of a sandbox.
type Member struct {
	initwire.Process
	Role Role
}

// Members lists every living process of the sandbox of dir, init first. It needs
// nothing but the directory: agent and init may be dead. A dir without a sandbox has none.
//
// With a cgroup the list is whole. Without one it is what descends from a living
// init, which takes in orphans; if init is dead, what is left in the command's
// session, what carries the allocation's mark in its environment, and what descends from either.
func Members(dir string) ([]Member, error) {
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("members of the sandbox: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if record.Sandbox == nil || record.Sandbox.Boot != boot {
		return nil, nil
	}
	return members(record), nil
}

func members(record *initwire.Record) []Member {
	init := record.Init
	var command *initwire.Process
	if record.Command != nil {
		command = &record.Command.Command
	}
	alive := init != nil && living(*init)
	pids, whole := cgroupPids(record.Sandbox.Cgroups)
	switch {
	case whole:
	case alive:
		pids = descendants(init.Pid)
	case init != nil:
		pids = strays(record.Sandbox.Alloc, command)
	}
	var all []Member
	if alive {
		all = append(all, Member{*init, RoleInit})
	}
	slices.Sort(pids)
	for _, pid := range slices.Compact(pids) {
		st, ok := readStat(pid)
		if !ok || st.Dead() || (alive && pid == init.Pid) || pid == os.Getpid() {
			continue
		}
		role := RoleDescendant
		if command != nil && pid == command.Pid && st.Start == command.Start {
			role = RoleCommand
		}
		all = append(all, Member{initwire.Process{Pid: pid, Start: st.Start}, role})
	}
	return all
}

// living reports whether a process exists and is not only waiting to be reaped.
func living(p initwire.Process) bool {
	st, ok := readStat(p.Pid)
	return ok && st.Start == p.Start && !st.Dead()
}

// cgroupPids are the processes in a sandbox's cgroup; ok only if there is one.
func cgroupPids(dirs []string) (pids []int, ok bool) {
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

// descendants of a process, by the kernel's lists of children, else by a look at all processes.
func descendants(root int) (all []int) {
	level := []int{root}
	for len(level) > 0 {
		var next []int
		for _, pid := range level {
			below, ok := children(pid)
			if !ok {
				return scanDescendants(root)
			}
			next = append(next, below...)
		}
		all = append(all, next...)
		level = next
	}
	return all
}

// children of all threads of a process; ok is false only if the kernel has no such lists.
func children(pid int) (all []int, ok bool) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	names, err := os.ReadDir(tasks)
	if err != nil {
		return nil, true
	}
	for _, t := range names {
		text, ok := readSmall(tasks + "/" + t.Name() + "/children")
		if !ok && !exists("/proc/thread-self/children") {
			return nil, false
		}
		for field := range strings.FieldsSeq(text) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all, true
}

func scanDescendants(root int) []int {
	return closure(map[int]bool{root: true}, allStats())
}

// strays are the processes of a sandbox whose init is dead and which has no cgroup.
func strays(alloc string, command *initwire.Process) []int {
	stats := allStats()
	ours := map[int]bool{}
	// The command's pid is its session's id. As long as the session has members the
	// number is not given away; if somebody else has it now, the session is gone.
	if command != nil {
		if now, taken := stats[command.Pid]; !taken || now.Start == command.Start {
			for pid, st := range stats {
				if st.Session == command.Pid && st.Start >= command.Start {
					ours[pid] = true
				}
			}
		}
	}
	if alloc != "" {
		mark := []byte(allocVariable + "=" + alloc)
		for pid := range stats {
			if !ours[pid] && marked(pid, mark) {
				ours[pid] = true
			}
		}
	}
	list := closure(ours, stats)
	for pid := range ours {
		list = append(list, pid)
	}
	return list
}

func marked(pid int, mark []byte) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if bytes.Equal(kv, mark) {
			return true
		}
	}
	return false
}

// closure are those that descend from the roots, without them.
func closure(roots map[int]bool, stats map[int]initwire.Stat) (below []int) {
	in := map[int]bool{}
	for changed := true; changed; {
		changed = false
		for pid, st := range stats {
			if !in[pid] && !roots[pid] && (roots[st.Parent] || in[st.Parent]) {
				in[pid] = true
				below = append(below, pid)
				changed = true
			}
		}
	}
	return below
}

func allStats() map[int]initwire.Stat {
	stats := map[int]initwire.Stat{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid > 1 {
			if st, ok := readStat(pid); ok {
				stats[pid] = st
			}
		}
	}
	return stats
}

var errGone = errors.New("process is gone")

// openProcess gets hold of exactly this process, or errGone.
func openProcess(p initwire.Process, flags int) (pidfd int, err error) {
	fd, err := unix.PidfdOpen(p.Pid, flags)
	if err == unix.ESRCH || err == unix.EINVAL {
		return -1, errGone // EINVAL: the number is a thread's now
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	// Looked at after the pidfd is held: now the number cannot change hands unseen.
	if !living(p) {
		_ = unix.Close(fd)
		return -1, errGone
	}
	return fd, nil
}

func kill(p initwire.Process) error { return signal(p, unix.SIGKILL) }

func signal(p initwire.Process, sig unix.Signal) error {
	fd, err := openProcess(p, 0)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && err != unix.ESRCH {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

// KillAll ends every process of the sandbox of dir with KILL and returns when
// none lives, or after a bounded time with an error that names those that do. Neither the
// agent nor init need be alive. Safe to call at any time, and twice.
func KillAll(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	pause := 500 * time.Microsecond
	for {
		all, err := Members(dir)
		if err != nil || len(all) == 0 {
			return err
		}
		var failed error
		for _, m := range all {
			sig := unix.SIGKILL
			if m.Role == RoleInit && len(all) > 1 && !hasCgroup(dir) {
				// Init goes first, so that it does not write down our KILL as the command's
				// end. But without a cgroup it is also what makes the list whole: it stands still until the others are gone.
				sig = unix.SIGSTOP
			}
			if err := signal(m.Process, sig); err != nil {
				failed = fmt.Errorf("end process %d of %s: %w", m.Pid, dir, err)
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(failed, fmt.Errorf("processes of %s do not end: %v", dir, pidsOf(all)))
		case <-time.After(pause):
		}
		pause = min(pause*2, 50*time.Millisecond)
	}
}

func hasCgroup(dir string) bool {
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	if err != nil || record.Sandbox == nil {
		return false
	}
	_, ok := cgroupPids(record.Sandbox.Cgroups)
	return ok
}

func pidsOf(all []Member) (pids []int) {
	for _, m := range all {
		pids = append(pids, m.Pid)
	}
	return pids
}

// Destroy ends whatever of the sandbox of dir runs and deletes its cgroup and
// socket. The files stay, and with them the result. Needs no agent; safe to call twice.
func Destroy(ctx context.Context, dir string) error {
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the sandbox: %w", err)
	}
	// Init writes a result when all is over, then it ends: nearly always there is nothing to look for.
	over := record.Result != nil && !record.Result.Leftovers && (record.Init == nil || !living(*record.Init))
	if !over {
		if err := KillAll(ctx, dir); err != nil {
			return err
		}
	}
	if record.Init != nil {
		// Ours to reap if this process started it and no longer watches it.
		if st, ok := readStat(record.Init.Pid); ok && st.Start == record.Init.Start && st.Dead() {
			_, _ = unix.Wait4(record.Init.Pid, nil, unix.WNOHANG, nil)
		}
	}
	var errs []error
	if record.Sandbox != nil {
		for _, c := range record.Sandbox.Cgroups {
			errs = append(errs, removeCgroup(c))
		}
	}
	errs = append(errs, removeFile(filepath.Join(dir, initwire.Socket)))
	return errors.Join(errs...)
}

// removeCgroup deletes one cgroup directory, killing what is in it. The kernel
// may call it busy for a moment after its last process ended.
func removeCgroup(dir string) error {
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
		pids, _ := cgroupPids([]string{dir})
		for _, pid := range pids {
			if st, ok := readStat(pid); ok && pid != os.Getpid() {
				_ = kill(initwire.Process{Pid: pid, Start: st.Start})
			}
		}
		time.Sleep(pause)
		pause = min(pause*2, 50*time.Millisecond)
	}
}

// Condition is what can be told of a sandbox from its directory alone.
type Condition string

// Conditions.
const (
	// None: no command was ever started here.
	None Condition = "none"
	// Running: at least one process of it lives.
	Running Condition = "running"
	// Ended: it came to an end that is written down.
	Ended Condition = "ended"
	// Died: it was started, nothing of it lives, and no end is written down.
	Died Condition = "died"
)

// Look tells the condition of the sandbox of dir. Needs no agent.
func Look(dir string) (Condition, error) {
	// Living first: what ends between the two looks has written its end by the second.
	living, err := Members(dir)
	if err != nil {
		return "", err
	}
	record, err := initwire.ReadRecord(filepath.Join(dir, initwire.SandboxRecord))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return None, nil
	case err != nil:
		return "", fmt.Errorf("look at the sandbox: %w", err)
	case record.Result != nil || record.Failed != nil:
		return Ended, nil
	case len(living) > 0:
		return Running, nil
	case record.Command == nil:
		return None, nil
	}
	return Died, nil
}
