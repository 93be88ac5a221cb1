package sandbox

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// What init does about itself as process 1 of a container. It has more
// capabilities than anything else inside, so that nothing else can trace it or look into it, and
// keeps them from its children in three ways: the set that an exec can give at most
// (bounding) is cut on the thread that forks, nothing is inheritable, and init is not dumpable.

const (
	prSetDumpable    = 4
	prCapBSetDrop    = 24
	prCapAmbient     = 47
	prCapAmbientNone = 4
	capabilityV3     = 0x20080522
	highestCap       = 63
)

// hide makes this process one that nobody without more capabilities can trace, or
// read the environment, memory or descriptors of.
func hide() error {
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetDumpable, 0, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// deafen makes this process, as process 1, one that no signal from inside ends. The kernel drops
// those for which it has no handler, and with the Go runtime's a kill -SEGV would be a crash: they are given up. A true
// fault still ends us; without last words, but nobody inside can cause those.
//
// That is not enough for signals whose default is to end without a core: while another one's handler blocks
// such a one on the first thread, the kernel (seen on Linux 6.1) keeps it, and ends all for it when another thread takes it. They
// are the ones that the runtime leaves alone, which the loop finds, and STKFLT. They get a handler that does nothing;
// ignored they would stay so in the command, but a handler ends with the exec.
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

// nothingAt is the address of the handler in nothing.s. Not a Go function: that would want a goroutine.
var nothingAt uintptr

// cut leaves this thread's children at most the capabilities of mask. It keeps
// those of the thread itself. To be called locked to the thread; for good.
func cut(mask uint64) error {
	for c := uintptr(0); c <= highestCap; c++ {
		if mask>>c&1 != 0 {
			continue
		}
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prCapBSetDrop, c, 0, 0, 0, 0)
		if errno == syscall.EINVAL {
			break // this kernel knows no more
		}
		if errno != 0 {
			return errno
		}
	}
	// Fails only on kernels without an ambient set.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, prCapAmbientNone, 0, 0, 0, 0)
	head := struct {
		version uint32
		pid     int32
	}{version: capabilityV3}
	var sets [2]struct{ effective, permitted, inheritable uint32 }
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets)), 0); errno != 0 {
		return errno
	}
	if sets[0].inheritable|sets[1].inheritable == 0 {
		return nil
	}
	sets[0].inheritable, sets[1].inheritable = 0, 0
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets)), 0); errno != 0 {
		return errno
	}
	return nil
}

// makeWork makes a work directory that the image does not have, as images expect it, with all that
// is missing above it. Every step is from a descriptor of the one before.
func makeWork(work string, id *identity) *initwire.Failed {
	var st syscall.Stat_t
	if err := system.StatInside(work, &st); err != syscall.ENOENT {
		return nil // it is there, or checkWork says what is wrong with it
	}
	made := ""
	for part := range strings.SplitSeq(work, "/") {
		if part == "" {
			continue
		}
		made += "/" + part
		if err := system.StatInside(made, &st); err != syscall.ENOENT {
			continue
		}
		if err := makeInside(made, id); err != nil {
			return initwire.UserFault(initwire.ReasonNoWorkdir, "work directory "+strconv.Quote(work)+" cannot be made: "+strconv.Quote(made)+": "+err.Error())
		}
	}
	return nil
}

func makeInside(path string, id *identity) error {
	slash := strings.LastIndexByte(path, '/')
	parent, err := system.OpenInside(path[:slash+1], system.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(parent) }()
	name := path[slash+1:]
	switch err := syscall.Mkdirat(parent, name, 0o755); err {
	case nil:
	case syscall.EEXIST:
		return nil // a link to nowhere; checkWork says so
	default:
		return err
	}
	const atSymlinkNoFollow = 0x100
	return syscall.Fchownat(parent, name, int(id.uid), int(id.gid), atSymlinkNoFollow)
}

// give makes a user the owner of a directory and of all that is in it. Nothing but init runs in the container yet, and
// no link is followed all the same.
func give(path string, id *identity) error {
	fd, err := system.OpenInside(path, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	return giveTree(os.NewFile(uintptr(fd), path), id)
}

// giveTree gives a directory and closes it.
func giveTree(dir *os.File, id *identity) error {
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(int(id.uid), int(id.gid)); err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			const flags = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW
			fd, err := system.OpenAt(int(dir.Fd()), e.Name(), flags)
			if err != nil {
				return &system.PathError{Path: e.Name(), Why: err.Error()}
			}
			if err := giveTree(os.NewFile(uintptr(fd), e.Name()), id); err != nil {
				return err
			}
			continue
		}
		const atSymlinkNoFollow = 0x100
		if err := syscall.Fchownat(int(dir.Fd()), e.Name(), int(id.uid), int(id.gid), atSymlinkNoFollow); err != nil {
			return &system.PathError{Path: e.Name(), Why: err.Error()}
		}
	}
	return nil
}
