package sandbox

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
)

// endLeftovers kills and reaps every descendant of this process; false if some would not die in
// time. Whoever loses its parent becomes our child, so killing children again and again reaches
// everything. Meanwhile everybody is served. What executions left is theirs to name, so only reap
// reaps.
func (s *sandbox) endLeftovers(deadline time.Time) bool {
	pause := time.Millisecond
	for {
		if _, err := system.DeadChild(); err == syscall.ECHILD {
			return true // nearly always at once
		}
		s.reap()
		if os.Getpid() == 1 {
			_ = syscall.Kill(-1, syscall.SIGKILL) // all of the container but us
		} else {
			for _, pid := range descendants() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		s.reap()
		if _, err := system.DeadChild(); err == syscall.ECHILD {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		for next := time.Now().Add(pause); time.Now().Before(next); {
			s.turn(next)
		}
		pause = min(pause*2, 50*time.Millisecond)
	}
}

// descendants are all of them, children before their children. A pid here cannot have become a
// stranger's while its parent, who has not reaped it, is ours; for deeper ones that is a race of
// microseconds within our own tree.
func descendants() []int {
	self := strconv.Itoa(os.Getpid())
	level, err := children(self)
	if err != nil {
		return scanChildren()
	}
	var all []int
	for len(level) > 0 {
		all = append(all, level...)
		var next []int
		for _, pid := range level {
			below, _ := children(strconv.Itoa(pid))
			next = append(next, below...)
		}
		level = next
	}
	return all
}

// scanChildren are the direct children, for kernels that do not list them.
func scanChildren() (all []int) {
	self := os.Getpid()
	entries, _ := os.ReadDir("/proc")
	buf := make([]byte, scratchSize)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, ok := system.ReadStat(pid, buf); ok && st.Parent == self {
			all = append(all, pid)
		}
	}
	return all
}
