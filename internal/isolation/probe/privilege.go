package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostCapabilities is what a command may have: as many bits as docs/isolation.md names.
const mostCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_KILL |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETFCAP

func privilegeAttempts() []attempt {
	return []attempt{
		{"capabilities", func() verdict {
			status, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return broken("%v", err)
			}
			for line := range strings.Lines(string(status)) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
				if !strings.HasPrefix(name, "Cap") {
					continue
				}
				bits, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
				if err != nil {
					return broken("%s: %v", name, err)
				}
				if more := bits &^ mostCapabilities; more != 0 {
					return broken("%s has %#x too much", name, more)
				}
			}
			return held("none too much")
		}},
		{"capabilities-raise", func() verdict {
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&head, &data[0]); err != nil {
				return broken("%v", err)
			}
			tries := map[string]func() error{}
			for c := range 41 {
				if mostCapabilities>>c&1 != 0 {
					continue
				}
				tries[strconv.Itoa(c)] = func() error {
					more := data
					more[c/32].Effective |= 1 << (c % 32)
					more[c/32].Permitted |= 1 << (c % 32)
					return unix.Capset(&head, &more[0])
				}
			}
			return each(tries)
		}},
		{"no-new-privileges", func() verdict {
			n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			if err != nil || n != 1 {
				return broken("%d, %v", n, err)
			}
			return held("set")
		}},
		{"system-call-filter", func() verdict {
			status, err := os.ReadFile("/proc/self/status")
			if err != nil {
				return broken("%v", err)
			}
			if !strings.Contains(string(status), "\nSeccomp:\t2\n") {
				return broken("there is none")
			}
			return held("there is one")
		}},
		{"setuid-program", func() verdict {
			const program = "/evil/setuid"
			if _, err := os.Stat(program); err != nil {
				return absent("%v", err)
			}
			cmd := exec.Command(program, "euid")
			if os.Geteuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			}
			out, err := cmd.Output()
			if err != nil {
				return held("%v", err)
			}
			if strings.TrimSpace(string(out)) == "0" {
				return broken("it runs as root")
			}
			return held("it runs as %s", strings.TrimSpace(string(out)))
		}},
		{"terminal-injection", func() verdict {
			b := byte('x')
			err := call(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b)))
			return judge(err, unix.ENOTTY, unix.EIO)
		}},
		{"who-is-root", func() verdict {
			// Told for the record: whether root inside is root of the node.
			b, err := os.ReadFile("/proc/self/uid_map")
			if err != nil {
				return broken("%v", err)
			}
			var inside, outside, count int
			if _, err := fmt.Sscan(string(b), &inside, &outside, &count); err != nil {
				return broken("%q: %v", b, err)
			}
			// Ranges of sandboxes' own follow the one that starts at the base, or are that one.
			if text := os.Getenv("PROBE_BASE"); text != "" && !rangeFrom(text, outside, count) {
				return broken("root inside is %d outside, and not at a range from %s on", outside, text)
			}
			return held("%d from %d on", count, outside)
		}},
	}
}

// rangeFrom reports whether ids begin at a base, or at one of the ranges of that size that follow it; 0 is the node's own ids.
func rangeFrom(text string, outside, count int) bool {
	base, err := strconv.Atoi(text)
	if err != nil || base == 0 {
		return err == nil && outside == 0
	}
	return outside >= base && (outside-base)%count == 0
}
