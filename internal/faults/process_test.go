package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// proc is a process that was found.
type proc struct {
	pid   int
	start string // in clock ticks since boot: with the pid it names a process for ever
}

// touching are the processes that have to do with a directory: by their command
// line, environment, work directory, program or open files. Not this one.
func touching(dir string) []proc {
	entries, _ := os.ReadDir("/proc")
	var all []proc
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || !touches(pid, dir) {
			continue
		}
		if p, ok := look(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

func touches(pid int, dir string) bool {
	base := "/proc/" + strconv.Itoa(pid)
	inside := func(text string) bool {
		return strings.Contains(text, dir+"/") || strings.HasSuffix(text, dir)
	}
	for _, name := range []string{"cmdline", "environ"} {
		b, _ := os.ReadFile(base + "/" + name)
		for word := range bytes.SplitSeq(b, []byte{0}) {
			if inside(string(word)) {
				return true
			}
		}
	}
	links, _ := filepath.Glob(base + "/fd/*")
	for _, l := range append(links, base+"/cwd", base+"/exe") {
		if to, err := os.Readlink(l); err == nil && inside(to) {
			return true
		}
	}
	return false
}

// stat are the fields of /proc/pid/stat behind the name: state first.
func stat(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// process names a process that lives.
func look(pid int) (proc, bool) {
	f := stat(pid)
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return proc{}, false
	}
	return proc{pid, f[19]}, true
}

func (p proc) alive() bool {
	now, ok := look(p.pid)
	return ok && now == p
}

func (p proc) kill() {
	if p.alive() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

// killAtOnce kills processes as the end of a machine does: none of them sees another one end. All are
// stopped first, since an init that outlives its command for a moment records how that ended.
func killAtOnce(all []proc) {
	for _, p := range all {
		if p.alive() {
			_ = syscall.Kill(p.pid, syscall.SIGSTOP)
		}
	}
	for _, p := range all {
		p.kill()
	}
}

func (p proc) command() string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/cmdline")
	return strings.TrimSpace(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
}

// cpu is the processor time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	f := stat(pid)
	if len(f) < 13 {
		t.Fatalf("process %d is gone", pid)
	}
	ticks := 0
	for _, s := range f[11:13] {
		n, _ := strconv.Atoi(s)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// memory is what a process has in memory now, and had at most; 0 if it is gone.
func memory(pid int) (now, most int64) {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = n << 10
		case "VmHWM:":
			most = n << 10
		}
	}
	return now, most
}
