package oci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// rootIs maps root, and those after it, to base and those after that on this node.
func rootIs(base int) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: idRange}}
}

// openOwners opens a user namespace of which the ids are those of this node by a map. It is what the kernel wants to be shown
// when a mount shall map owners; the program given is only there to have a namespace, and never comes to run an
// instruction of its own.
func openOwners(program string, m []syscall.SysProcIDMap) (*os.File, error) {
	// It stops at its first instruction for the thread that traces it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: m, GidMappings: m, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	f, err := os.Open("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/user")
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w", err)
	}
	return f, nil
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
