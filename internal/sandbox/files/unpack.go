package files

import (
	"archive/tar"
	"io"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/musterhq/muster/internal/safetar"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// tarWrite unpacks the tar that the client sends below a directory.
func (f *files) tarWrite(q *initwire.TarWrite) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	who, err := f.owner(q.User)
	if err != nil {
		return about(q.Path, err)
	}
	// The directory and those above it belong to the same user as what is unpacked.
	if q.Make {
		if err := makeAll(path, usualDirectoryMode, who); err != nil {
			return blame(q.Path, err)
		}
	}
	top, err := openPath(path, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return blame(q.Path, err)
	}
	// Bytes are unpacked as they come. Nothing is kept of the tar.
	in := &inflow{o: f.o}
	u := newUnpacker(in, q.Path, top, who, q.KeepOwners)
	err = u.run()
	u.close()
	for err == nil && !in.over {
		_, err = in.Take(initwire.MaxBytes) // what fills up a tar's last record
	}
	return tarFault(q.Path, err)
}

// unpacker makes files of a tar's entries. Every step starts at a descriptor and goes through
// directories only, so that neither the tar nor a program that changes the tree meanwhile leads it
// out of the top. It never opens to write what is there already, so that it leads into no file
// either.
type unpacker struct {
	from *safetar.Reader
	// path is that of the top, for what is said.
	path string
	top  int
	// who owns all that is unpacked, unless keep: then the tar says who.
	who  owner
	keep bool

	// dir is the directory of the last entry, whose path is in; -1: none.
	dir int
	in  string
	// made are the directories that the tar has made.
	made safetar.Directories
	// buf is what contents are copied by.
	buf []byte
}

// newUnpacker makes an unpacker, which owns the descriptor of the top.
func newUnpacker(from io.Reader, path string, top int, who owner, keep bool) *unpacker {
	u := &unpacker{from: safetar.NewReader(from), path: path, top: top, dir: -1, who: who, keep: keep}
	u.made.Set = u.settle
	return u
}

// close gives directories their modes and times, and closes descriptors.
func (u *unpacker) close() {
	_ = u.made.Finish()
	if u.dir >= 0 {
		_ = unix.Close(u.dir)
	}
	_ = unix.Close(u.top)
}

// run unpacks the whole tar.
func (u *unpacker) run() error {
	for {
		e, err := u.from.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Path == "" {
			continue // the top is the client's, and stays as it is
		}
		if err := u.unpack(e); err != nil {
			return tarFault(joined(u.path, e.Path), err)
		}
	}
}

// unpack makes what an entry says.
func (u *unpacker) unpack(e *safetar.Entry) error {
	// A tar may have any number, and the kernel takes some to mean nobody in particular.
	if u.keep && (e.Uid < 0 || e.Uid > maxOwner || e.Gid < 0 || e.Gid > maxOwner) {
		return refused(e, "has an owner that cannot be")
	}
	// Entries of one directory mostly come one after the other, so it stays open.
	if err := u.goTo(parentOf(e.Path)); err != nil {
		return err
	}
	base := lastName(e.Path)
	switch e.Typeflag {
	case tar.TypeReg:
		return u.file(e, base)
	case tar.TypeDir:
		return u.directory(e, base)
	case tar.TypeSymlink:
		if e.Linkname == "" || len(e.Linkname) > initwire.MaxPath {
			return refused(e, "is a link to nothing that could be")
		}
		return u.place(base, func(as string) error {
			if err := unix.Symlinkat(e.Linkname, u.dir, as); err != nil {
				return err
			}
			return u.dressAt(e, as)
		})
	case tar.TypeLink:
		return u.hardLink(e, base)
	case tar.TypeFifo:
		return u.place(base, func(as string) error { return u.pipe(e, as) })
	case tar.TypeChar, tar.TypeBlock:
		return refused(e, "is a device, and those are not made")
	}
	return refused(e, "is of type "+strconv.Quote(string(rune(e.Typeflag)))+", which is not taken")
}

// refused is the error for an entry that a sandbox does not take.
func refused(e *safetar.Entry, why string) error { return safetar.Error{Name: e.Name, Why: why} }

// parentOf is the path of the directory of a clean name, empty for the top.
func parentOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return ""
}

// goTo opens the directory that the next entry is in, and makes what is missing of it.
func (u *unpacker) goTo(name string) error {
	if u.dir >= 0 && name == u.in {
		return nil
	}
	if u.dir >= 0 {
		_ = unix.Close(u.dir)
		u.dir = -1
	}
	dir, err := u.openDirectory(name)
	// Tars need not have entries for directories.
	if err == unix.ENOENT {
		dir, err = u.makeMissing(name)
	}
	if err == unix.ELOOP {
		err = unix.ENOTDIR // a link is none, wherever it leads
	}
	if err != nil {
		return err
	}
	u.dir, u.in = dir, name
	return nil
}

// openDirectory opens a directory by its path from the top, without any link.
func (u *unpacker) openDirectory(name string) (int, error) {
	if name == "" {
		name = "."
	}
	return openBelow(u.top, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, beneath)
}

// makeMissing makes directories that the tar has no entries for.
func (u *unpacker) makeMissing(name string) (int, error) {
	dir, err := u.openDirectory("")
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(name, "/") {
		err := makeIn(dir, part, usualDirectoryMode, u.who)
		next := -1
		if err == nil || err == unix.EEXIST {
			next, err = openAtFlags(dir, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// place makes something under its name. If something is there already, it makes it beside that and
// then moves it there.
func (u *unpacker) place(base string, make func(as string) error) error {
	err := make(base)
	if err != unix.EEXIST {
		return err
	}
	for range 100 {
		// Somebody else's file may have this name by chance. Then another one is tried.
		as := tempName()
		err = make(as)
		if err == unix.EEXIST {
			continue
		}
		if err == nil {
			err = unix.Renameat(u.dir, as, u.dir, base)
		}
		// Also if all went well: a rename between two names of one file leaves both.
		_ = unix.Unlinkat(u.dir, as, 0)
		return err
	}
	return err
}

// file makes a regular file. Half a file is never left.
func (u *unpacker) file(e *safetar.Entry, base string) error {
	return u.place(base, func(as string) error {
		fd, err := openAtFlags(u.dir, as, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		err = u.fill(fd)
		if err == nil {
			err = dress(fd, u.owner(e), modeOf(e))
		}
		if err == nil {
			err = setTime(fd, "", e.ModTime)
		}
		if e := unix.Close(fd); err == nil {
			err = e
		}
		if err != nil {
			_ = unix.Unlinkat(u.dir, as, 0)
		}
		return err
	})
}

// fill writes the content of a file.
func (u *unpacker) fill(fd int) error {
	if u.buf == nil {
		u.buf = make([]byte, initwire.MaxBytes)
	}
	_, err := io.CopyBuffer(system.FD(fd), u.from, u.buf)
	return err
}

// directory makes a directory, or takes one that is there.
func (u *unpacker) directory(e *safetar.Entry, base string) error {
	made := unix.Mkdirat(u.dir, base, 0o700)
	if made != nil && made != unix.EEXIST {
		return made
	}
	fd, err := openAtFlags(u.dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err // a link, or a file, stands where it should be
	}
	defer func() { _ = unix.Close(fd) }()
	if made != nil {
		return nil // it was there, and is not for a tar to change: think of one with usr/bin in it
	}
	// For now it must let in whoever unpacks.
	if err := dress(fd, u.owner(e), modeOf(e)|0o700); err != nil {
		return err
	}
	u.made.Add(e.Path, e)
	return nil
}

// settle gives a directory its mode and time. One that has gone does not need them.
func (u *unpacker) settle(name string, mode uint32, modified time.Time) error {
	fd, err := u.openDirectory(name)
	if err != nil {
		return nil
	}
	_ = unix.Fchmod(fd, mode)
	_ = setTime(fd, "", modified)
	return unix.Close(fd)
}

// hardLink gives a file below the top another name. A link is linked itself, and not followed.
func (u *unpacker) hardLink(e *safetar.Entry, base string) error {
	to := e.Target
	if to == "" {
		return refused(e, "is a hard link to "+strconv.Quote(e.Linkname)+", which is not below the directory")
	}
	dir, err := u.openDirectory(parentOf(to))
	if err != nil {
		return linkFault(e, err)
	}
	defer func() { _ = unix.Close(dir) }()
	var st unix.Stat_t
	if err := statAt(dir, lastName(to), &st); err != nil {
		return linkFault(e, err)
	}
	return u.place(base, func(as string) error {
		err := unix.Linkat(dir, lastName(to), u.dir, as, 0)
		if err == unix.ENOENT {
			return linkFault(e, err)
		}
		return err
	})
}

// linkFault is the error for a hard link that cannot be made.
func linkFault(e *safetar.Entry, err error) error {
	return refused(e, "is a hard link to "+strconv.Quote(e.Linkname)+": "+err.Error())
}

// pipe makes a named pipe.
func (u *unpacker) pipe(e *safetar.Entry, as string) error {
	if err := unix.Mknodat(u.dir, as, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	fd, err := openAtFlags(u.dir, as, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := u.dressAt(e, as); err != nil {
		return err
	}
	// By the descriptor, because chmod by name follows what may be a link by now.
	return unix.Chmod(system.SelfFD(fd), modeOf(e))
}

// dressAt gives a name its owner and time.
func (u *unpacker) dressAt(e *safetar.Entry, as string) error {
	if err := u.owner(e).giveAt(u.dir, as); err != nil {
		return err
	}
	return setTime(u.dir, as, e.ModTime)
}

// owner is who an entry is given to.
func (u *unpacker) owner(e *safetar.Entry) owner {
	if u.keep {
		return owner{e.Uid, e.Gid}
	}
	return u.who
}

// modeOf is the mode of an entry.
func modeOf(e *safetar.Entry) uint32 { return uint32(e.Mode & modeBits) }

// maxOwner is the highest number of a user or a group.
const maxOwner = 1<<32 - 2

// setTime sets when something was changed: a name in a directory, or, with no name, what is open.
func setTime(fd int, name string, modified time.Time) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Sec: modified.Unix(), Nsec: int64(modified.Nanosecond())}}
	if name == "" {
		_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
		if errno != 0 {
			return errno
		}
		return nil
	}
	return unix.UtimesNanoAt(fd, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

// tarFault says what is wrong with a tar, or with the path that it was to be unpacked in.
func tarFault(path string, err error) error {
	if n, ok := err.(safetar.Error); ok {
		return wrong(initwire.FileInvalid, path, n.Error())
	}
	return blame(path, err)
}
