package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// privateDevices are the devices of the node that a runtime program looks for below /dev, as their numbers.
var privateDevices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {"ptmx", 5, 2},
}

// maybeDevices are copied with the node's own mode where the node has them: a program that brings its own kernel may need them.
var maybeDevices = []string{"kvm", "vhost-vsock", "net/tun"}

// makeDevices covers /dev, in the namespace of this start only, with devices of the sandbox's own, which its root owns.
//
// A runtime program binds devices of /dev into a container that has a user namespace, and crun gives what it has for
// stdio to the container's root. Were they the node's, root inside could take /dev/null from every program of the node:
// inodes of a device are shared by all mounts of devtmpfs. It must come after all that needs the node's devices.
func (s *stage) makeDevices() error {
	if s.r.rootless() {
		return s.bindDevices()
	}
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	copies := map[string]unix.Stat_t{}
	if !s.r.program.usual() {
		for _, name := range maybeDevices {
			var st unix.Stat_t
			if unix.Stat(filepath.Join("/dev", name), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
				copies[name] = st
			}
		}
	}
	if err := s.findDevices(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", flags, "size=64k,mode=0755"); err != nil {
		return &os.PathError{Op: "mount tmpfs on", Path: "/dev", Err: err}
	}
	for _, d := range privateDevices {
		if err := s.makeDevice(d.name, 0o666, unix.Mkdev(d.major, d.minor)); err != nil {
			return err
		}
	}
	for name, st := range copies {
		if err := s.makeDevice(name, st.Mode&0o777, st.Rdev); err != nil {
			return err
		}
	}
	for i := range s.devices {
		if err := s.makeDevice(strings.TrimPrefix(s.devices[i].Path, "/dev/"), 0o666, unix.Mkdev(uint32(s.devices[i].Major), uint32(s.devices[i].Minor))); err != nil {
			return err
		}
	}
	return linkDevices()
}

func linkDevices() error {
	// A program may be a script, or look for its own descriptors.
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil {
		return err
	}
	return os.Mkdir("/dev/shm", 0o1777)
}

// bindDevices covers /dev with the node's own devices: an ordinary user can make none. They belong to the node's root,
// whom the user namespace does not have, so that nobody inside can change them.
func (s *stage) bindDevices() error {
	if err := s.findDevices(); err != nil {
		return err
	}
	sources := map[string]string{}
	for _, d := range privateDevices {
		sources[d.name] = filepath.Join("/dev", d.name)
	}
	if granted := s.c.Container.Devices; granted != nil {
		for _, n := range granted.Nodes {
			sources[strings.TrimPrefix(n.Path, "/dev/")] = n.HostPath
		}
	}
	opened := map[string]int{}
	defer func() {
		for _, fd := range opened {
			_ = unix.Close(fd)
		}
	}()
	for name, path := range sources {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		opened[name] = fd
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,mode=0755"); err != nil {
		return &os.PathError{Op: "mount tmpfs on", Path: "/dev", Err: err}
	}
	for name, fd := range opened {
		path := filepath.Join("/dev", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/proc/thread-self/fd/"+strconv.Itoa(fd), path, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "bind", Path: path, Err: err}
		}
	}
	return linkDevices()
}

func (s *stage) makeDevice(name string, mode uint32, number uint64) error {
	path := filepath.Join("/dev", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := unix.Mknod(path, unix.S_IFCHR|mode, int(number)); err != nil {
		return &os.PathError{Op: "make device", Path: path, Err: err}
	}
	// The file mode mask of this process does not count.
	if err := unix.Chmod(path, mode); err != nil {
		return &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return os.Lchown(path, s.ids.base, s.ids.base)
}

// ownNull replaces what a container's init has for stdin and stdout by the sandbox's own null device, which is
// to be closed after the start.
func (s *stage) ownNull(descriptors []int) (null int, err error) {
	null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("the sandbox's own null device: %w", &os.PathError{Op: "open", Path: "/dev/null", Err: err})
	}
	descriptors[0], descriptors[1] = null, null
	return null, nil
}
