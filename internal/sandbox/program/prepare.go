package program

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/account"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// What package syscall does not have of capabilities.
const (
	prCapBSetDrop    = 24
	prCapAmbient     = 47
	prCapAmbientNone = 4
	capabilityV3     = 0x20080522
	highestCap       = 63
)

// cut leaves this thread's children at most the capabilities of mask. The thread keeps its own. The
// caller's goroutine must be locked to the thread, and the cut is for good.
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
	// Nothing is inheritable, as is usual: then there is nothing to take away.
	if sets[0].inheritable|sets[1].inheritable == 0 {
		return nil
	}
	sets[0].inheritable, sets[1].inheritable = 0, 0
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&sets)), 0); errno != 0 {
		return errno
	}
	return nil
}

// makeWork makes a work directory that the image does not have, as images expect it, with all
// directories that are missing above it.
func makeWork(work string, id *account.User) *initwire.Failed {
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

// makeInside makes one directory, by a descriptor of the one above it.
func makeInside(path string, id *account.User) error {
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
	return syscall.Fchownat(parent, name, int(id.UID), int(id.GID), atSymlinkNoFollow)
}

// give makes a user the owner of a directory and of all that is in it. It follows no link, although
// nothing but init runs in the container yet.
func give(path string, id *account.User) error {
	fd, err := system.OpenInside(path, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	return giveTree(os.NewFile(uintptr(fd), path), id)
}

// giveTree is give for a directory that is open, and closes it.
func giveTree(dir *os.File, id *account.User) error {
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(int(id.UID), int(id.GID)); err != nil {
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
		if err := syscall.Fchownat(int(dir.Fd()), e.Name(), int(id.UID), int(id.GID), atSymlinkNoFollow); err != nil {
			return &system.PathError{Path: e.Name(), Why: err.Error()}
		}
	}
	return nil
}

// usualTimerSlack gives this thread, and so the command, the kernel's usual timer slack. The agent
// starts init with more.
func usualTimerSlack() {
	const (
		prSetTimerSlack = 29
		usual           = 50_000 // nanoseconds
	)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prSetTimerSlack, usual, 0, 0, 0, 0)
}
