package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tokenVariable is a word that all strangers' files, processes and environments hold.
const tokenVariable = "PROBE_TOKEN"

func procAttempts() []attempt {
	return []attempt{
		{"kernel-settings", func() verdict { return writable("/proc/sys") }},
		{"core-pattern", func() verdict {
			// A program named there is started by the kernel, outside.
			return judge(openFor("/proc/sys/kernel/core_pattern", unix.O_WRONLY), unix.ENOENT)
		}},
		{"sysrq", func() verdict { return judge(openFor("/proc/sysrq-trigger", unix.O_WRONLY), unix.ENOENT) }},
		{"proc-others-write", func() verdict {
			for _, top := range []string{"/proc/irq", "/proc/bus", "/proc/fs", "/proc/driver", "/proc/scsi", "/proc/acpi"} {
				if v := writable(top); v.word == "BROKEN" {
					return v
				}
			}
			return each(map[string]func() error{
				"mtrr":    func() error { return openFor("/proc/mtrr", unix.O_WRONLY|unix.O_APPEND) },
				"timers":  func() error { return openFor("/proc/timer_stats", unix.O_WRONLY) },
				"latency": func() error { return empty("/proc/latency_stats") },
			}, unix.ENOENT)
		}},
		{"kernel-memory", func() verdict {
			tries := map[string]func() error{}
			for _, path := range []string{
				"/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/iomem", "/proc/ioports", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug",
				"/proc/modules", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo", "/proc/kpageflags", "/proc/kpagecount", "/proc/config.gz",
				"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg",
			} {
				tries[path] = func() error { return empty(path) }
			}
			return each(tries, unix.ENOENT)
		}},
		{"sys-write", func() verdict { return writable("/sys") }},
		{"sys-hidden", func() verdict {
			tries := map[string]func() error{}
			for _, path := range []string{"/sys/firmware", "/sys/fs/bpf", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing", "/sys/fs/pstore"} {
				tries[path] = func() error {
					list, err := os.ReadDir(path)
					if err == nil && len(list) == 0 {
						return unix.EACCES
					}
					return err
				}
			}
			return each(tries, unix.ENOENT)
		}},
		{"loops-hidden", func() verdict {
			// They tell the node's paths and the ids of all other sandboxes.
			seen, err := filepath.Glob("/sys/block/*/loop/backing_file")
			if err != nil || len(seen) > 0 {
				return broken("%d are seen, as %q: %v", len(seen), seen, err)
			}
			more, err := filepath.Glob("/sys/devices/virtual/block/*")
			if err != nil || len(more) > 0 {
				return broken("%q: %v", more, err)
			}
			return held("none is seen")
		}},
		{"cgroup-escape", func() verdict {
			var tried int
			err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return nil
				}
				if d.IsDir() {
					if err := os.Mkdir(filepath.Join(path, "probe"), 0o755); err == nil {
						_ = os.Remove(filepath.Join(path, "probe"))
						return errors.New("a group could be made in " + path)
					}
					return nil
				}
				tried++
				if openFor(path, unix.O_WRONLY) == nil {
					return errors.New(path + " can be written")
				}
				return nil
			})
			if err != nil {
				return broken("%v", err)
			}
			return held("%d files", tried)
		}},
	}
}

// neighbourAttempts look for others on the node.
func neighbourAttempts() []attempt {
	return []attempt{
		{"neighbours-processes", func() verdict {
			if b, _ := os.ReadFile("/proc/1/comm"); strings.TrimSpace(string(b)) == "systemd" {
				return broken("process 1 is the node's")
			}
			if os.Getenv(tokenVariable) == "" {
				return absent("no token")
			}
			pids, err := filepath.Glob("/proc/[0-9]*")
			if err != nil || len(pids) == 0 {
				return broken("/proc shows nothing: %v", err)
			}
			for _, p := range pids {
				line, _ := os.ReadFile(p + "/cmdline")
				if bytes.Contains(line, []byte(os.Getenv(tokenVariable))) {
					return broken("%s is a stranger: %q", p, line)
				}
			}
			if len(pids) > 20 {
				return broken("%d processes are seen", len(pids))
			}
			return held("%d processes are seen", len(pids))
		}},
		{"neighbours-signals", func() verdict {
			// Pids of the node, guessed: the one that the test says, which lives.
			var pid int
			if _, err := fmt.Sscan(os.Getenv("PROBE_PID"), &pid); err != nil {
				return absent("no pid")
			}
			return judge(unix.Kill(pid, 0), unix.ESRCH)
		}},
		{"neighbours-memory", func() verdict {
			// System V memory, message queues: as many as others have made, here none.
			for _, name := range []string{"shm", "msg", "sem"} {
				b, err := os.ReadFile("/proc/sysvipc/" + name)
				if err == nil && strings.Count(string(b), "\n") > 1 {
					return broken("%s: %q", name, b)
				}
			}
			for _, dir := range []string{"/dev/shm", "/dev/mqueue"} {
				if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
					return broken("%s holds %s", dir, list[0].Name())
				}
			}
			return held("nothing is seen")
		}},
		{"inherited-descriptors", func() verdict {
			list, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return broken("%v", err)
			}
			for _, e := range list {
				target, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err != nil {
					continue // the one that listed
				}
				switch {
				case strings.HasPrefix(target, "pipe:"), strings.HasPrefix(target, "anon_inode:"), target == "/dev/null":
				case strings.HasPrefix(target, "/proc/"):
				case strings.HasPrefix(target, "/sys/fs/cgroup/"): // the Go runtime's own look at its limits
				default:
					return broken("%s is %s", e.Name(), target)
				}
			}
			return held("%d, none from outside", len(list))
		}},
	}
}

// writable tries to open every file below a place for writing.
func writable(top string) verdict {
	tried := 0
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !d.Type().IsRegular() {
			return nil
		}
		if tried++; tried > 100_000 {
			return filepath.SkipAll
		}
		if err := openFor(path, unix.O_WRONLY); err == nil {
			return errors.New(path + " can be written")
		}
		return nil
	})
	if err != nil {
		return broken("%v", err)
	}
	return held("%d files", tried)
}

// empty: a file that tells nothing is as good as one that cannot be opened.
func empty(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	b := make([]byte, 4096)
	n, err := f.Read(b)
	if n == 0 && (err == nil || err == io.EOF) {
		return unix.EACCES
	}
	if err != nil {
		return err
	}
	if strings.Trim(string(b[:n]), "0 \t\n\x00") == "" {
		return unix.EACCES
	}
	return nil
}

// startInitProgram starts init's program once more, as ours.
func startInitProgram() (*exec.Cmd, error) {
	cmd := exec.Command(initProgram, "probe")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	_ = in
	// Its control is a pipe that says nothing: it waits for its start.
	r, _, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{r, r, r, r}
	return cmd, cmd.Start()
}
