package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// topDir is the inode flag of `chattr +T`.
const topDir = 0x00020000

// spread asks an ext4 file system that has no journal to put each directory below dir into another
// part of the disk. Such a file system does not reuse an inode for minutes after its file was
// deleted, and looks at each of them whenever it makes a file nearby: after a thousand short
// sandboxes, making the ten files of the next took 2 to 3 ms of processor time instead of 0.7.
// Other file systems are left alone. Errors do not matter.
func spread(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	if !withoutJournal(f) {
		return
	}
	fd := int(f.Fd())
	if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|topDir))
	}
}

// withoutJournal reports whether a file is on an ext4 that is known to have no journal.
func withoutJournal(f *os.File) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Type != unix.EXT4_SUPER_MAGIC || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return false
	}
	task, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "journal_task"))
	return err == nil && strings.TrimSpace(string(task)) == "<none>"
}
