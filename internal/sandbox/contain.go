package sandbox

import "syscall"

// What init does about itself as process 1 of a container. It has more capabilities than anything
// else inside, so that nothing else can trace it or look into it. It keeps them from its children
// in three ways: package program cuts the set that an exec can give at most (bounding) on the
// thread that forks, nothing is inheritable, and init is not dumpable.

// hide keeps every process without more capabilities from tracing this one, and from reading its
// environment, memory and descriptors.
func hide() error {
	const prSetDumpable = 4
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetDumpable, 0, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// deafen makes this process, as process 1, one that no signal from inside ends. The kernel drops
// those for which it has no handler, and with the Go runtime's a kill -SEGV would be a crash: they
// are given up. A true fault still ends us; without last words, but nobody inside can cause those.
//
// That is not enough for signals whose default is to end without a core: while another one's
// handler blocks such a one on the first thread, the kernel (seen on Linux 6.1) keeps it, and ends
// all for it when another thread takes it. They are the ones that the runtime leaves alone, which
// the loop finds, and STKFLT. They get a handler that does nothing; ignored they would stay so in
// the command, but a handler ends with the exec.
func deafen() error {
	var usual sigaction
	for _, sig := range []syscall.Signal{
		syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS,
	} {
		if err := setAction(sig, &usual); err != nil {
			return err
		}
	}
	quiet, err := quietly()
	if err != nil {
		return err
	}
	if err := setAction(syscall.SIGSTKFLT, &quiet); err != nil {
		return err
	}
	for sig := syscall.Signal(32); sig <= highestSignal; sig++ {
		was, err := action(sig)
		if err == nil && was.handler == 0 {
			err = setAction(sig, &quiet)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nothingAt is the address of the handler in nothing.s. Not a Go function: that would want a
// goroutine.
var nothingAt uintptr
