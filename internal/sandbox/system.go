package sandbox

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// record appends a line to the record. There is nobody to tell if that fails: the agent sees a
// sandbox without a result.
func record(line string) {
	_, _ = system.FD(initwire.FDRecord).Write([]byte(line))
}

// say is for last words.
func say(text string) { _, _ = system.FD(2).Write([]byte(text)) }

func setCloseOnExec(fd int) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, syscall.FD_CLOEXEC)
	if errno != 0 {
		return errno
	}
	return nil
}

// closeFrom closes what the agent had open without close-on-exec, mostly by inheritance itself:
// this process lives longer and would hold it open, and the command would get it. Called before
// anything of ours opens a descriptor.
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

// ignoreSignals makes this process deaf to requests to end. Not by os/signal: an ignored signal
// would stay ignored in the command, and Notify costs a thread. Behind the back of the Go runtime,
// it still believes in its own handlers, and so resets them to the default in every child between
// fork and exec.
//
// What whoever started us ignored is set to the default first: the runtime leaves real-time signals
// as they are, and the command would inherit that. Of HUP and INT it does not even believe that
// they are its own if they were ignored when it began (nohup does that), and so resets them in no
// child: those get a handler that does nothing, which ends with the exec.
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

// quietly is a handler that does nothing, as the runtime's own: on the stack for signals, since a
// goroutine's has no room, and with calls begun again.
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
	// Set in any case: the agent gave us next to none, and otherwise the command gets what the Go
	// runtime thinks was there before it raised it.
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have)
}

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
