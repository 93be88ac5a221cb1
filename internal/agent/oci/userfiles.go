package oci

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// userFiles are the files of an image that runtime programs read before the container's init runs: runc both, crun
// the first one unless HOME is set.
var userFiles = []string{"etc/passwd", "etc/group"}

// maxUserFile bounds the size of one of userFiles.
const maxUserFile = 16 << 20

// checkUserFiles refuses an image whose userFiles a runtime program could read for ever: it does so without a time limit, and
// each start that hangs takes one of the few that a node makes at a time. Other images' starts would wait for it.
func (s *stage) checkUserFiles() error {
	root, err := unix.Open(s.at("root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: s.at("root"), Err: err}
	}
	defer func() { _ = unix.Close(root) }()
	for _, name := range userFiles {
		if why := s.unreadable(root, name); why != "" {
			return initbox.UserFault(muster.ReasonImage, "image %s: /%s %s; it must be a regular file of at most %d MiB, or not exist",
				s.c.Container.Image.Ref, name, why, maxUserFile>>20)
		}
	}
	return nil
}

// unreadable says why a file of the image must not be read; empty: it may be, or does not exist.
func (s *stage) unreadable(root int, name string) (why string) {
	open := func(flags uint64) (int, error) {
		// In the image's own terms: its links lead nowhere else.
		return unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	}
	fd, err := open(0)
	switch err {
	case nil:
	case unix.ENOENT:
		if fd, err := open(unix.O_NOFOLLOW); err == nil {
			// It may lead to a device or a file of /proc, which are not there yet.
			_ = unix.Close(fd)
			return "is a link to a file that the image does not have"
		}
		return ""
	case unix.ELOOP:
		return "is a link that leads back to itself"
	default:
		return "" // a parent that is no directory, say: programs fail at once
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "cannot be read: " + err.Error()
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "is not a regular file"
	}
	if st.Size > maxUserFile {
		return "has " + muster.Bytes(st.Size).String()
	}
	// /dev, /proc and /sys are covered in the container: something else will be there.
	real, err := os.Readlink("/proc/thread-self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return "cannot be read: " + err.Error()
	}
	if within, err := filepath.Rel(s.at("root"), real); err == nil && !inside("/"+within) {
		return "is a link to a device or a kernel file"
	}
	return ""
}
