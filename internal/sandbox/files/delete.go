package files

import (
	"strconv"

	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// delete removes a file, an empty directory, a tree, or what is in a directory.
func (f *files) delete(q *initwire.FileDelete) error {
	path, err := f.at(q.Path)
	if err != nil {
		return err
	}
	err = f.remove(q, path)
	if err == unix.ENOENT && q.MissingOK {
		return nil
	}
	return blame(q.Path, err)
}

// remove is delete for a path that is checked. Its errors are the kernel's.
func (f *files) remove(q *initwire.FileDelete, path string) error {
	// The directory itself stays, so it may also be one that a link leads to.
	if q.Contents {
		dir, err := openPath(path, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(dir) }()
		return removal(q.Path).empty(dir)
	}
	p, err := spotOf(unix.AT_FDCWD, path)
	if err != nil {
		return err
	}
	defer p.close()
	// The path ends in a dot, or is the root.
	if p.name == "." {
		return wrong(initwire.FileInvalid, q.Path, "has no name that could be deleted")
	}
	var st unix.Stat_t
	if err := p.stat(&st); err != nil {
		return err
	}
	// Anything but a directory goes with its name. A link is not followed.
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if p.directory {
			return unix.ENOTDIR
		}
		return unix.Unlinkat(p.dir, p.name, 0)
	}
	if q.Recursive {
		const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
		dir, err := openChecked(p.dir, p.name, flags, beneath|unix.RESOLVE_NO_XDEV)
		// What is mounted here is emptied only if the client says so.
		if err == unix.EXDEV && q.EmptyMount {
			dir, err = openChecked(p.dir, p.name, flags, beneath)
		}
		if err == unix.EXDEV {
			return mounted(q.Path)
		}
		if err != nil {
			return err
		}
		err = removal(q.Path).empty(dir)
		_ = unix.Close(dir)
		if err != nil {
			return err
		}
	}
	err = unix.Unlinkat(p.dir, p.name, unix.AT_REMOVEDIR)
	if err == unix.EBUSY && q.EmptyMount {
		return nil // a mount point; it is empty by now
	}
	return err
}

// Bounds of deleting a tree. A program may make it deeper, or fill it, while it is deleted.
const (
	// maxDepth is how many directories are open at once. What lies deeper is moved up first.
	maxDepth = 64
	// maxUnmoved is the depth for directories that cannot be moved, such as those of an image's
	// layers.
	maxUnmoved = 1024
	// maxMoves bounds how often that is done, and maxPasses how often a directory is looked
	// through.
	maxMoves  = 1 << 20
	maxPasses = 1000
)

// remover removes what is in one directory. It goes on after an error, so that as much as possible
// is removed.
type remover struct {
	// path is that of the directory, for errors only.
	path string
	// top is a descriptor of the directory, and dev its file system, which is not left.
	top int
	dev uint64
	// moves is how many directories were moved into the top.
	moves int
	// first is the first error. The rest is removed nevertheless.
	first error
}

// removal makes a remover. The path is for errors only.
func removal(path string) *remover { return &remover{path: path} }

// mounted is the error for a directory of another file system.
func mounted(path string) error {
	return wrong(initwire.FileBusy, path, "is where something is mounted, which is not entered")
}

// empty removes all that is in a directory, which stays open. It refuses the root of everything.
func (r *remover) empty(dir int) error {
	var st, root unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if err := unix.Stat("/", &root); err != nil {
		return err
	}
	// Whatever path led here, it must not be the root.
	if st.Dev == root.Dev && st.Ino == root.Ino {
		return wrong(initwire.FileInvalid, r.path, "is the root of everything, which is not emptied")
	}
	r.top, r.dev = dir, st.Dev
	r.sweep(dir, 0, r.path)
	return r.first
}

// sweep removes what is in a directory, until nothing is there or something cannot be removed. Some
// file systems leave out names when others are removed while they are listed, so it looks again
// until there are none.
func (r *remover) sweep(dir, depth int, path string) {
	for pass := 0; pass < maxPasses && r.moves < maxMoves; {
		moves := r.moves
		some, all, err := r.pass(dir, depth, path)
		if err != nil {
			r.note(path, err)
			return
		}
		// What was moved up is now in the top, perhaps where the pass had been already.
		movedUp := depth == 0 && r.moves > moves
		if !some || !all && !movedUp {
			return
		}
		if !movedUp {
			pass++
		}
	}
	r.note(path, wrong(initwire.FileBusy, path, "is being filled while it is emptied"))
}

// pass looks through a directory once. It reports whether something was there, and whether all of
// that is gone.
func (r *remover) pass(dir, depth int, path string) (some, all bool, err error) {
	// Each pass reads the directory from its beginning.
	if _, err := unix.Seek(dir, 0, unix.SEEK_SET); err != nil {
		return false, false, err
	}
	names := nameReader{dir: dir}
	all = true
	for {
		batch, err := names.next(namesAtOnce)
		if err != nil || len(batch) == 0 {
			return some, all, err
		}
		some = true
		for _, name := range batch {
			where := joined(path, name)
			if err := r.removeIn(dir, name, depth, where); err != nil {
				r.note(where, err)
				all = false
			}
		}
	}
}

// note remembers the first error.
func (r *remover) note(path string, err error) {
	if r.first == nil {
		r.first = blame(path, err)
	}
}

// removeIn removes a name in a directory, whatever it is.
func (r *remover) removeIn(dir int, name string, depth int, path string) error {
	// Most names are of files, so a file is what it is taken for first.
	err := gone(unix.Unlinkat(dir, name, 0))
	// The kernel has two words for "it is a directory", and one of them has another meaning too.
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	fd, e := openBelow(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, beneath|unix.RESOLVE_NO_XDEV)
	switch e {
	case nil:
		e = r.enter(dir, fd, name, depth, path)
		_ = unix.Close(fd)
		if e != nil {
			return e
		}
	case unix.EXDEV:
		return mounted(path)
	case unix.ENOTDIR, unix.ELOOP:
		return err
	}
	// Also without having been able to look into it: it may be empty.
	err = gone(unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
	if err == unix.ENOTEMPTY && e != nil {
		return e
	}
	return err
}

// gone is an error of removing, but for one: that somebody else was faster.
func gone(err error) error {
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// enter empties a directory in a directory, or moves it up if it lies too deep.
func (r *remover) enter(dir, fd int, name string, depth int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != r.dev {
		return mounted(path) // on a kernel that cannot tell when it opens
	}
	// One descriptor is open for each level on the way down, and there are not many.
	if depth >= maxDepth {
		err := r.moveUp(dir, name)
		if err != unix.EXDEV || depth >= maxUnmoved {
			return err
		}
	}
	r.sweep(fd, depth+1, path)
	return nil
}

// moveUp moves a directory into the top, where a later pass finds it.
func (r *remover) moveUp(dir int, name string) error {
	for range 100 {
		r.moves++
		// The name has its place for a moment only.
		aside := ".muster-delete-" + strconv.Itoa(r.moves)
		// The name may be taken by what the program puts there. Then the next one is tried.
		err := unix.Renameat2(dir, name, r.top, aside, unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return err
		}
	}
	return unix.EEXIST
}
