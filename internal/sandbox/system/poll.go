package system

import (
	"syscall"
	"time"
	"unsafe"
)

// PollFD is the kernel's struct: a descriptor, the events to wait for, and those that came.
type PollFD struct {
	FD              int32
	Events, Revents int16
}

// PollIn is the event that there is something to read.
const PollIn = 1

// Poll waits until one of fds is ready; a descriptor below 0 never is. A negative wait has no end.
// Poll reports whether anything came, a signal included: SIGCHLD announces dead orphans.
func Poll(fds []PollFD, wait time.Duration) (some bool, err error) {
	var limit *syscall.Timespec
	if wait >= 0 {
		ts := syscall.NsecToTimespec(int64(wait))
		limit = &ts
	}
	call := syscall.Syscall6
	if wait == 0 {
		call = syscall.RawSyscall6 // it does not block
	}
	n, _, errno := call(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	switch errno {
	case 0:
		return n > 0, nil
	case syscall.EINTR:
		for i := range fds {
			fds[i].Revents = 0
		}
		return true, nil
	}
	return false, errno
}
