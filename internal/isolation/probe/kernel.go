package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// namespaces by name.
var namespaces = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET,
	"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
}

func kernelAttempts() []attempt {
	return []attempt{
		{"namespace-unshare", func() verdict {
			tries := map[string]func() error{}
			for name, flag := range namespaces {
				tries[name] = func() error { return call(unix.SYS_UNSHARE, flag) }
			}
			return each(tries)
		}},
		{"namespace-clone", func() verdict {
			tries := map[string]func() error{}
			for name, flag := range namespaces {
				if name == "time" {
					continue // not by clone
				}
				tries[name] = func() error {
					cmd := exec.Command(os.Args[0], "euid")
					cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag}
					return cmd.Run()
				}
			}
			return each(tries)
		}},
		{"namespace-clone3", func() verdict {
			// Arguments of no size: a kernel that is reached finds them invalid.
			return judge(call(unix.SYS_CLONE3, 0, 0))
		}},
		{"namespace-join", func() verdict {
			tries := map[string]func() error{}
			for name, flag := range namespaces {
				for _, whose := range []string{"self", "1"} {
					tries[name+" of "+whose] = func() error {
						fd, err := unix.Open("/proc/"+whose+"/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
						if err != nil {
							return err
						}
						defer func() { _ = unix.Close(fd) }()
						return call(unix.SYS_SETNS, uintptr(fd), flag)
					}
				}
			}
			return each(tries, unix.ENOENT)
		}},
	}
}

// doorAttempts are on rarely used doors of the kernel.
func doorAttempts() []attempt {
	return []attempt{
		{"keys", func() verdict {
			kind, name := []byte("user\x00"), []byte("probe\x00")
			return each(map[string]func() error{
				"keyctl": func() error { return call(unix.SYS_KEYCTL, 0, ^uintptr(2), 0) },
				"add_key": func() error {
					return call(unix.SYS_ADD_KEY, uintptr(unsafe.Pointer(&kind[0])), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&name[0])), 5, ^uintptr(2))
				},
				"request_key": func() error {
					return call(unix.SYS_REQUEST_KEY, uintptr(unsafe.Pointer(&kind[0])), uintptr(unsafe.Pointer(&name[0])), 0, 0)
				},
			})
		}},
		{"bpf", func() verdict {
			// An array of one element.
			attr := [32]uint32{2, 4, 4, 1}
			return judge(call(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr[0])), unsafe.Sizeof(attr)))
		}},
		{"perf-events", func() verdict {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: unix.PERF_COUNT_SW_CPU_CLOCK, Bits: unix.PerfBitExcludeKernel}
			_, err := unix.PerfEventOpen(&attr, 0, -1, -1, 0)
			return judge(err)
		}},
		{"userfaultfd", func() verdict { return judge(call(unix.SYS_USERFAULTFD, 1)) }},
		{"io-uring", func() verdict {
			var params [120]byte
			return judge(call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params))))
		}},
		{"aio", func() verdict {
			var context uintptr
			return judge(call(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&context))))
		}},
		{"modules", func() verdict {
			name := []byte("no_such_module_of_probe\x00")
			return each(map[string]func() error{
				"init_module":   func() error { return call(unix.SYS_INIT_MODULE, 0, 0, 0) },
				"finit_module":  func() error { return call(unix.SYS_FINIT_MODULE, ^uintptr(0), 0, 0) },
				"delete_module": func() error { return call(unix.SYS_DELETE_MODULE, uintptr(unsafe.Pointer(&name[0])), 0) },
				"kexec_load":    func() error { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) },
			})
		}},
		{"machine-control", func() verdict {
			nothing := []byte("/no/such/file/of/probe\x00")
			path := uintptr(unsafe.Pointer(&nothing[0]))
			return each(map[string]func() error{
				"reboot":  func() error { return call(unix.SYS_REBOOT, 1, 2, 3, 0) }, // wrong magic numbers: never done
				"clock":   func() error { return call(unix.SYS_SETTIMEOFDAY, 0, 0) }, // sets nothing
				"swapon":  func() error { return call(unix.SYS_SWAPON, path, 0) },
				"swapoff": func() error { return call(unix.SYS_SWAPOFF, path) },
				"acct":    func() error { return call(unix.SYS_ACCT, path) },
				"quota":   func() error { return call(unix.SYS_QUOTACTL, 0x800002<<8, path, 0, 0) },
				"log":     func() error { return call(unix.SYS_SYSLOG, 10, 0, 0) },
			})
		}},
		{"host-name", func() verdict {
			name := []byte("probe")
			return each(map[string]func() error{
				"sethostname":   func() error { return call(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(&name[0])), 5) },
				"setdomainname": func() error { return call(unix.SYS_SETDOMAINNAME, uintptr(unsafe.Pointer(&name[0])), 5) },
			})
		}},
		{"fanotify", func() verdict { return judge(call(unix.SYS_FANOTIFY_INIT, 0, 0)) }},
		{"pages-of-others", func() verdict {
			return judge(call(unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0))
		}},
		{"hardware-ports", func() verdict { return hardwarePorts() }},
	}
}

// ruleAttempts are on what rules a process.
func ruleAttempts() []attempt {
	return []attempt{
		{"other-calling-conventions", func() verdict {
			// The same kernel, by numbers that a filter for the usual ones might not know. A filter may end
			// the process for it, or just the thread.
			const x32 = 0x40000000
			answer := make(chan verdict)
			go func() {
				runtime.LockOSThread()
				pid, _, errno := syscall.RawSyscall(unix.SYS_GETPID+x32, 0, 0, 0)
				if errno == 0 {
					answer <- broken("getpid says %d", pid)
				}
				answer <- held("%v", errno)
			}()
			select {
			case v := <-answer:
				return v
			case <-time.After(10 * time.Second):
				return held("its thread was ended by the filter")
			}
		}},
		{"personality", func() verdict {
			const readImpliesExec = 0x0400000
			return judge(call(unix.SYS_PERSONALITY, readImpliesExec))
		}},
		{"resources-reserved", func() verdict {
			// Above what the hard limit says, and more priority than others.
			var limit unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				return broken("getrlimit: %v", err)
			}
			limit.Max++
			return each(map[string]func() error{
				"rlimit": func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) },
				"nice":   func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -10) },
				"realtime": func() error {
					p := int32(10)
					return call(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&p)))
				},
				"io": func() error { return call(unix.SYS_IOPRIO_SET, 1, 0, 1<<13) },
				"oom": func() error {
					b, err := os.ReadFile("/proc/self/oom_score_adj")
					if err != nil {
						return err
					}
					var now int
					if _, err := fmt.Sscan(string(b), &now); err != nil {
						return err
					}
					return os.WriteFile("/proc/self/oom_score_adj", fmt.Append(nil, max(now-100, -1000)), 0)
				},
			})
		}},
	}
}
