package sandbox

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// fdStream reads and writes a blocking descriptor without the poller, whose set-up costs more than these few calls.
type fdStream int

func (f fdStream) Read(p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(f), p)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (f fdStream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := syscall.Write(int(f), p[done:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// record appends a line to the record. There is nobody to tell if that fails: the agent sees a sandbox without a result.
func record(line string) {
	_, _ = fdStream(initwire.FDRecord).Write([]byte(line))
}

// say is for last words.
func say(text string) { _, _ = fdStream(2).Write([]byte(text)) }

func setCloseOnExec(fd int) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, syscall.FD_CLOEXEC)
	if errno != 0 {
		return errno
	}
	return nil
}

// closeFrom closes what the agent had open without close-on-exec, mostly by
// inheritance itself: this process lives longer and would hold it open, and the command would get it. Called
// before anything of ours opens a descriptor.
func closeFrom(fd int) {
	const sysCloseRange = 436 // the same number on every architecture
	_, _, _ = syscall.RawSyscall(sysCloseRange, uintptr(fd), uintptr(^uint32(0)), 0)
}

func becomeSubreaper() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// sigaction is the kernel's struct on 64-bit machines.
type sigaction struct{ handler, flags, restorer, mask uint64 }

const highestSignal syscall.Signal = 64

// action is what this process does on a signal.
func action(sig syscall.Signal) (is sigaction, err error) {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&is)), 8, 0, 0); errno != 0 {
		return is, errno
	}
	return is, nil
}

// setAction sets it behind the back of the Go runtime.
func setAction(sig syscall.Signal, to *sigaction) error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(to)), 0, 8, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// ignoreSignals makes this process deaf to requests to end. Not by os/signal: an
// ignored signal would stay ignored in the command, and Notify costs a thread.
// Behind the back of the Go runtime, it still believes in its own handlers, and
// so resets them to the default in every child between fork and exec.
//
// What whoever started us ignored is set to the default first: the runtime leaves
// real-time signals as they are, and the command would inherit that. Of HUP and INT it does not even
// believe that they are its own if they were ignored when it began (nohup does that), and so resets them in no child: those get a
// handler that does nothing, which ends with the exec.
func ignoreSignals() error {
	const sigIgn = 1
	var usual sigaction
	ignored := map[syscall.Signal]bool{}
	for sig := syscall.Signal(1); sig <= highestSignal; sig++ {
		if was, err := action(sig); err == nil && was.handler == sigIgn {
			ignored[sig] = setAction(sig, &usual) == nil
		}
	}
	quiet, err := quietly()
	if err != nil {
		return err
	}
	for _, sig := range []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		deaf := &sigaction{handler: sigIgn}
		if ignored[sig] {
			deaf = &quiet
		}
		if err := setAction(sig, deaf); err != nil {
			return err
		}
	}
	return nil
}

// quietly is a handler that does nothing, as the runtime's own: on the stack for signals, since a goroutine's has no
// room, and with calls begun again.
func quietly() (sigaction, error) {
	quiet, err := action(syscall.SIGURG)
	quiet.handler = uint64(nothingAt)
	return quiet, err
}

// limit sets what the command inherits: no core files, and a sane number of open ones.
func limit(openFiles int64) error {
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		return err
	}
	have.Cur = have.Max
	if openFiles > 0 {
		have.Cur = min(have.Max, uint64(openFiles))
	}
	// Set in any case: the agent gave us next to none, and otherwise the command
	// gets what the Go runtime thinks was there before it raised it.
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have)
}

// usualTimerSlack gives this thread, and so the command, the kernel's own: the agent starts us with more.
func usualTimerSlack() {
	const (
		prSetTimerSlack = 29
		usual           = 50_000 // nanoseconds
	)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prSetTimerSlack, usual, 0, 0, 0, 0)
}

// setOOMScore is best effort: shielding needs a capability, and without it the out-of-memory killer chooses by size.
func setOOMScore(pid, score string) {
	fd, err := syscall.Open("/proc/"+pid+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		_, _ = fdStream(fd).Write([]byte(score))
		_ = syscall.Close(fd)
	}
}

// stat reads /proc/PID/stat, by a buffer that is not on the stack: growing that once more costs
// as much as all of this.
func stat(pid int, buf []byte) (initwire.Stat, bool) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return initwire.Stat{}, false
	}
	n, err := fdStream(fd).Read(buf)
	_ = syscall.Close(fd)
	if err != nil {
		return initwire.Stat{}, false
	}
	return initwire.ParseStat(string(buf[:n]))
}

// pipe makes a pipe whose reading end does not block and whose writing end does, as programs expect.
func pipe() (r, w int, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	if err := syscall.SetNonblock(p[0], true); err != nil {
		return 0, 0, err
	}
	return p[0], p[1], nil
}

// deadChild is a child that has died and is not reaped yet; 0 if there is none. ECHILD: there are no children at all.
func deadChild() (pid int, err error) {
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

// Kinds of hasChild.
const (
	pPid  = 1
	pPgid = 2
)

// hasChild reports whether a child of ours, dead or not, has this pid, or is in this process group. As long as
// it is not reaped, that number is its own.
func hasChild(kind uintptr, number int) bool {
	const wNoWait = 0x01000000
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_WAITID, kind, uintptr(number), 0, syscall.WEXITED|syscall.WNOHANG|wNoWait, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0
		}
	}
}

// openAt opens a file in a directory; O_CLOEXEC always.
func openAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, 0o600)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

func removeAt(dir int, name string) { _ = syscall.Unlinkat(dir, name) }

var errNoChildren = errors.New("the kernel does not list children")

// children are the direct children of a process, by any of its threads.
func children(pid string) ([]int, error) {
	tasks, err := os.ReadDir("/proc/" + pid + "/task")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/" + pid + "/task/" + task.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, gone := os.Stat("/proc/" + pid + "/task/" + task.Name()); gone == nil {
				return nil, errNoChildren
			}
			continue
		}
		n := 0
		for _, c := range b {
			if c >= '0' && c <= '9' {
				n = n*10 + int(c-'0')
			} else if n > 0 {
				all = append(all, n)
				n = 0
			}
		}
	}
	return all, nil
}
