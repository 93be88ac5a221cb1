package oci

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// rootIs maps root, and those after it, to base and those after that on this node.
func rootIs(base int) []initwire.IDRange {
	return []initwire.IDRange{{Inside: 0, Outside: base, Size: idRange}}
}

// openOwners opens a user namespace for each map; the ids of the namespace are those of this node by the map. The kernel takes
// one where a mount shall map owners. The program is muster-init: see initwire.OwnersArg.
func openOwners(program string, maps ...[]initwire.IDRange) (opened []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(opened)
			opened, err = nil, fmt.Errorf("user namespace: %w", err)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "owners"), os.NewFile(uintptr(pair[1]), "owners")
	defer func() { _ = ours.Close() }()
	args := []string{initwire.OwnersArg}
	for _, m := range maps {
		args = append(args, initwire.FormatOwners(m))
	}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles, cmd.Env = []*os.File{theirs}, []string{"GOMAXPROCS=1"}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
		}
		// It ends after its last packet, once it has reaped the process that had the namespace.
		_ = cmd.Wait()
	}()
	for range maps {
		f, err := receiveFile(ours)
		if err != nil {
			return opened, err
		}
		opened = append(opened, f)
	}
	return opened, nil
}

// receiveFile is the next file that comes through a socket. A packet without one is the sender's error.
func receiveFile(from *os.File) (*os.File, error) {
	text, rights := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
	n, nrights, flags, _, err := unix.Recvmsg(int(from.Fd()), text, rights, unix.MSG_CMSG_CLOEXEC)
	switch {
	case err != nil:
		return nil, os.NewSyscallError("recvmsg", err)
	case nrights == 0 && flags&unix.MSG_CTRUNC != 0:
		// The kernel drops a descriptor for which this process has no room.
		return nil, os.NewSyscallError("recvmsg", unix.EMFILE)
	case n == 0:
		return nil, io.ErrUnexpectedEOF
	case nrights == 0:
		return nil, errors.New(string(text[:n]))
	}
	messages, err := unix.ParseSocketControlMessage(rights[:nrights])
	if err != nil {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "user namespace"), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// bindOwned mounts a directory of the node at a place so that its root's files are those of the user namespace's root, and the other way round.
func bindOwned(source, at string, owners *os.File) error {
	if owners == nil {
		return errors.New("no user namespace is open")
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	defer func() { _ = unix.Close(tree) }()
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Userns_fd: uint64(owners.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &os.PathError{Op: "map the owners of", Path: source, Err: err}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount on", Path: at, Err: err}
	}
	return nil
}
