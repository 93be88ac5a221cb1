package files

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/musterhq/muster/internal/sandbox/system"
	"github.com/musterhq/muster/internal/sandbox/ustar"
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
	u := &unpacker{from: ustar.NewReader(in), path: q.Path, top: top, dir: -1, who: who, keep: q.KeepOwners}
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
	from *ustar.Reader
	// path is that of the top, for what is said.
	path string
	top  int
	// who owns all that is unpacked, unless keep: then the tar says who.
	who  owner
	keep bool

	// dir is the directory of the last entry, whose path is in; -1: none.
	dir int
	in  string
	// left are directories whose modes and times come last, because what is still put into them
	// changes those. leftSize is how many bytes their paths have together.
	left     []leftDirectory
	leftSize int
}

// leftDirectory is such a directory, and what the tar says of it.
type leftDirectory struct {
	name string
	e    ustar.Entry
}

// maxLeft bounds what is remembered of directories. Beyond it, the older half gets its times early.
const maxLeft = 4 << 20

// close gives directories their modes and times, and closes descriptors.
func (u *unpacker) close() {
	u.settle(len(u.left))
	if u.dir >= 0 {
		_ = unix.Close(u.dir)
	}
	_ = unix.Close(u.top)
}

// run unpacks the whole tar.
func (u *unpacker) run() error {
	for {
		e, err := u.from.Next()
		if e == nil || err != nil {
			return err
		}
		name, err := below(e.Name)
		if err != nil {
			return err
		}
		if err := u.unpack(e, name); err != nil {
			return tarFault(joined(u.path, name), err)
		}
	}
}

// below is the clean name of an entry, or of the target of a hard link. It fails if that is not
// below the top.
func below(name string) (string, error) {
	switch {
	case name == "":
		return "", ustar.Error{Name: name, Why: "has no name"}
	case name[0] == '/':
		return "", ustar.Error{Name: name, Why: "has an absolute name"}
	case strings.IndexByte(name, 0) >= 0:
		return "", ustar.Error{Name: name, Why: "has a NUL in its name"}
	}
	clean := make([]byte, 0, len(name))
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return "", ustar.Error{Name: name, Why: "leads out of the directory"}
		}
		if len(clean) > 0 {
			clean = append(clean, '/')
		}
		clean = append(clean, part...)
	}
	if len(clean) > initwire.MaxPath {
		return "", ustar.Error{Name: name[:100] + "…", Why: "has a name that is longer than the system takes"}
	}
	return string(clean), nil
}

// unpack makes what an entry says.
func (u *unpacker) unpack(e *ustar.Entry, name string) error {
	if name == "" {
		if e.Kind == ustar.Directory {
			return nil // the top is the client's, and stays as it is
		}
		return ustar.Error{Name: e.Name, Why: "has no name"}
	}
	// A tar may have any number, and the kernel takes some to mean nobody in particular.
	if u.keep && (e.UID < 0 || e.UID > maxOwner || e.GID < 0 || e.GID > maxOwner) {
		return ustar.Error{Name: e.Name, Why: "has an owner that cannot be"}
	}
	// Entries of one directory mostly come one after the other, so it stays open.
	if err := u.goTo(parentOf(name)); err != nil {
		return err
	}
	base := lastName(name)
	switch e.Kind {
	case ustar.File:
		return u.file(e, base)
	case ustar.Directory:
		return u.directory(e, name, base)
	case ustar.Link:
		if e.Target == "" || len(e.Target) > initwire.MaxPath || strings.IndexByte(e.Target, 0) >= 0 {
			return ustar.Error{Name: e.Name, Why: "is a link to nothing that could be"}
		}
		return u.place(base, func(as string) error {
			if err := unix.Symlinkat(e.Target, u.dir, as); err != nil {
				return err
			}
			return u.dressAt(e, as)
		})
	case ustar.HardLink:
		return u.hardLink(e, base)
	case ustar.Pipe:
		return u.place(base, func(as string) error { return u.pipe(e, as) })
	case ustar.Char, ustar.Block:
		return ustar.Error{Name: e.Name, Why: "is a device, and those are not made"}
	}
	return ustar.Error{Name: e.Name, Why: "is of type " + strconv.Quote(string(rune(e.Kind))) + ", which is not taken"}
}

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
func (u *unpacker) file(e *ustar.Entry, base string) error {
	return u.place(base, func(as string) error {
		fd, err := openAtFlags(u.dir, as, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		err = u.fill(e, fd)
		if err == nil {
			err = dress(fd, u.owner(e), e.Mode)
		}
		if err == nil {
			err = setTime(fd, "", e)
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
func (u *unpacker) fill(e *ustar.Entry, fd int) error {
	for {
		b, err := u.from.Content(e.Name)
		if err != nil || len(b) == 0 {
			return err
		}
		if _, err := system.FD(fd).Write(b); err != nil {
			return err
		}
	}
}

// directory makes a directory, or takes one that is there.
func (u *unpacker) directory(e *ustar.Entry, name, base string) error {
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
	if err := dress(fd, u.owner(e), e.Mode|0o700); err != nil {
		return err
	}
	u.left = append(u.left, leftDirectory{name, *e})
	if u.leftSize += len(name) + 128; u.leftSize > maxLeft {
		u.settle((len(u.left) + 1) / 2)
	}
	return nil
}

// settle gives the first n directories their modes and times. Those that have gone do not need
// them.
func (u *unpacker) settle(n int) {
	for i := n - 1; i >= 0; i-- {
		d := u.left[i]
		u.leftSize -= len(d.name) + 128
		fd, err := u.openDirectory(d.name)
		if err != nil {
			continue
		}
		_ = unix.Fchmod(fd, d.e.Mode)
		_ = setTime(fd, "", &d.e)
		_ = unix.Close(fd)
	}
	u.left = append(u.left[:0], u.left[n:]...)
}

// hardLink gives a file below the top another name. A link is linked itself, and not followed.
func (u *unpacker) hardLink(e *ustar.Entry, base string) error {
	to, err := below(e.Target)
	if err != nil || to == "" {
		return ustar.Error{Name: e.Name, Why: "is a hard link to " + strconv.Quote(e.Target) + ", which is not below the directory"}
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
func linkFault(e *ustar.Entry, err error) error {
	return ustar.Error{Name: e.Name, Why: "is a hard link to " + strconv.Quote(e.Target) + ": " + err.Error()}
}

// pipe makes a named pipe.
func (u *unpacker) pipe(e *ustar.Entry, as string) error {
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
	return unix.Chmod(system.SelfFD(fd), e.Mode)
}

// dressAt gives a name its owner and time.
func (u *unpacker) dressAt(e *ustar.Entry, as string) error {
	if err := u.owner(e).giveAt(u.dir, as); err != nil {
		return err
	}
	return setTime(u.dir, as, e)
}

// owner is who an entry is given to.
func (u *unpacker) owner(e *ustar.Entry) owner {
	if u.keep {
		return owner{int(e.UID), int(e.GID)}
	}
	return u.who
}

// maxOwner is the highest number of a user or a group.
const maxOwner = 1<<32 - 2

// setTime sets when something was changed: a name in a directory, or, with no name, what is open.
func setTime(fd int, name string, e *ustar.Entry) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Sec: e.Seconds, Nsec: e.Nanoseconds}}
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
	if n, ok := err.(ustar.Error); ok {
		return wrong(initwire.FileInvalid, path, n.Error())
	}
	return blame(path, err)
}
