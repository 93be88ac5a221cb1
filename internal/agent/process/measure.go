package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// clockTick is USER_HZ, which Linux fixes at 100 towards programs.
const clockTick = time.Second / 100

// outOfMemory reads how many processes of a cgroup the kernel killed for want
// of memory, and whether the cgroup ever was at its own limit: if not, the node
// itself had run out.
func outOfMemory(dirs []string) (kills int64, own bool) {
	for _, dir := range dirs {
		if text, ok := readSmall(filepath.Join(dir, "memory.events")); ok {
			events := keyed(text)
			return events["oom_kill"], events["oom"] > 0
		}
		if text, ok := readSmall(filepath.Join(dir, "memory.oom_control")); ok {
			return keyed(text)["oom_kill"], wasFull(dir)
		}
	}
	return 0, false
}

// wasFull reports whether a v1 cgroup ever was as good as full. Not by its
// failcnt: recent kernels leave that at zero.
func wasFull(dir string) bool {
	const slack = 2 << 20 // what may be asked for at once
	most, ok := readSmall(filepath.Join(dir, "memory.max_usage_in_bytes"))
	limit, ok2 := readSmall(filepath.Join(dir, "memory.limit_in_bytes"))
	return ok && ok2 && number(most)+slack >= number(limit)
}

// usage is what a running sandbox uses. Page cache that is not in use does not count as memory.
func usage(dirs []string, init initwire.Process) (u agent.Usage) {
	memory, cpu := false, false
	for _, dir := range dirs {
		if text, ok := readSmall(filepath.Join(dir, "memory.current")); ok { // v2
			u.Memory, memory = muster.Bytes(number(text)), true
		} else if text, ok := readSmall(filepath.Join(dir, "memory.usage_in_bytes")); ok {
			u.Memory, memory = muster.Bytes(number(text)), true
		}
		if text, ok := readSmall(filepath.Join(dir, "memory.stat")); ok {
			stat := keyed(text)
			idle, v1 := stat["total_inactive_file"]
			if !v1 {
				idle = stat["inactive_file"]
			}
			u.Memory = max(u.Memory-muster.Bytes(idle), 0)
		}
		if text, ok := readSmall(filepath.Join(dir, "cpuacct.usage")); ok {
			u.CPU, cpu = time.Duration(number(text)), true
		} else if text, ok := readSmall(filepath.Join(dir, "cpu.stat")); ok {
			if usec, v2 := keyed(text)["usage_usec"]; v2 {
				u.CPU, cpu = time.Duration(usec)*time.Microsecond, true
			}
		}
	}
	if memory && cpu {
		return u
	}
	summed := usageOfProcesses(dirs, init)
	if !memory {
		u.Memory = summed.Memory
	}
	if !cpu {
		u.CPU = summed.CPU
	}
	return u
}

// usageOfProcesses adds up what /proc says. What a dead process used is counted by whoever reaped it.
func usageOfProcesses(dirs []string, init initwire.Process) (u agent.Usage) {
	if st, ok := readStat(init.Pid); !ok || st.Start != init.Start {
		return u
	}
	pids, ok := cgroupPids(dirs)
	if !ok {
		pids = append(descendants(init.Pid), init.Pid)
	}
	page := int64(os.Getpagesize())
	for _, pid := range pids {
		st, ok := readStat(pid)
		if !ok {
			continue
		}
		u.CPU += time.Duration(st.Reaped) * clockTick
		if pid != init.Pid { // init's own use is ours, not the command's
			u.CPU += time.Duration(st.Ticks) * clockTick
			u.Memory += muster.Bytes(st.Pages * page)
		}
	}
	return u
}

func readStat(pid int) (initwire.Stat, bool) {
	text, ok := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if !ok {
		return initwire.Stat{}, false
	}
	return initwire.ParseStat(text)
}

// readSmall reads a file of /proc or a cgroup, at most 16 KiB of it.
func readSmall(path string) (string, bool) {
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

// keyed reads lines of "key value".
func keyed(text string) map[string]int64 {
	m := map[string]int64{}
	for raw := range strings.Lines(text) {
		if key, v, ok := strings.Cut(strings.TrimSpace(raw), " "); ok {
			m[key] = number(v)
		}
	}
	return m
}
