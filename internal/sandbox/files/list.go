package files

import (
	"slices"
	"strings"

	"github.com/musterhq/muster/internal/sandbox/account"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// stat answers one entry. A link is followed if the client asks for it, or its path ends in a
// slash.
func (f *files) stat(q *initwire.FileStat) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	p, err := spotOf(unix.AT_FDCWD, path)
	// A slash at the end asks for the directory behind a link, as the kernel has it.
	if err == nil && (q.Follow || p.directory && p.name != ".") {
		p, err = p.followed()
	}
	if err != nil {
		return blame(q.Path, err)
	}
	defer p.close()
	var st unix.Stat_t
	if err := p.stat(&st); err != nil {
		return blame(q.Path, err)
	}
	if p.directory && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return blame(q.Path, unix.ENOTDIR)
	}
	return f.say(f.entry(p.dir, p.name, q.Path, &st))
}

// say sends an entry.
func (f *files) say(e *initwire.FileEntry) error {
	return f.out.frame(initwire.KindFileEntry, e.Fields())
}

// list answers what is in a directory, or the one entry of something else, with the rights of the
// client's user.
func (f *files) list(q *initwire.FileList) error {
	return f.with(q.User, func() error { return f.listed(q) })
}

// listed is list, once the thread has these rights.
func (f *files) listed(q *initwire.FileList) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	flags := unix.O_PATH
	// The last name of the path is then taken as it is, even if it is a link.
	if q.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	top, err := openPath(path, flags)
	if err != nil {
		return blame(q.Path, err)
	}
	defer func() { _ = unix.Close(top) }()
	var st unix.Stat_t
	if err := unix.Fstat(top, &st); err != nil {
		return blame(q.Path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return f.say(f.entry(top, "", q.Path, &st))
	}
	// A limit of 0 or less means none.
	l := &lister{f: f, base: q.Path, left: q.Limit}
	if q.Limit <= 0 {
		l.left = -1
	}
	w := walk{top: top, base: q.Path, flat: !q.Recursive, noHidden: q.NoHidden, visit: l}
	return w.run(&st)
}

// lister sends an entry for all that a walk finds, up to a limit; a negative one is none.
type lister struct {
	f *files
	// base is the path that the client gave, which the paths of entries begin with.
	base string
	// left is how many entries may still be sent.
	left int64
}

// other sends an entry that is no directory.
func (l *lister) other(dir int, below, name string, st *unix.Stat_t) error {
	return l.say(l.f.entry(dir, name, joined(l.base, below), st))
}

// directory sends an entry of a directory, with what is wrong with it. The top has none.
func (l *lister) directory(below string, st *unix.Stat_t, problem error) error {
	if below == "" {
		return problem
	}
	e := l.f.entry(-1, "", joined(l.base, below), st)
	// The entry is sent all the same, with the reason why nothing of it comes.
	if wrong, ok := problem.(*initwire.FileError); ok {
		e.Problem = wrong.Message
	}
	return l.say(e)
}

// say sends an entry, unless there were enough.
func (l *lister) say(e *initwire.FileEntry) error {
	if l.left == 0 {
		return errEnough
	}
	l.left--
	return l.f.say(e)
}

// entry describes a file. dir and name are needed only for a link, to read its target. name is
// empty if dir is the link itself.
func (f *files) entry(dir int, name, path string, st *unix.Stat_t) *initwire.FileEntry {
	e := &initwire.FileEntry{
		Path: path, Name: lastName(path), Type: letter(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777,
		ModTime: st.Mtim.Nano(), UID: int(st.Uid), GID: int(st.Gid),
	}
	if f.names == nil {
		f.names = account.ReadNames()
	}
	e.User, e.Group = f.names.Users[e.UID], f.names.Groups[e.GID]
	if e.Type == initwire.TypeLink && dir >= 0 {
		e.Target, _ = readLink(dir, name) // gone meanwhile: a link to nowhere
	}
	return e
}

// letter is the letter of a type of file.
func letter(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return initwire.TypeDirectory
	// A link is told as such, wherever it leads.
	case unix.S_IFLNK:
		return initwire.TypeLink
	case unix.S_IFIFO:
		return initwire.TypePipe
	case unix.S_IFSOCK:
		return initwire.TypeSocket
	case unix.S_IFBLK:
		return initwire.TypeBlock
	case unix.S_IFCHR:
		return initwire.TypeChar
	}
	return initwire.TypeFile
}

// lastName is the last name of a path. That of / is /.
func lastName(path string) string {
	trimmed := strings.TrimRight(path, "/")
	if trimmed == "" {
		return "/"
	}
	return trimmed[strings.LastIndexByte(trimmed, '/')+1:]
}

// joined is a path below another one.
func joined(base, below string) string {
	if strings.HasSuffix(base, "/") {
		return base + below
	}
	return base + "/" + below
}

// errEnough ends a walk before its end.
var errEnough = errorText("enough")

// errorText is an error that is a constant.
type errorText string

// Error is the text.
func (e errorText) Error() string { return string(e) }

// visitor is told what a walk finds. Its errors end the walk.
type visitor interface {
	// other is called for anything but a directory: name in dir, whose path from the top is below.
	other(dir int, below, name string, st *unix.Stat_t) error
	// directory is called before what is in it. below is empty for the top. A problem says why
	// nothing of it will come.
	directory(below string, st *unix.Stat_t, problem error) error
}

// walk goes through a tree: a directory, what is in it but directories, by name, then each
// directory in it.
//
// It has one directory open at a time and finds the next by its path from the top, without any
// link. So neither depth nor width of a tree costs descriptors, and a program that moves things
// about leads it nowhere else.
type walk struct {
	// top is opened by path only; it stays the caller's.
	top int
	// base is its path, for errors only.
	base string
	// flat: only what is in the top is visited, and directories in it come among the rest.
	flat bool
	// noHidden leaves out names that begin with a dot, but for the top.
	noHidden bool
	// visit is told of everything.
	visit visitor

	// pending are the directories that come next, the last one first.
	pending []pendingDirectory
	// size is how many bytes the paths of pending have together.
	size int
}

// pendingDirectory is a directory that a walk has still to go to.
type pendingDirectory struct {
	// below is its path from the top.
	below string
	// dev of the directory that it is in.
	dev uint64
}

// Bounds of a walk.
const (
	// maxPending bounds the paths of the directories that a walk has still to go to.
	maxPending = 8 << 20
	// namesAtOnce is how many names are sorted at once; in a larger directory only parts are in
	// order.
	namesAtOnce = 4096
)

// run visits the top, whose stat is given, and all below it.
func (w *walk) run(st *unix.Stat_t) error {
	w.pending = []pendingDirectory{{dev: st.Dev}}
	for len(w.pending) > 0 {
		last := len(w.pending) - 1
		// The last one is taken first, so that a tree is visited in order of its paths.
		next := w.pending[last]
		w.pending = w.pending[:last]
		w.size -= len(next.below)
		err := w.enter(next)
		if err == errEnough {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter visits a directory and what is in it.
func (w *walk) enter(d pendingDirectory) error {
	from := d.below
	if from == "" {
		from = "."
	}
	path := joined(w.base, d.below)
	place, err := openBelow(w.top, from, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, beneath)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
		return nil // it was one a moment ago
	default:
		return blame(path, err)
	}
	defer func() { _ = unix.Close(place) }()
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil {
		return blame(path, err)
	}
	// Only where another file system begins is it asked which one that is.
	if st.Dev != d.dev && madeUp(place) {
		return w.visit.directory(d.below, &st, wrong(initwire.FileInvalid, path, "what the kernel makes up is not gone through"))
	}
	// It is opened for reading only now, because opening it may be forbidden where looking is not.
	dir, err := openChecked(place, ".", unix.O_RDONLY|unix.O_DIRECTORY, beneath)
	if err != nil {
		return w.visit.directory(d.below, &st, blame(path, err))
	}
	defer func() { _ = unix.Close(dir) }()
	if err := w.visit.directory(d.below, &st, nil); err != nil {
		return err
	}
	return w.content(dir, d.below, st.Dev)
}

// content visits what is in a directory, and notes the directories in it for later.
func (w *walk) content(dir int, below string, dev uint64) error {
	names := nameReader{dir: dir}
	for {
		some, err := names.next(namesAtOnce)
		if err != nil {
			return blame(joined(w.base, below), err)
		}
		if len(some) == 0 {
			return nil
		}
		first := len(w.pending)
		for _, name := range some {
			if w.noHidden && name[0] == '.' {
				continue
			}
			path := name
			if below != "" {
				path = below + "/" + name
			}
			var st unix.Stat_t
			// What has gone since it was listed is left out.
			err := statAt(dir, name, &st)
			switch {
			case err == unix.ENOENT:
				continue
			case err != nil:
				return blame(joined(w.base, path), err)
			case st.Mode&unix.S_IFMT != unix.S_IFDIR:
				err = w.visit.other(dir, path, name, &st)
			case w.flat:
				err = w.visit.directory(path, &st, nil)
			default:
				w.pending = append(w.pending, pendingDirectory{path, dev})
				w.size += len(path)
			}
			if err != nil {
				return err
			}
			if w.size > maxPending {
				return wrong(initwire.FileTooLarge, joined(w.base, below), "has too many directories in it to remember them all")
			}
		}
		slices.Reverse(w.pending[first:]) // the last one is taken first
	}
}

// madeUp reports whether the kernel makes up what is in a file system: there is no end of that.
func madeUp(dir int) bool {
	var fs unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(dir, &fs) }); err != nil {
		return true
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC, unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true
	}
	return false
}

// nameReader reads the names in a directory.
type nameReader struct {
	// dir is a descriptor of the directory, open for reading.
	dir int
	// buf is what the kernel fills with names, and over says that there are no more.
	buf  []byte
	over bool
}

// next are some more names, about as many as are asked for, in order. There are none at the end.
func (r *nameReader) next(about int) ([]string, error) {
	if r.buf == nil {
		r.buf = make([]byte, 16<<10)
	}
	var names []string
	for !r.over && len(names) < about {
		n := 0
		err := ignoringEINTR(func() (err error) {
			n, err = unix.ReadDirent(r.dir, r.buf)
			return err
		})
		if err == unix.ENOENT {
			n, err = 0, nil // it was removed while it was open: nothing is in it
		}
		if err != nil {
			return nil, err
		}
		r.over = n == 0
		_, _, names = unix.ParseDirent(r.buf[:n], -1, names)
	}
	// The kernel has names in any order.
	slices.Sort(names)
	return names, nil
}
