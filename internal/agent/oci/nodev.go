package oci

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// forbidDevices makes sure that nothing in the root of a container can be a device, whatever its image brings. It is mounted
// so, but a program may have mounted it once more and left that out (seen with crun, where there is no user namespace to
// forbid it). Called on the locked thread, which ends soon and is in the container's mount namespace from then on,
// before init has been told to start anything.
func forbidDevices(pid int) error {
	path := "/proc/" + strconv.Itoa(pid) + "/ns/mnt"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return &os.PathError{Op: "enter mount namespace", Path: path, Err: err}
	}
	denied := func() (flags int64, denied bool, err error) {
		var fs unix.Statfs_t
		if err := unix.Statfs("/", &fs); err != nil {
			return 0, false, fmt.Errorf("root of the container: %w", err)
		}
		return int64(fs.Flags), fs.Flags&unix.ST_NODEV != 0, nil
	}
	flags, done, err := denied()
	if err != nil || done {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NODEV|mountFlags(flags), ""); err != nil {
		return fmt.Errorf("forbid devices in the root of the container: %w", err)
	}
	if _, done, err = denied(); err == nil && !done {
		err = errors.New("devices in the root of the container cannot be forbidden")
	}
	return err
}

// mountFlags are the flags of a mount, as statfs tells them, in the words of mount. A new mount with fewer is refused, or loses them.
func mountFlags(told int64) (flags uintptr) {
	for st, ms := range map[int64]uintptr{
		unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME,
		unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if told&st != 0 {
			flags |= ms
		}
	}
	return flags
}
