package unpack

import (
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// tree makes entries below one directory and never outside of it. It resolves names by hand, part
// by part: a link in a layer means a place in the layer, also when it is absolute or leads upwards,
// as it will inside the sandbox. Nobody else writes in the directory, so what was looked at stays
// as it was.
type tree struct {
	// dir is the directory, as an absolute path, and root a descriptor of it.
	dir  string
	root int
	// shift is added to the owners of directories that the layer did not name.
	shift int
	// opaqueAttr is the attribute of opaque directories.
	opaqueAttr string
	// full is asked when the disk is full: whether there is room now.
	full func() bool

	// asked is the directory that was entered last, which most often is the next one too. at is its
	// path without links, and fd its descriptor; -1: none.
	asked string
	at    string
	fd    int
	// opaque are directories that hide what lower layers have in them. kept counts their paths.
	opaque map[string]bool
	kept   kept
}

// Bounds of names.
const (
	// maxLinks is how many links one path may go through, as in the kernel.
	maxLinks = 40
	// maxPath is below PATH_MAX, because the directory of the layer comes before it.
	maxPath = 3500
)

// EntryError says what is wrong with an entry of a layer that can be unpacked nowhere.
type EntryError struct{ Why string }

// Error is Why.
func (e *EntryError) Error() string { return e.Why }

// evil makes an EntryError.
func evil(format string, args ...any) error { return &EntryError{fmt.Sprintf(format, args...)} }

// openTree opens a directory as a tree. The caller closes it.
func openTree(dir string, shift int, full func() bool) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &tree{dir: dir, root: fd, shift: shift, opaqueAttr: opaqueAttr, full: full, fd: -1, opaque: map[string]bool{}, kept: kept{most: maxNames}}, nil
}

// close closes its descriptors.
func (t *tree) close() {
	t.forget()
	_ = unix.Close(t.root)
}

// forget gives up the directory that was entered last, because something was removed, and it may be
// that.
func (t *tree) forget() {
	if t.fd >= 0 {
		_ = unix.Close(t.fd)
	}
	t.fd, t.asked, t.at = -1, "", ""
}

// retry calls do again as long as the disk is full and full has made room.
func (t *tree) retry(do func() error) error {
	for {
		err := do()
		if err == unix.EINTR {
			continue
		}
		if (err == unix.ENOSPC || err == unix.EDQUOT) && t.full() {
			continue
		}
		return err
	}
}

// enter answers a descriptor of the directory of a clean name, and its path without links. It makes
// missing directories if create is set. The descriptor stays the tree's.
func (t *tree) enter(dir string, create bool) (fd int, at string, err error) {
	if t.fd >= 0 && t.asked == dir {
		return t.fd, t.at, nil
	}
	at, err = t.resolve(dir, create)
	if err != nil {
		return -1, "", err
	}
	t.forget()
	fd, err = unix.Openat(t.root, dot(at), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "", fmt.Errorf("%s: %w", dir, err)
	}
	t.fd, t.asked, t.at = fd, dir, at
	return fd, at, nil
}

// dot names the root for calls that want a path.
func dot(at string) string {
	if at == "" {
		return "."
	}
	return at
}

// resolve follows a clean name to the directory that it means. No part of the answer is a link.
func (t *tree) resolve(dir string, create bool) (string, error) {
	at := ""
	rest := dir
	links := 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			// This comes from links only. Above the root is the root.
			at = parent(at)
			continue
		}
		next := path.Join(at, part)
		// Links may make a path as long as they like.
		if len(next) > maxPath {
			return "", evil("the path %s is too long", failure.Bounded(next))
		}
		var st unix.Stat_t
		err := unix.Fstatat(t.root, next, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == unix.ENOENT && create:
			err = t.makeDir(next)
		case err == unix.ENOENT:
			return "", evil("%s is not in this layer", failure.Bounded(next))
		case err != nil:
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			if links++; links > maxLinks {
				return "", evil("%s goes through too many links", failure.Bounded(dir))
			}
			var to string
			if to, err = readlink(t.root, next); err == nil {
				if len(to)+len(rest) > 2*maxPath {
					return "", evil("the path %s is too long", failure.Bounded(next))
				}
				if strings.HasPrefix(to, "/") {
					at = ""
				}
				// The target is followed from here, or from the root, like the rest of the name.
				rest = to + "/" + rest
				continue
			}
		case isWhiteout(&st) && create:
			// What was hidden is made anew: nothing of the old one shows in it.
			if err = t.remove(next); err == nil {
				err = t.makeDir(next)
			}
			if err == nil {
				err = t.hide(next)
			}
		default:
			return "", evil("%s is not a directory", failure.Bounded(next))
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", next, err)
		}
		at = next
	}
	return at, nil
}

// parent is the directory of a path, empty for the root.
func parent(at string) string {
	if i := strings.LastIndexByte(at, '/'); i >= 0 {
		return at[:i]
	}
	return ""
}

// isWhiteout reports whether this is a whiteout of the overlay file system.
func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// readlink is the target of a link, by its path below the root.
func readlink(root int, at string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(root, at, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// makeDir makes a directory that the layer did not name.
func (t *tree) makeDir(at string) error {
	err := t.retry(func() error { return unix.Mkdirat(t.root, at, 0o755) })
	if err == nil {
		err = unix.Fchmodat(t.root, at, 0o755, 0) // whatever the umask
	}
	if err == nil {
		err = unix.Fchownat(t.root, at, t.shift, t.shift, unix.AT_SYMLINK_NOFOLLOW)
	}
	return err
}

// remove deletes an entry and all below it.
func (t *tree) remove(at string) error {
	t.forget()
	for dir := range t.opaque {
		if dir == at || strings.HasPrefix(dir, at+"/") {
			delete(t.opaque, dir)
			t.kept.drop(dir)
		}
	}
	return os.RemoveAll(t.dir + "/" + at)
}

// hide makes a directory opaque: what directories of the same name in lower layers hold does not
// show in it.
func (t *tree) hide(at string) error {
	if t.opaque[at] {
		return nil
	}
	err := t.retry(func() error { return unix.Lsetxattr(t.path(at), t.opaqueAttr, []byte("y"), 0) })
	if err != nil {
		return fmt.Errorf("making %s opaque: %w", dot(at), err)
	}
	t.opaque[at] = true
	return t.kept.keep(at)
}

// path is a name below the root as an absolute one, for calls that know no descriptors.
func (t *tree) path(at string) string {
	if at == "" {
		return t.dir
	}
	return t.dir + "/" + at
}

// opaqueAttr is the attribute by which the overlay file system knows an opaque directory, and
// userOpaqueAttr that with its option userxattr.
const (
	opaqueAttr     = "trusted.overlay.opaque"
	userOpaqueAttr = "user.overlay.opaque"
)

// whiteout hides a name of lower layers. What this layer itself has there stays: a directory
// becomes opaque, and anything else hides what is below anyway.
func (t *tree) whiteout(dirFD int, dir, name string) error {
	err := t.retry(func() error { return unix.Mknodat(dirFD, name, unix.S_IFCHR, 0) })
	if err != unix.EEXIST {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dirFD, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return t.hide(path.Join(dir, name))
	}
	return nil
}

// clear removes what is in the way of an entry, unless both are directories. hidden says that there
// was a whiteout, so that a directory made there must hide what is below too.
func (t *tree) clear(dirFD int, at string, forDir bool) (exists, hidden bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(dirFD, path.Base(at), &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		return false, false, nil
	case err != nil:
		return false, false, err
	case forDir && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return true, false, nil
	}
	return false, isWhiteout(&st), t.remove(at)
}

// split is the directory and last part of a clean name.
func split(clean string) (dir, base string) {
	if i := strings.LastIndexByte(clean, '/'); i >= 0 {
		return clean[:i], clean[i+1:]
	}
	return "", clean
}
