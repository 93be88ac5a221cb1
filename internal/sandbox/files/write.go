package files

import (
	"math"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// Modes that files get unless a client gives one, and the bits of a mode.
const (
	usualFileMode      = 0o644
	usualDirectoryMode = 0o755
	modeBits           = 0o7777
)

// write makes or replaces a file by what the client sends. The bytes go into a file beside it,
// which then takes its name.
func (f *files) write(q *initwire.FileWrite) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	if q.Sized && q.Size < 0 {
		return wrong(initwire.FileInvalid, q.Path, "its size cannot be negative")
	}
	who, err := f.owner(q.User)
	if err != nil {
		return about(q.Path, err)
	}
	p, err := f.spotToWrite(q, path, who)
	if err != nil {
		return blame(q.Path, err)
	}
	defer p.close()
	mode, err := modeToWrite(q, p)
	if err != nil {
		return err
	}
	// It lies in the same directory, because a rename works within one file system only.
	temp, fd, err := tempFile(p.dir)
	if err != nil {
		return blame(q.Path, err)
	}
	// Mode and owner come when all bytes are there. Until then nobody else can open the file.
	err = f.fill(fd, q)
	if err == nil {
		err = blame(q.Path, dress(fd, who, mode))
	}
	if e := unix.Close(fd); err == nil {
		err = blame(q.Path, e)
	}
	if err == nil {
		err = blame(q.Path, ignoringEINTR(func() error { return unix.Renameat(p.dir, temp, p.dir, p.name) }))
	}
	if err != nil {
		// Half a file is not left.
		_ = unix.Unlinkat(p.dir, temp, 0)
	}
	return err
}

// about names the path that an error without one was about.
func about(path string, err error) error {
	if wrong, ok := err.(*initwire.FileError); ok && wrong.Path == "" {
		wrong.Path = path
	}
	return err
}

// spotToWrite is where the file will be: behind all links, unless the client wants links replaced.
// It makes missing directories if the client wants that.
func (f *files) spotToWrite(q *initwire.FileWrite, path string, who owner) (spot, error) {
	p, err := spotOf(unix.AT_FDCWD, path)
	// The directory of the file is missing. It is made, and then looked up again.
	if err == unix.ENOENT && q.Parents {
		trimmed := strings.TrimRight(path, "/")
		parent := trimmed[:strings.LastIndexByte(trimmed, '/')+1]
		mode := q.ParentMode & modeBits
		if q.ParentMode == 0 {
			mode = usualDirectoryMode
		}
		if err := makeAll(parent, mode, who); err != nil {
			return p, err
		}
		p, err = spotOf(unix.AT_FDCWD, path)
	}
	// Without this a link would be replaced by the file.
	if err == nil && !q.Replace {
		p, err = p.followed()
	}
	if err == nil && p.directory {
		p.close()
		err = unix.EISDIR
	}
	return p, err
}

// modeToWrite is the mode of the new file. It fails if something stands there that may not be
// replaced.
func modeToWrite(q *initwire.FileWrite, p spot) (uint32, error) {
	mode := q.Mode & modeBits
	var st unix.Stat_t
	switch err := p.stat(&st); {
	case err == unix.ENOENT:
		if q.Mode == 0 {
			mode = usualFileMode
		}
		return mode, nil
	case err != nil:
		return 0, blame(q.Path, err)
	case q.Replace && st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Mode&unix.S_IFMT != unix.S_IFREG:
		// It goes with its name when the file takes that.
		if q.Mode == 0 {
			mode = usualFileMode
		}
		return mode, nil
	}
	if err := mustBeRegular(&st); err != nil {
		return 0, regularBlame(q.Path, err)
	}
	if q.Mode == 0 {
		mode = st.Mode & 0o777
	}
	return mode, nil
}

// tempName is a name that nobody else thinks of.
func tempName() string {
	return ".muster-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "." + strconv.Itoa(syscall.Gettid())
}

// tempFile makes a file with a name of its own. Nobody else may read it before it is whole.
func tempFile(dir int) (name string, fd int, err error) {
	for range 100 {
		name = tempName()
		fd, err = openAtFlags(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != unix.EEXIST {
			return name, fd, err
		}
	}
	return "", -1, err
}

// fill writes what the client sends, and checks the size if the client gave one.
func (f *files) fill(fd int, q *initwire.FileWrite) error {
	in := inflow{o: f.o}
	written := int64(0)
	for {
		b, err := in.Take(math.MaxInt64)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			break
		}
		written += int64(len(b))
		// More bytes than announced are not written.
		if q.Sized && written > q.Size {
			return notSized(q, "more")
		}
		if _, err := system.FD(fd).Write(b); err != nil {
			return blame(q.Path, err)
		}
	}
	if q.Sized && written < q.Size {
		return notSized(q, strconv.FormatInt(written, 10))
	}
	return nil
}

// notSized is the error for bytes that are more or fewer than announced.
func notSized(q *initwire.FileWrite, came string) error {
	return wrong(initwire.FileInvalid, q.Path, strconv.FormatInt(q.Size, 10)+" bytes were announced and "+came+" came")
}

// dress gives an open file its owner and mode.
func dress(fd int, who owner, mode uint32) error {
	if err := who.give(fd); err != nil {
		return err
	}
	return unix.Fchmod(fd, mode)
}

// make makes a directory.
func (f *files) make(q *initwire.FileMake) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	who, err := f.owner(q.User)
	if err != nil {
		return about(q.Path, err)
	}
	mode := q.Mode & modeBits
	if q.Mode == 0 {
		mode = usualDirectoryMode
	}
	switch {
	case q.Replace:
		return blame(q.Path, makeReplacing(path, mode, who, q.Parents))
	case q.Parents:
		return blame(q.Path, makeAll(path, mode, who))
	}
	p, err := spotOf(unix.AT_FDCWD, path)
	if err != nil {
		return blame(q.Path, err)
	}
	defer p.close()
	if p.name == "." {
		return blame(q.Path, unix.EEXIST)
	}
	return blame(q.Path, makeIn(p.dir, p.name, mode, who))
}

// makeIn makes a directory in another one. Nobody else may enter it before it has its owner and
// mode.
func makeIn(dir int, name string, mode uint32, who owner) error {
	// With this mode nobody but init enters it before it is given away.
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	fd, err := openAtFlags(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	err = dress(fd, who, mode)
	_ = unix.Close(fd)
	return err
}

// makeReplacing makes a directory in place of whatever is there and is none. A directory that is
// there gets the owner and mode.
func makeReplacing(path string, mode uint32, who owner, parents bool) error {
	trimmed := strings.TrimRight(path, "/")
	// All above it is made first.
	if i := strings.LastIndexByte(trimmed, '/'); parents && i > 0 {
		if err := makeAll(trimmed[:i], mode, who); err != nil {
			return err
		}
	}
	p, err := spotOf(unix.AT_FDCWD, path)
	if err != nil {
		return err
	}
	defer p.close()
	if p.name == "." {
		return nil // the root, or where the command began: whose that is is not for a file to say
	}
	for range 100 {
		if err = makeIn(p.dir, p.name, mode, who); err != unix.EEXIST {
			return err
		}
		fd, err := openAtFlags(p.dir, p.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err == nil {
			err = dress(fd, who, mode)
			_ = unix.Close(fd)
			return err
		}
		// Not entered: by unlinkat what is a directory by now stays.
		if err := unix.Unlinkat(p.dir, p.name, 0); err != nil && err != unix.ENOENT && err != unix.EISDIR {
			return err
		}
	}
	return unix.EEXIST
}

// makeAll makes a directory and all above it that are missing. It leaves what is there as it is.
func makeAll(path string, mode uint32, who owner) error {
	fd, err := openPath(path, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		return unix.Close(fd)
	}
	if err != unix.ENOENT {
		return err
	}
	trimmed := strings.TrimRight(path, "/")
	if i := strings.LastIndexByte(trimmed, '/'); i > 0 {
		if err := makeAll(trimmed[:i], mode, who); err != nil {
			return err
		}
	}
	p, err := spotOf(unix.AT_FDCWD, path)
	if err == nil {
		p, err = p.followed() // a link to what is not there yet
	}
	if err != nil {
		return err
	}
	defer p.close()
	if p.name == "." {
		return nil
	}
	err = makeIn(p.dir, p.name, mode, who)
	if err == unix.EEXIST {
		return nil // by somebody else meanwhile; if it is no directory, the next step says so
	}
	return err
}
