package oci

import (
	"errors"
	"os"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// mountPlace is where the i-th directory of the node is found by the runtime program.
func (s *stage) mountPlace(i int) string { return s.at("mount" + strconv.Itoa(i)) }

// bindMounts brings the directories of the node that the container has mounted to where its root can
// take them from.
func (s *stage) bindMounts() error {
	for i := range s.c.Container.Mounts {
		m := &s.c.Container.Mounts[i]
		if m.Source == "" {
			continue
		}
		if err := s.bindMount(m, s.mountPlace(i)); err != nil {
			return initbox.NodeFault("volume %s: %v", m.Name, err)
		}
	}
	return nil
}

// bindMount follows no symbolic link: a container that may write in one volume could have put it in
// the way of another. Where the container has ids of its own, owners are mapped, so that its user
// 1000 is the node's user 1000 there. File systems that cannot map them, as NFS, are mounted as they
// are.
func (s *stage) bindMount(m *contract.Mount, at string) error {
	dir, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ELOOP):
		return errors.New("a part of " + m.Source + " is a symbolic link; the configuration must name the directory itself")
	case err != nil:
		return &os.PathError{Op: "open", Path: m.Source, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	tree, err := unix.OpenTree(dir, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: m.Source, Err: err}
	}
	defer func() { _ = unix.Close(tree) }()
	set := uint64(unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID)
	if !m.Writable {
		set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set}); err != nil {
		return &os.PathError{Op: "limit", Path: m.Source, Err: err}
	}
	if owners := s.ids.nodes(); s.ids.base > 0 && owners != nil {
		err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners.Fd())})
		if err != nil && err != unix.EINVAL {
			return &os.PathError{Op: "map the owners of", Path: m.Source, Err: err}
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount on", Path: at, Err: err}
	}
	return nil
}

// nodes maps the node's owners of files to those of the container; nil: no namespace does.
func (i ids) nodes() *os.File { return i.shared }

// mountsOf are the volumes of a container in its configuration.
func (s *stage) mountsOf() (all []specs.Mount) {
	for i, m := range s.c.Container.Mounts {
		options := []string{"nosuid", "nodev"}
		if m.Source == "" {
			options = append(options, "mode=1777", "size="+strconv.FormatInt(int64(m.Tmpfs), 10))
			all = append(all, specs.Mount{Destination: m.Path, Type: "tmpfs", Source: "tmpfs", Options: options})
			continue
		}
		if !m.Writable {
			options = append(options, "ro")
		}
		all = append(all, specs.Mount{Destination: m.Path, Type: "bind", Source: s.mountPlace(i), Options: append(options, "bind")})
	}
	return all
}
