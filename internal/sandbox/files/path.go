package files

import (
	"strconv"
	"strings"
	"syscall"

	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// How paths are followed.
const (
	// maxLinks is how many links one path may go through, as in the kernel.
	maxLinks = 40
	// beneath allows nothing but directories on the way, and never leads up.
	beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	// byLinks follows links, but for those of proc that lead to where no name leads.
	byLinks = unix.RESOLVE_NO_MAGICLINKS
)

// at is the path that a client means. A relative one is relative to the work directory.
func (f *files) at(path string) (string, error) {
	switch {
	case path == "":
		return "", wrong(initwire.FileInvalid, path, "the path is empty")
	case len(path) > initwire.MaxPath:
		return "", wrong(initwire.FileInvalid, path, "the path is longer than "+strconv.Itoa(initwire.MaxPath)+" bytes")
	case strings.IndexByte(path, 0) >= 0:
		return "", wrong(initwire.FileInvalid, path, "the path has a NUL in it")
	case path[0] != '/':
		return f.Work + "/" + path, nil
	}
	return path, nil
}

// openPath opens what a path leads to, for a client, and nothing of init's own.
func openPath(path string, flags int) (int, error) {
	return openChecked(unix.AT_FDCWD, path, flags, byLinks)
}

// openChecked is openBelow, but opens nothing of init's own.
func openChecked(dir int, path string, flags int, resolve uint64) (int, error) {
	fd, err := openBelow(dir, path, flags, resolve)
	if err != nil {
		return -1, err
	}
	if err := foreign(fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// foreign refuses what proc has of this process. Init may see its memory, its environment and what
// it has open, and nobody else may.
func foreign(fd int) error {
	var fs unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return err
	}
	// Only proc knows of processes.
	if fs.Type != unix.PROC_SUPER_MAGIC {
		return nil
	}
	buf := make([]byte, initwire.MaxPath+1)
	// The kernel tells the path by which an open file is known, whatever path led to it.
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf)
	if err != nil || own(string(buf[:n]), isThread) {
		return errOwn // or it cannot be told
	}
	return nil
}

// errOwn is the error of foreign.
const errOwn = errorText("is of the init of this sandbox, and shown to nobody")

// own reports whether a path of proc belongs to this process, by any of its threads, because each
// of them has a directory there. Other file systems may have numbers for names too. Where proc is
// mounted as usual, only the first name counts.
func own(path string, isThread func(id string) bool) bool {
	rest, usual := strings.CutPrefix(path, "/proc/")
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		if _, err := strconv.ParseUint(part, 10, 31); err == nil && isThread(part) {
			// The network and the mounts are what everybody inside sees.
			after := parts[i+1:]
			return len(after) == 0 || after[0] != "net" && after[0] != "mounts"
		}
		if usual {
			return false
		}
	}
	return false
}

// isThread reports whether this process has a thread of this id. If it cannot be told, it has.
func isThread(id string) bool {
	var st unix.Stat_t
	return unix.Lstat("/proc/self/task/"+id, &st) != unix.ENOENT
}

// openBelow is openat2. Where the kernel has none, it does the same by small steps.
func openBelow(dir int, path string, flags int, resolve uint64) (int, error) {
	// The kernel follows the path by itself, and holds to these rules on its way.
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	for range maxLinks {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
			continue
		case unix.ENOSYS, unix.EPERM:
			// An old kernel, or one behind a filter of system calls that has not heard of openat2.
			return openBySteps(dir, path, flags, resolve)
		case unix.EAGAIN:
			if flags&unix.O_NONBLOCK == 0 {
				continue // something was renamed meanwhile
			}
		}
		return -1, err
	}
	return -1, unix.EAGAIN
}

// openBySteps opens a path name by name, so that it sees every link before it is followed.
func openBySteps(dir int, path string, flags int, resolve uint64) (int, error) {
	if path == "" {
		return -1, unix.ENOENT
	}
	if path[0] == '/' {
		if resolve&unix.RESOLVE_BENEATH != 0 {
			return -1, unix.EXDEV
		}
		root, err := openAtFlags(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return -1, err
		}
		defer func() { _ = unix.Close(root) }()
		dir = root
	}
	// From here on each name is looked at before it is followed.
	s := steps{dir: dir, resolve: resolve}
	defer s.leave()
	return s.open(path, flags)
}

// steps is how far a walk along a path has come.
type steps struct {
	dir int
	// mine: dir is to be closed.
	mine bool
	// resolve are the rules, as openat2 has them. links is how many were followed.
	resolve uint64
	links   int
}

// leave closes the directory, if it is the walk's own.
func (s *steps) leave() {
	if s.mine {
		_ = unix.Close(s.dir)
	}
}

// enter goes on in a directory, which the walk owns from then on.
func (s *steps) enter(dir int) {
	s.leave()
	s.dir, s.mine = dir, true
}

// open walks along a path, and opens its last name.
func (s *steps) open(path string, flags int) (int, error) {
	for {
		name, rest, more := strings.Cut(strings.TrimLeft(path, "/"), "/")
		rest = strings.TrimLeft(rest, "/")
		if name == "" {
			name = "."
		}
		// Up is out of what is allowed, even where it would lead back into it.
		if name == ".." && s.resolve&unix.RESOLVE_BENEATH != 0 {
			return -1, unix.EXDEV
		}
		target, err := s.link(name)
		if err != nil {
			return -1, err
		}
		last := rest == ""
		if target != "" && !(last && !more && flags&unix.O_NOFOLLOW != 0) {
			if path, err = s.follow(target, rest, more); err != nil {
				return -1, err
			}
			continue
		}
		if last {
			if more {
				flags |= unix.O_DIRECTORY
			}
			return openAtFlags(s.dir, name, flags|unix.O_NOFOLLOW, 0o600)
		}
		next, err := openAtFlags(s.dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return -1, err
		}
		s.enter(next)
		path = rest
	}
}

// link is the target of a name that is a link, else empty.
func (s *steps) link(name string) (string, error) {
	target, err := readLink(s.dir, name)
	switch err {
	case nil:
		return target, nil
	case unix.EINVAL, unix.ENOENT:
		return "", nil
	}
	return "", err
}

// follow is the path that is left after a link was followed.
func (s *steps) follow(target, rest string, more bool) (string, error) {
	if s.links++; s.links > maxLinks || s.resolve&unix.RESOLVE_NO_SYMLINKS != 0 {
		return "", unix.ELOOP
	}
	// A link of proc may be one that leads past all names. Which ones do cannot be seen.
	if onProc(s.dir) {
		return "", unix.ELOOP
	}
	// An absolute target begins at the root of the sandbox.
	if target[0] == '/' {
		root, err := openAtFlags(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return "", err
		}
		s.enter(root)
	}
	if more {
		target += "/" + rest
	}
	if len(target) > initwire.MaxPath {
		return "", unix.ENAMETOOLONG
	}
	return target, nil
}

// onProc reports whether a directory is one of proc. If it cannot be told, it is.
func onProc(dir int) bool {
	var fs unix.Statfs_t
	err := ignoringEINTR(func() error {
		if dir == unix.AT_FDCWD {
			return unix.Statfs(".", &fs)
		}
		return unix.Fstatfs(dir, &fs)
	})
	return err != nil || fs.Type == unix.PROC_SUPER_MAGIC
}

// spot is a name in a directory that is open, whether or not anything is there.
type spot struct {
	// dir is a descriptor of the directory. name has no slash, and is "." for the directory itself.
	dir  int
	name string
	// directory: the path ends in a slash, so that only a directory can be meant.
	directory bool
}

// close closes the directory.
func (p spot) close() { _ = unix.Close(p.dir) }

// spotOf opens the directory that the last name of a path is in. It does not look at what has that
// name.
func spotOf(dir int, path string) (spot, error) {
	trimmed := strings.TrimRight(path, "/")
	p := spot{directory: trimmed != path}
	parent := "."
	if i := strings.LastIndexByte(trimmed, '/'); i >= 0 {
		parent, p.name = trimmed[:i+1], trimmed[i+1:]
	} else {
		p.name = trimmed
	}
	if p.name == "" || p.name == "." || p.name == ".." {
		// Such a name has no place of its own: what it means is a directory, by itself.
		parent, p.name, p.directory = path, ".", true
	}
	// The directory is opened by path only: whoever may not list it may know names in it.
	fd, err := openChecked(dir, parent, unix.O_PATH|unix.O_DIRECTORY, byLinks)
	p.dir = fd
	return p, err
}

// followed goes on to where a link leads, even if nothing is there. It closes p.
func (p spot) followed() (spot, error) {
	for range maxLinks {
		target, err := readLink(p.dir, p.name)
		switch {
		case err == unix.EINVAL || err == unix.ENOENT:
			return p, nil
		case err == nil && onProc(p.dir):
			err = unix.ELOOP
		}
		if err != nil {
			p.close()
			return p, err
		}
		next, err := spotOf(p.dir, target)
		p.close()
		if err != nil {
			return next, err
		}
		next.directory = next.directory || p.directory
		p = next
	}
	p.close()
	return p, unix.ELOOP
}

// stat tells what is there. It does not follow a link.
func (p spot) stat(st *unix.Stat_t) error { return statAt(p.dir, p.name, st) }

// statAt tells what a name in a directory is. It does not follow a link.
func statAt(dir int, name string, st *unix.Stat_t) error {
	return ignoringEINTR(func() error { return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

// readLink is where a link leads; EINVAL if it is none.
func readLink(dir int, name string) (string, error) {
	buf := make([]byte, initwire.MaxPath+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return "", unix.ENOENT
	}
	return string(buf[:n]), nil
}

// openAtFlags is openat, always closed on exec.
func openAtFlags(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = ignoringEINTR(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

// ignoringEINTR calls f again as long as a signal interrupts it.
func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}
