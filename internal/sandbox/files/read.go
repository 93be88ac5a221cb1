package files

import (
	"io"
	"math"
	"strconv"

	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// read answers the bytes of a file, with the rights of the client's user.
func (f *files) read(q *initwire.FileRead) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	if q.Offset < 0 || q.Length < 0 {
		return wrong(initwire.FileInvalid, q.Path, "offset and length cannot be negative")
	}
	var fd int
	var st *unix.Stat_t
	err = f.with(q.User, func() (err error) {
		if fd, st, err = openRegular(path); err != nil {
			return regularBlame(q.Path, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	e := f.entry(-1, "", q.Path, st)
	e.Unsized = unsized(fd, st)
	if err := f.say(e); err != nil {
		return err
	}
	// The entry went first, so that the client knows the size before the bytes.
	if q.Offset > 0 {
		if _, err := unix.Seek(fd, q.Offset, unix.SEEK_SET); err != nil {
			return blame(q.Path, err)
		}
	}
	// Without a size that can be trusted, all is sent that can be read.
	want := int64(math.MaxInt64)
	if !e.Unsized {
		want = max(st.Size-q.Offset, 0)
	}
	if q.Length > 0 {
		want = min(want, q.Length)
	}
	// The client was told a size. Fewer bytes than that are an error.
	left, err := f.send(fd, q.Path, want)
	if err == nil && left > 0 && !e.Unsized {
		err = shorter(q.Path, left)
	}
	return err
}

// shorter is the error for a file that became shorter while it was read.
func shorter(path string, left int64) error {
	return wrong(initwire.FileBusy, path, "became shorter while it was read: "+strconv.FormatInt(left, 10)+" bytes are missing")
}

// send sends up to want bytes of a file. left is how many of them there were not.
func (f *files) send(fd int, path string, want int64) (left int64, err error) {
	for want > 0 {
		room, err := f.out.room()
		if err != nil {
			return want, err
		}
		if int64(len(room)) > want {
			room = room[:want]
		}
		n := 0
		err = ignoringEINTR(func() (err error) {
			n, err = unix.Read(fd, room)
			return err
		})
		if err != nil {
			return want, blame(path, err)
		}
		if n == 0 {
			return want, nil
		}
		f.out.used(n)
		want -= int64(n)
	}
	return 0, nil
}

// unsized reports whether the size of a file does not tell how much can be read of it.
func unsized(fd int, st *unix.Stat_t) bool { return st.Size == 0 || madeUp(fd) }

// errNotRegular is the error for something that is there, but opening it could wait, or do
// something.
const errNotRegular = errorText("is no regular file")

// openRegular opens a regular file to read it. It never waits: it first looks at what is there
// without opening it, and a pipe that comes there in between does not make it wait either.
func openRegular(path string) (int, *unix.Stat_t, error) {
	var st unix.Stat_t
	look, err := openPath(path, unix.O_PATH)
	if err != nil {
		return -1, nil, err
	}
	err = unix.Fstat(look, &st)
	_ = unix.Close(look)
	if err == nil {
		err = mustBeRegular(&st)
	}
	if err != nil {
		return -1, nil, err
	}
	// The path is followed a second time, so what it leads to is checked again.
	fd, err := openPath(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	return regular(fd, err)
}

// regularIn opens a regular file in a directory, and no link.
func regularIn(dir int, name string) (int, *unix.Stat_t, error) {
	fd, err := openAtFlags(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	return regular(fd, err)
}

// regular checks that what was opened is a regular file, or closes it.
func regular(fd int, err error) (int, *unix.Stat_t, error) {
	if err != nil {
		return -1, nil, err
	}
	st := &unix.Stat_t{}
	if err = unix.Fstat(fd, st); err == nil {
		err = mustBeRegular(st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, st, nil
}

// mustBeRegular says what is wrong if something is no regular file.
func mustBeRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errNotRegular
}

// regularBlame is blame for what had to be a regular file.
func regularBlame(path string, err error) error {
	switch err {
	case errNotRegular:
		return wrong(initwire.FileInvalid, path, "is a pipe, a socket or a device, and no file")
	case unix.EAGAIN:
		return wrong(initwire.FileBusy, path, "has a lease that another program does not release")
	}
	return blame(path, err)
}

// readUpTo reads at most limit bytes.
func readUpTo(fd, limit int) (string, error) {
	var text []byte
	buf := make([]byte, 4<<10)
	for len(text) < limit {
		n, err := system.FD(fd).Read(buf[:min(len(buf), limit-len(text))])
		text = append(text, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return string(text), nil
}
