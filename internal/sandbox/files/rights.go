package files

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/account"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// with calls do with the rights that a user has on files; empty: with init's. The thread gets these
// rights, gives them back while it waits for the client, and after do. do must stay on its
// goroutine.
func (f *files) with(user string, do func() error) error {
	if user == "" {
		return do()
	}
	if !f.Contained {
		return wrong(initwire.FileInvalid, "", "user "+strconv.Quote(user)+": only in a container can one be chosen")
	}
	// They are read with init's rights, and anew each time.
	known, err := account.Read()
	if err != nil {
		return wrong(initwire.FileInvalid, "", "user "+strconv.Quote(user)+": "+err.Error())
	}
	who, failed := known.Who(user)
	if failed != nil {
		return wrong(initwire.FileInvalid, "", failed.Message)
	}
	// Names are read with init's own rights.
	if f.names == nil {
		f.names = account.ReadNames() // which the user need not be allowed to
	}
	f.as = &rights{int(who.UID), int(who.GID), who.Groups}
	if err := f.assume(); err != nil {
		f.as = nil
		return wrong(initwire.FileFault, "", "take the rights of user "+strconv.Quote(user)+": "+err.Error())
	}
	defer func() {
		f.giveBack()
		f.as = nil
	}()
	return do()
}

// assume gives this thread the rights that the operation is to have, and locks the goroutine to it.
// After an error the thread has its own rights.
func (f *files) assume() (err error) {
	if f.as == nil {
		return nil
	}
	// The rights are of one thread, so the goroutine must not leave it.
	runtime.LockOSThread()
	if f.mine, err = myRights(); err != nil {
		runtime.UnlockOSThread()
		f.as = nil
		return err
	}
	if err = f.as.take(); err != nil {
		f.giveBack()
		f.as = nil
	}
	return err
}

// giveBack gives this thread its own rights back.
func (f *files) giveBack() {
	if f.as == nil {
		return
	}
	// If that fails, the thread is in an unknown state: it stays locked and ends with its
	// goroutine.
	if f.mine.take() == nil {
		runtime.UnlockOSThread()
	}
}

// rights are what the kernel decides about files by.
type rights struct {
	uid, gid int
	// groups are further groups.
	groups []uint32
}

// myRights are those of this process.
func myRights() (rights, error) {
	r := rights{uid: os.Geteuid(), gid: os.Getegid()}
	all, err := syscall.Getgroups()
	for _, g := range all {
		r.groups = append(r.groups, uint32(g))
	}
	return r, err
}

// take gives these rights to this thread. From a thread whose user is not root the kernel takes the
// capabilities that override permissions, and gives them back with root.
func (r rights) take() error {
	if !system.GroupsDenied() {
		// Of this thread alone, as the calls of package syscall are not.
		var first unsafe.Pointer
		if len(r.groups) > 0 {
			first = unsafe.Pointer(&r.groups[0])
		}
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(r.groups)), uintptr(first), 0); errno != 0 {
			return errno
		}
	}
	// These two answer what was before, and say nothing of a failure.
	for _, id := range []struct {
		call uintptr
		want int
	}{{unix.SYS_SETFSGID, r.gid}, {unix.SYS_SETFSUID, r.uid}} {
		_, _, _ = syscall.RawSyscall(id.call, uintptr(id.want), 0, 0)
		if now, _, _ := syscall.RawSyscall(id.call, ^uintptr(0), 0, 0); int(now) != id.want {
			return syscall.EPERM
		}
	}
	return nil
}
