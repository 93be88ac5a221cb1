package files

import (
	"archive/tar"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/sandbox/account"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// tarBlock is the unit of a tar: contents are padded to it, and two empty ones are the end.
const tarBlock = 512

// tarRead sends a tar of files and trees.
func (f *files) tarRead(q *initwire.TarRead) error {
	if len(q.Paths) == 0 || len(q.Paths) > initwire.MaxPaths {
		return wrong(initwire.FileInvalid, "", "a tar is made of 1 to "+strconv.Itoa(initwire.MaxPaths)+" paths, and not of "+strconv.Itoa(len(q.Paths)))
	}
	p := &packer{f: f, follow: q.Follow}
	// All of them are looked at first: once bytes are on their way, nobody can be told that there
	// is no such path.
	for _, path := range q.Paths {
		s, _, err := p.find(path, &unix.Stat_t{})
		if err != nil {
			return err
		}
		s.close()
	}
	for _, path := range q.Paths {
		if err := p.pack(path); err != nil {
			return err
		}
	}
	_, err := f.out.Write(make([]byte, 2*tarBlock))
	return err
}

// packer sends a tar of what walks find.
type packer struct {
	f *files
	// follow: links that the client names are followed. Links below them never are.
	follow bool
	// base is the path that is being packed, and prefix what it is called in the tar: "" or ending
	// in a slash.
	base, prefix string
	// links are the names of files that have several, and come once. linksSize is about how many
	// bytes that takes.
	links     map[inode]string
	linksSize int
	// dev is where the last file lay, and devMadeUp whether the kernel makes that up. Neighbours
	// are asked about once.
	dev                 uint64
	devKnown, devMadeUp bool
}

// inode is what makes two names one file.
type inode struct{ dev, ino uint64 }

// maxLinked bounds what is remembered of files with several names. Beyond it, each name gets a file
// of its own.
const maxLinked = 4 << 20

// find is where a client's path is, and its last name, which following a link does not change.
func (p *packer) find(asked string, st *unix.Stat_t) (s spot, name string, err error) {
	path, err := p.f.at(asked)
	if err != nil {
		return s, "", err
	}
	s, err = spotOf(unix.AT_FDCWD, path)
	name = s.name
	if err == nil && (p.follow || s.directory && s.name != ".") {
		s, err = s.followed()
	}
	if err != nil {
		return s, "", blame(asked, err)
	}
	if err = s.stat(st); err == nil && s.directory && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		s.close()
	}
	return s, name, blame(asked, err)
}

// pack packs what a client's path stands for.
func (p *packer) pack(asked string) error {
	var st unix.Stat_t
	s, name, err := p.find(asked, &st)
	if err != nil {
		return err
	}
	defer s.close()
	p.base, p.prefix = asked, ""
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return p.entry(s.dir, name, s.name, asked, &st)
	}
	// The walk finds everything from this descriptor.
	top, err := openChecked(s.dir, s.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, byLinks)
	if err != nil {
		return blame(asked, err)
	}
	defer func() { _ = unix.Close(top) }()
	p.prefix = name + "/"
	w := walk{top: top, base: asked, visit: p}
	return w.run(&st)
}

// directory packs a directory. Those whose content the kernel makes up are left out.
func (p *packer) directory(below string, st *unix.Stat_t, problem error) error {
	if wrong, ok := problem.(*initwire.FileError); ok && (below == "" || wrong.Code != initwire.FileInvalid) {
		return problem
	}
	name := p.prefix
	if below != "" {
		name += below + "/"
	}
	return p.send(p.describe(tar.TypeDir, name, st))
}

// other packs what a walk finds beside directories.
func (p *packer) other(dir int, below, name string, st *unix.Stat_t) error {
	return p.entry(dir, p.prefix+below, name, joined(p.base, below), st)
}

// entry packs anything but a directory, called as in the tar and found by its name in dir.
func (p *packer) entry(dir int, as, name, path string, st *unix.Stat_t) error {
	kind := byte(tar.TypeReg)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return nil // means nothing without who listens
	case unix.S_IFLNK:
		kind = tar.TypeSymlink
	case unix.S_IFIFO:
		kind = tar.TypeFifo
	case unix.S_IFCHR:
		kind = tar.TypeChar
	case unix.S_IFBLK:
		kind = tar.TypeBlock
	}
	// Of a file with several names the content comes once. Other names refer to the first.
	if st.Nlink > 1 {
		if first, ok := p.links[inode{st.Dev, st.Ino}]; ok {
			e := p.describe(tar.TypeLink, as, st)
			e.Linkname = first
			return p.send(e)
		}
	}
	if kind == tar.TypeReg {
		return p.file(dir, as, name, path)
	}
	e := p.describe(kind, as, st)
	switch kind {
	case tar.TypeSymlink:
		target, err := readLink(dir, name)
		if err != nil {
			return unlessGone(path, err)
		}
		e.Linkname = target
	case tar.TypeChar, tar.TypeBlock:
		e.Devmajor, e.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	}
	p.remember(as, st)
	return p.send(e)
}

// unlessGone is an error, unless it says that something has gone since it was listed: that is left
// out.
func unlessGone(path string, err error) error {
	switch err {
	case unix.ENOENT, unix.EINVAL, unix.ELOOP, errNotRegular, unix.EISDIR, unix.ENXIO:
		return nil // something else is there now
	}
	return blame(path, err)
}

// remember notes a file that has several names.
func (p *packer) remember(as string, st *unix.Stat_t) {
	if st.Nlink < 2 || p.linksSize > maxLinked {
		return
	}
	if p.links == nil {
		p.links = map[inode]string{}
	}
	p.links[inode{st.Dev, st.Ino}] = as
	p.linksSize += len(as) + 64
}

// file packs a regular file: as many bytes as it has when it is opened.
func (p *packer) file(dir int, as, name, path string) error {
	fd, st, err := regularIn(dir, name)
	if err != nil {
		return unlessGone(path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	e := p.describe(tar.TypeReg, as, st)
	e.Size = st.Size
	// The kernel says a size of 0 for what it makes up, so that it must be read to know its size.
	made := ""
	if p.madeUp(fd, st) {
		if made, err = readMadeUp(fd); err != nil {
			return blame(path, err)
		}
		e.Size = int64(len(made))
	}
	p.remember(as, st)
	if err := p.send(e); err != nil {
		return err
	}
	// The header has announced so many bytes. A file that became shorter breaks off the tar.
	left := int64(0)
	if made != "" {
		_, err = p.f.out.Write([]byte(made))
	} else {
		left, err = p.f.send(fd, path, e.Size)
	}
	if err == nil && left > 0 {
		err = shorter(path, left)
	}
	if err == nil {
		_, err = p.f.out.Write(make([]byte, -e.Size&(tarBlock-1)))
	}
	return err
}

// madeUp is whether the kernel makes up a file.
func (p *packer) madeUp(fd int, st *unix.Stat_t) bool {
	if !p.devKnown || p.dev != st.Dev {
		p.dev, p.devKnown, p.devMadeUp = st.Dev, true, madeUp(fd)
	}
	return p.devMadeUp
}

// maxMadeUp is how much is packed of a file whose size is known only once it was read.
const maxMadeUp = 1 << 20

// readMadeUp reads such a file, unless it is init's own.
func readMadeUp(fd int) (string, error) {
	if err := foreign(fd); err != nil {
		return "", err
	}
	text, err := readUpTo(fd, maxMadeUp+1)
	if err == nil && len(text) > maxMadeUp {
		err = unix.EFBIG
	}
	return text, err
}

// describe is the header of a file. Times are whole seconds, because a fraction would need a pax
// header for each file.
func (p *packer) describe(kind byte, as string, st *unix.Stat_t) *tar.Header {
	if p.f.names == nil {
		p.f.names = account.ReadNames()
	}
	return &tar.Header{
		Typeflag: kind, Name: strings.TrimPrefix(as, "/"), Mode: int64(st.Mode & modeBits),
		Uid: int(st.Uid), Gid: int(st.Gid), ModTime: time.Unix(st.Mtim.Sec, 0),
		Uname: writable(p.f.names.Users[int(st.Uid)]), Gname: writable(p.f.names.Groups[int(st.Gid)]),
	}
}

// writable is a name of an owner, or nothing if a tar cannot have it: names are the container's.
func writable(name string) string {
	if strings.IndexByte(name, 0) >= 0 {
		return ""
	}
	return name
}

// send sends a header alone. Each has a writer of its own, so that the content need not go through
// it: the kernel reads that into the frame that is sent.
func (p *packer) send(h *tar.Header) error {
	return tar.NewWriter(&p.f.out).WriteHeader(h)
}
