package system

import (
	"strconv"
	"syscall"
	"unsafe"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// SetOOMScore sets how readily the out-of-memory killer chooses a process: a pid, or "self". Errors
// are ignored: a lower score needs a capability, and without it the killer chooses by size.
func SetOOMScore(pid, score string) {
	fd, err := syscall.Open("/proc/"+pid+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		_, _ = FD(fd).Write([]byte(score))
		_ = syscall.Close(fd)
	}
}

// ReadStat reads /proc/PID/stat by the caller's buffer. A buffer on the stack would make the stack
// grow, which costs as much as all of this.
func ReadStat(pid int, buf []byte) (initwire.Stat, bool) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return initwire.Stat{}, false
	}
	n, err := FD(fd).Read(buf)
	_ = syscall.Close(fd)
	if err != nil {
		return initwire.Stat{}, false
	}
	return initwire.ParseStat(string(buf[:n]))
}

// DeadChild is the pid of a child that has died and is not reaped yet, or 0 if there is none.
// ECHILD: this process has no children at all.
func DeadChild() (pid int, err error) {
	const (
		pAll    = 0
		wNoWait = 0x01000000
	)
	// siginfo of a SIGCHLD on 64-bit machines; 128 bytes in all.
	var info struct {
		signo, errno, code, _ int32
		pid                   int32
		_                     [108]byte
	}
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info)), syscall.WEXITED|syscall.WNOHANG|wNoWait, 0, 0)
		switch errno {
		case 0:
			return int(info.pid), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// Kinds of numbers for HasChild.
const (
	ByPid   = 1
	ByGroup = 2
)

// HasChild reports whether a child of this process, dead or not, has this pid or is in this process
// group. Until the child is reaped, nobody else can have that number.
func HasChild(kind uintptr, number int) bool {
	const wNoWait = 0x01000000
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_WAITID, kind, uintptr(number), 0, syscall.WEXITED|syscall.WNOHANG|wNoWait, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0
		}
	}
}
