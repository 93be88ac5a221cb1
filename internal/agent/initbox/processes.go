package initbox

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/cgroup"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// allocVariable marks the environment of every command that the agent starts.
// It finds those that left the session of a sandbox whose init is dead.
const allocVariable = "MUSTER_ALLOC"

// ReadStat reads /proc/PID/stat.
func ReadStat(pid int) (initwire.Stat, bool) {
	text, ok := cgroup.ReadSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if !ok {
		return initwire.Stat{}, false
	}
	return initwire.ParseStat(text)
}

// Living reports whether a process exists and is not only waiting to be reaped.
func Living(p initwire.Process) bool {
	st, ok := ReadStat(p.Pid)
	return ok && st.Start == p.Start && !st.Dead()
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
		text, ok := cgroup.ReadSmall(tasks + "/" + t.Name() + "/children")
		if !ok {
			if _, err := os.Lstat("/proc/thread-self/children"); err != nil {
				return nil, false
			}
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
			if st, ok := ReadStat(pid); ok {
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
	if !Living(p) {
		_ = unix.Close(fd)
		return -1, errGone
	}
	return fd, nil
}

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

// innerPid is the number of a process in its own pid namespace.
func innerPid(pid int) int {
	text, _ := cgroup.ReadSmall("/proc/" + strconv.Itoa(pid) + "/status")
	for raw := range strings.Lines(text) {
		if all, ok := strings.CutPrefix(raw, "NSpid:"); ok {
			f := strings.Fields(all)
			inner, _ := strconv.Atoi(f[len(f)-1])
			return inner
		}
	}
	return 0
}
