package initbox

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// fds are descriptors on their way to init. The first error sticks.
type fds struct {
	all []int
	err error
}

func (f *fds) add(fd int, what string, err error) int {
	if err != nil {
		f.err = errors.Join(f.err, &os.PathError{Op: "open", Path: what, Err: err})
		return -1
	}
	f.all = append(f.all, fd)
	return fd
}

func (f *fds) close() {
	for _, fd := range f.all {
		_ = unix.Close(fd)
	}
}

func (f *fds) open(path string, flags int) int {
	if f.err != nil {
		return -1
	}
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err != unix.EINTR {
			return f.add(fd, path, err)
		}
	}
}

// listen makes the socket. Its directory is 0700: nobody else reaches it.
func (f *fds) listen(path string) int {
	if f.err != nil {
		return -1
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if f.add(fd, path, err); err != nil {
		return -1
	}
	address, done, err := initwire.SocketAddress(path)
	if err == nil {
		err = syscall.Bind(fd, address)
		done()
	}
	if err == nil {
		err = unix.Listen(fd, initwire.MaxConns)
	}
	if err != nil {
		f.err = errors.Join(f.err, &os.PathError{Op: "listen", Path: path, Err: err})
	}
	return fd
}

// pair makes the control connection. Ours does not block and is not closed by close.
func (f *fds) pair() (ours, theirs int) {
	if f.err != nil {
		return -1, -1
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		if err = unix.SetNonblock(p[0], true); err != nil {
			_ = unix.Close(p[0])
			_ = unix.Close(p[1])
		}
	}
	if err != nil {
		f.err = errors.Join(f.err, os.NewSyscallError("socketpair", err))
		return -1, -1
	}
	f.all = append(f.all, p[1])
	return p[0], p[1]
}

// wall makes the place of output of a walled sandbox and opens what init gets of it. Not the directory itself: a
// descriptor of it would be a way out to its parents, whoever gets hold of it. A copy of the mount that begins at this directory has none above.
func (f *fds) wall(st *starting) {
	if f.err != nil {
		return
	}
	path := filepath.Join(st.c.Dir, Out)
	if err := unix.Mkdir(path, 0o700); err != nil {
		f.err = &os.PathError{Op: "mkdir", Path: path, Err: err}
		return
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if tree := f.add(fd, path, err); tree < 0 {
		return
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil && err != unix.ENOSYS {
		f.err = &os.PathError{Op: "mount_setattr", Path: path, Err: err}
		return
	}
	// A tree is held like by O_PATH: init needs a descriptor that can be listed.
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if st.output = f.add(dir, path, err); err != nil {
		return
	}
	record, err := unix.Openat(dir, outRecord, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if st.inits = f.add(record, filepath.Join(path, outRecord), err); err != nil || st.plan.Owner == 0 {
		return
	}
	for _, fd := range []int{dir, record} {
		if err := unix.Fchown(fd, st.plan.Owner, st.plan.Owner); err != nil {
			f.err = &os.PathError{Op: "chown", Path: path, Err: err}
		}
	}
}
