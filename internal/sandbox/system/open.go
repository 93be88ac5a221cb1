package system

import (
	"strconv"
	"syscall"
	"unsafe"
)

// OpenInside opens a path of the container as the container's programs see it, but never through
// one of the kernel's magic links. Init itself would follow those of /proc/self/fd to what it holds
// outside of the container. The descriptor is closed on exec.
func OpenInside(path string, flags int) (int, error) {
	how := struct{ flags, mode, resolve uint64 }{flags: uint64(flags | syscall.O_CLOEXEC), resolve: resolveNoMagicLinks}
	name, err := syscall.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	for {
		fd, _, errno := syscall.Syscall6(sysOpenat2, atCwd, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
		switch errno {
		case 0:
			return int(fd), nil
		case syscall.EINTR, syscall.EAGAIN:
		case syscall.ENOSYS:
			// Linux before 5.6. What init holds there is only what an image may see of itself: that
			// is up to the runtime.
			return syscall.Open(path, flags|syscall.O_CLOEXEC, 0)
		default:
			return -1, errno
		}
	}
}

const (
	sysOpenat2          = 437 // the same number on every architecture
	resolveNoMagicLinks = 0x02
	atCwd               = ^uintptr(99) // AT_FDCWD, −100
	// OPath is O_PATH, which package syscall does not have: the descriptor only names the file.
	OPath = 0x200000
)

// StatInside is stat by OpenInside.
func StatInside(path string, st *syscall.Stat_t) error {
	fd, err := OpenInside(path, OPath)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	return syscall.Fstat(fd, st)
}

// SelfFD is a path to what a descriptor of this process is open on. It holds in a child as well,
// until its exec.
func SelfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Pipe makes a pipe. Its reading end does not block, its writing end does, as programs expect.
func Pipe() (r, w int, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return 0, 0, err
	}
	if err := syscall.SetNonblock(p[0], true); err != nil {
		return 0, 0, err
	}
	return p[0], p[1], nil
}

// OpenAt opens a file in a directory, always closed on exec. A file that it makes has mode 0600.
func OpenAt(dir int, name string, flags int) (int, error) {
	for {
		fd, err := syscall.Openat(dir, name, flags|syscall.O_CLOEXEC, 0o600)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// RemoveAt removes a file in a directory. An error is ignored: nobody could do anything about it.
func RemoveAt(dir int, name string) { _ = syscall.Unlinkat(dir, name) }

// ReadBounded reads a regular file of the container of at most limit bytes. A missing file reads as
// empty. It never waits: the image decides what stands at that path, and it could be a pipe. Its
// errors are of type *PathError.
func ReadBounded(path string, limit int) (string, error) {
	fd, err := OpenInside(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY)
	switch err {
	case nil:
	case syscall.ENOENT, syscall.ENOTDIR:
		return "", nil
	default:
		return "", &PathError{path, err.Error()}
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return "", &PathError{path, err.Error()}
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return "", &PathError{path, "not a regular file"}
	}
	if st.Size > int64(limit) {
		return "", &PathError{path, "larger than " + strconv.Itoa(limit) + " bytes"}
	}
	b := make([]byte, st.Size)
	n := 0
	for n < len(b) {
		m, err := FD(fd).Read(b[n:])
		if err != nil {
			break // shorter by now
		}
		n += m
	}
	return string(b[:n]), nil
}

// PathError names a path, or what was tried, and says what is wrong.
type PathError struct{ Path, Why string }

func (f *PathError) Error() string { return f.Path + ": " + f.Why }
