package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// initProgram is where a sandbox finds its init.
const initProgram = "/dev/.muster/init"

// initAttempts are on process 1: who has it has the descriptors that lead to the node.
func initAttempts() []attempt {
	return []attempt{
		{"init-look", func() verdict {
			tries := map[string]func() error{}
			for _, name := range []string{"mem", "environ", "maps", "smaps", "auxv", "pagemap", "io", "syscall", "stack", "personality", "exe"} {
				tries[name] = func() error { return readSome("/proc/1/" + name) }
			}
			for _, name := range []string{"map_files", "root", "cwd"} {
				tries[name] = func() error { _, err := os.ReadDir("/proc/1/" + name + "/"); return err }
			}
			// The numbers of its descriptors are no secret; what they are is, and what can be had through them.
			for fd := range 32 {
				path := fmt.Sprint("/proc/1/fd/", fd)
				tries[path] = func() error { return openFor(path, unix.O_RDONLY) }
				tries["path of "+path] = func() error { return openFor(path, unix.O_PATH) }
				tries["below "+path] = func() error { return openFor(path+"/..", unix.O_RDONLY) }
				tries["link "+path] = func() error { _, err := os.Readlink(path); return err }
			}
			return each(tries, unix.ENOENT)
		}},
		{"init-change", func() verdict {
			tries := map[string]func() error{}
			// What a root inside may write without any look into the process is: only what decides about its own life counts.
			for _, name := range []string{"mem", "setgroups", "uid_map", "gid_map", "projid_map", "timerslack_ns", "attr/current", "comm"} {
				tries[name] = func() error {
					f, err := os.OpenFile("/proc/1/"+name, os.O_WRONLY, 0)
					if err != nil {
						return err
					}
					defer func() { _ = f.Close() }()
					_, err = f.Write([]byte("0"))
					return err
				}
			}
			return each(tries, unix.ENOENT, unix.EINVAL)
		}},
		{"init-trace", func() verdict {
			var local [8]byte
			vec := unix.Iovec{Base: &local[0], Len: 8}
			remote := [2]uintptr{0x400000, 8}
			return each(map[string]func() error{
				// Not to attach: where that works, it stops process 1.
				"seize": func() error { return unix.PtraceSeize(1) },
				"readv": func() error {
					return call(unix.SYS_PROCESS_VM_READV, 1, uintptr(unsafe.Pointer(&vec)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
				},
				"writev": func() error {
					return call(unix.SYS_PROCESS_VM_WRITEV, 1, uintptr(unsafe.Pointer(&vec)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
				},
				"madvise": func() error {
					fd, err := unix.PidfdOpen(1, 0)
					if err != nil {
						return err
					}
					defer func() { _ = unix.Close(fd) }()
					return call(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&remote)), 1, unix.MADV_PAGEOUT, 0)
				},
				"kcmp": func() error { return call(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 0, 0) },
			})
		}},
		{"init-descriptors", func() verdict {
			fd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return judge(err)
			}
			tries := map[string]func() error{}
			for n := range 10 {
				tries[fmt.Sprint(n)] = func() error { return call(unix.SYS_PIDFD_GETFD, uintptr(fd), uintptr(n), 0) }
			}
			return each(tries)
		}},
	}
}

// harmAttempts would harm process 1, or its program.
func harmAttempts() []attempt {
	return []attempt{
		{"init-limits", func() verdict {
			// A limit of processor time or memory for init would be the end of the sandbox, and look like a fault of the node.
			tries := map[string]func() error{}
			for name, which := range map[string]int{"core": unix.RLIMIT_CORE, "stack": unix.RLIMIT_STACK} {
				tries[name] = func() error {
					var now unix.Rlimit
					if err := unix.Prlimit(1, which, nil, &now); err != nil {
						return err
					}
					return unix.Prlimit(1, which, &now, nil)
				}
			}
			return each(tries)
		}},
		{"init-replace", func() verdict {
			return each(map[string]func() error{
				"write":    func() error { return openFor(initProgram, unix.O_WRONLY) },
				"truncate": func() error { return unix.Truncate(initProgram, 0) },
				"unlink":   func() error { return unix.Unlink(initProgram) },
				"rename":   func() error { return unix.Rename("/tmp", initProgram) },
				"chmod":    func() error { return unix.Chmod(initProgram, 0o777) },
				"chown":    func() error { return unix.Chown(initProgram, 0, 0) },
				"times":    func() error { return unix.Utimes(initProgram, []unix.Timeval{{}, {}}) },
				"xattr":    func() error { return unix.Setxattr(initProgram, "user.probe", []byte("x"), 0) },
				"link":     func() error { return unix.Link(initProgram, "/tmp/probe-init") },
			}, unix.EBUSY, unix.EXDEV, unix.ENOTDIR, unix.ETXTBSY, unix.EOPNOTSUPP)
		}},
		{"init-replace-by-exe", func() verdict {
			tries := map[string]func() error{
				"of init": func() error { return openFor("/proc/1/exe", unix.O_RDWR) },
			}
			// A process of init's program that we may look into: its exe is the file, past all names.
			child, err := startInitProgram()
			if err != nil {
				tries["of a copy"] = func() error { return err }
			} else {
				defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
				exe := fmt.Sprintf("/proc/%d/exe", child.Process.Pid)
				tries["of a copy"] = func() error { return openFor(exe, unix.O_RDWR) }
				tries["of a copy, past the path"] = func() error {
					fd, err := unix.Open(exe, unix.O_PATH|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer func() { _ = unix.Close(fd) }()
					return openFor(fmt.Sprint("/proc/self/fd/", fd), unix.O_WRONLY|unix.O_TRUNC)
				}
			}
			return each(tries, unix.ETXTBSY)
		}},
	}
}

// reachAttempts try to be heard by process 1.
func reachAttempts() []attempt {
	return []attempt{
		{"init-signals", func() verdict {
			// Who is harmed by them is seen outside: whoever reads this line was not. One that is handled comes all the
			// while: its handler blocks the others on one thread, and some kernels (seen on 6.1, not on 6.18) then let another
			// thread of process 1 die of a signal that has no handler.
			enough := make(chan struct{})
			go func() {
				for {
					select {
					case <-enough:
						return
					default:
						_ = unix.Kill(1, unix.SIGWINCH)
					}
				}
			}()
			for s := 1; s <= 64; s++ {
				times := 200
				if s == 16 || s >= 32 && s <= 34 { // those that the Go runtime has no handler for
					times = 20_000
				}
				for range times {
					_ = unix.Kill(1, syscall.Signal(s))
				}
				_ = call(unix.SYS_TGKILL, 1, 1, uintptr(s))
			}
			close(enough)
			for i := range 100 {
				b, err := os.ReadFile("/proc/1/stat")
				if err != nil {
					return broken("process 1 is gone: %v", err)
				}
				_, state, _ := strings.Cut(string(b), ") ")
				if i > 50 && state != "" && (state[0] == 'T' || state[0] == 'Z') {
					return broken("process 1 is in state %c", state[0])
				}
			}
			return held("64 signals sent, it goes on")
		}},
		{"init-socket", func() verdict {
			// Its socket has a name in a directory that nobody here sees; an abstract one would be seen.
			b, err := os.ReadFile("/proc/net/unix")
			if err != nil {
				return judge(err, unix.ENOENT)
			}
			var named []string
			for line := range strings.Lines(string(b)) {
				if f := strings.Fields(line); len(f) > 7 && strings.Contains(f[7], "init.sock") {
					named = append(named, f[7])
				}
			}
			for _, path := range named {
				fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return broken("socket: %v", err)
				}
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
				_ = unix.Close(fd)
				if err == nil {
					return broken("connected to %s", path)
				}
			}
			return held("%d names seen, none reached", len(named))
		}},
	}
}

// readSome reads a few bytes of a file of process 1; one that is readable but says nothing counts as refused.
func readSome(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	n, err := f.Read(make([]byte, 16))
	if n > 0 {
		return nil
	}
	if err == nil || errors.Is(err, syscall.EIO) || err.Error() == "EOF" {
		return syscall.EACCES
	}
	return err
}

func openFor(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd)
		// Covered by the device that swallows everything, as what must not be seen is. But not if that is what was asked for.
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) && strings.HasPrefix(path, "/proc/") {
			return unix.EACCES
		}
		return err
	}
	return &os.PathError{Op: "open", Path: filepath.Base(path), Err: err}
}
