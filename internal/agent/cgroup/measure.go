package cgroup

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// OutOfMemory reads how many processes of a cgroup the kernel killed for want
// of memory, and whether the cgroup ever was at its own limit: if not, the node
// itself had run out.
func OutOfMemory(dirs []string) (kills int64, own bool) {
	events, dir, v2 := oomEvents(dirs)
	if v2 {
		return events["oom_kill"], events["oom"] > 0
	}
	return events["oom_kill"], dir != "" && wasFull(dir)
}

// OOMKills is the first word of OutOfMemory alone, which costs a file to read.
func OOMKills(dirs []string) int64 {
	events, _, _ := oomEvents(dirs)
	return events["oom_kill"]
}

// oomEvents are what the kernel counts of a cgroup that wanted memory, and the directory that has it; empty: none has.
func oomEvents(dirs []string) (events map[string]int64, dir string, v2 bool) {
	for _, dir := range dirs {
		if text, ok := ReadSmall(filepath.Join(dir, "memory.events")); ok {
			return Keyed(text), dir, true
		}
		if text, ok := ReadSmall(filepath.Join(dir, "memory.oom_control")); ok {
			return Keyed(text), dir, false
		}
	}
	return nil, "", false
}

// PidsLimitHit reports whether a cgroup was ever refused a process or thread because it had as many as it may have.
func PidsLimitHit(dirs []string) bool {
	for _, dir := range dirs {
		if text, ok := ReadSmall(filepath.Join(dir, "pids.events")); ok {
			return Keyed(text)["max"] > 0
		}
	}
	return false
}

// wasFull reports whether a v1 cgroup ever was as good as full. Not by its
// failcnt: recent kernels leave that at zero.
func wasFull(dir string) bool {
	const slack = 2 << 20 // what may be asked for at once
	most, ok := ReadSmall(filepath.Join(dir, "memory.max_usage_in_bytes"))
	limit, ok2 := ReadSmall(filepath.Join(dir, "memory.limit_in_bytes"))
	return ok && ok2 && number(most)+slack >= number(limit)
}

// Usage is what a cgroup says of the processes in it.
type Usage struct {
	// Memory without page cache that is not in use. Peak is the most that it ever was, page cache included.
	Memory, Peak muster.Bytes
	CPU          time.Duration
	// Pids are processes and threads, PidsMax how many the sandbox may have; 0: no limit, or not known.
	Pids, PidsMax int
	// Which of them could be had; Pids is 0 if not.
	HasMemory, HasCPU bool
}

// Measure reads the usage of a sandbox's cgroup.
func Measure(dirs []string) (u Usage) {
	first := func(dir string, names ...string) (int64, bool) {
		for _, name := range names {
			if text, ok := ReadSmall(filepath.Join(dir, name)); ok {
				return number(text), true
			}
		}
		return 0, false
	}
	for _, dir := range dirs {
		if n, ok := first(dir, "memory.current", "memory.usage_in_bytes"); ok && !u.HasMemory {
			u.Memory, u.HasMemory = muster.Bytes(n), true
			peak, _ := first(dir, "memory.peak", "memory.max_usage_in_bytes")
			u.Peak = muster.Bytes(peak)
			text, _ := ReadSmall(filepath.Join(dir, "memory.stat"))
			stat := Keyed(text)
			idle, v1 := stat["total_inactive_file"]
			if !v1 {
				idle = stat["inactive_file"]
			}
			u.Memory = max(u.Memory-muster.Bytes(idle), 0)
		}
		if u.HasCPU {
			continue
		}
		if n, ok := first(dir, "cpuacct.usage"); ok {
			u.CPU, u.HasCPU = time.Duration(n), true
		} else if text, ok := ReadSmall(filepath.Join(dir, "cpu.stat")); ok {
			if usec, v2 := Keyed(text)["usage_usec"]; v2 {
				u.CPU, u.HasCPU = time.Duration(usec)*time.Microsecond, true
			}
		}
	}
	for _, dir := range dirs {
		if n, ok := first(dir, "pids.current"); ok && u.Pids == 0 {
			u.Pids = int(n)
			if most, ok := first(dir, "pids.max"); ok {
				u.PidsMax = int(max(most-InitThreads, 0))
			}
		}
	}
	return u
}

// ReadSmall reads a file of /proc or a cgroup, at most 16 KiB of it.
func ReadSmall(path string) (string, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 16<<10)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", false
		}
		if m == 0 {
			break
		}
		n += m
	}
	return string(buf[:n]), true
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n
}

// Keyed reads lines of "key value".
func Keyed(text string) map[string]int64 {
	m := map[string]int64{}
	for raw := range strings.Lines(text) {
		if key, v, ok := strings.Cut(strings.TrimSpace(raw), " "); ok {
			m[key] = number(v)
		}
	}
	return m
}
