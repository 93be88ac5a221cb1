package journal

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/userns"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Names in an agent's directory.
const (
	// LockName is the lock of the one agent; see TakeLock.
	LockName = "agent.lock"
	// RecordName is the record of the agent's process. The file is as old as the process.
	RecordName = "agent.json"
	// BrokenName is an operator's file that says that the node is broken: its first line is the
	// reason.
	BrokenName = "broken"
	// SandboxesName has a directory for each allocation.
	SandboxesName = "sandboxes"
	// InputsName, ImagesName and NetworksName are the inputs, the images, and what is known of
	// networks.
	InputsName   = "inputs"
	ImagesName   = "images"
	NetworksName = "networks"
	// TempName is the temporary directory. Whoever starts the agent's process sets TMPDIR to it:
	// what a killed agent leaves there, the next one deletes.
	TempName = "tmp"
)

// Dialer opens connections to the agent of a directory.
func Dialer(dir string) func(context.Context) (net.Conn, error) {
	path := filepath.Join(dir, wire.SocketName)
	return func(ctx context.Context) (net.Conn, error) { return wire.DialSocket(ctx, path) }
}

// ValidID reports whether an allocation's id can be the name of a directory.
func ValidID(id muster.AllocID) bool {
	s := string(id)
	if s == "" || len(s) > 128 || s[0] == '.' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// SandboxDirs are the directories below an agent's directory that may hold a sandbox, those of its
// runtimes' probes included. It is for those who take the directory apart, or look whether
// something in it still runs, while no agent does.
func SandboxDirs(dir string) ([]string, error) {
	var list []string
	for _, name := range []string{SandboxesName, TempName} {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() {
				list = append(list, filepath.Join(dir, name, e.Name()))
			}
		}
	}
	return list, nil
}

// MakeSandboxes makes the directory of the sandboxes below an agent's directory, and lists the
// allocations that have one. Not all of them have a journal: see AllocDir.Read.
func MakeSandboxes(dir string) ([]muster.AllocID, error) {
	path := filepath.Join(dir, SandboxesName)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	spread(path)
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var ids []muster.AllocID
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, muster.AllocID(e.Name()))
		}
	}
	return ids, nil
}

// RemoveTree deletes a directory with all that is in it. Commands may have taken away their own
// permissions, and something may still be made in it for a moment: it tries a few times. A
// directory that is not there is no error.
func RemoveTree(dir string) error {
	var err error
	for range 5 {
		err = os.RemoveAll(dir)
		switch {
		case errors.Is(err, fs.ErrPermission):
			_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				// WalkDir calls first for the directory and reads it only then: so it is opened up
				// in time.
				if err == nil && d.IsDir() {
					_ = os.Chmod(path, 0o700)
				}
				return nil
			})
		case !errors.Is(err, syscall.ENOTEMPTY):
			return err
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		// Containers of an ordinary user leave files of other ids.
		return userns.RemoveAll(dir)
	}
	return err
}

// The disk is nearly full below one part in floorShare, and at most floorMost bytes: half of what
// the store of images leaves free. There is room for results and output then, and for nothing new.
const (
	floorShare = 40
	floorMost  = 512 << 20
)

// FreeDisk is how many bytes are free for the agent where dir is; 0 if that cannot be told.
func FreeDisk(dir string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// DiskFloor is how many free bytes nothing new may take from the disk where dir is.
func DiskFloor(dir string) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0
	}
	return min(int64(st.Blocks)*st.Bsize/floorShare, floorMost)
}

// ErrDiskFull says that there is no room for anything new.
var ErrDiskFull = errors.New("the disk of the node is nearly full")

// Room is ErrDiskFull if size more bytes would leave less than DiskFloor free where dir is.
func Room(dir string, size int64) error {
	if FreeDisk(dir)-size < DiskFloor(dir) {
		return ErrDiskFull
	}
	return nil
}
