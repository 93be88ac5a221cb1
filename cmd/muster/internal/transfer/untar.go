package transfer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/safetar"
)

// untar unpacks an archive that comes from untrusted ground. It writes the copy and nothing else.
// Names that leave the copy end it. No link is ever followed, neither one of this archive nor one
// that an earlier copy has left. Links are kept only if they lead to a place in the copy, wherever
// other links of it lead.
type untar struct {
	// root is the directory that top is in. It keeps every path below itself as well: the rules
	// here are the first of two walls.
	root *os.Root
	// top is the copy's own name in root, with / between its parts; "": the copy is all of root.
	top string
	// rename, if set, gives entries and what hard links name another name; "" leaves an entry out.
	rename func(name string) string
	// files counts the files and links that were written.
	files int
	// skipped is what was left out, and why; maxSkipped of them.
	skipped []string
	// left counts all of them.
	left int
	// folders are the directories of the archive.
	folders safetar.Directories
	// sure is the directory that was last found to have nothing but directories above it, so that
	// files side by side ask once.
	sure string
}

// maxSkipped bounds what is reported of what was left out: an archive may be full of it.
const maxSkipped = 20

// skip notes what was left out.
func (u *untar) skip(format string, args ...any) {
	u.left++
	if len(u.skipped) < maxSkipped {
		u.skipped = append(u.skipped, fmt.Sprintf(format, args...))
	}
}

// unpack unpacks an archive to its end. After an error a part of it is unpacked, but each file is
// whole.
func (u *untar) unpack(r io.Reader) error {
	u.folders.Set = u.settleFolder
	t := safetar.NewReader(r)
	for {
		e, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.folders.Finish()
		}
		// Muster's own archives have no such name, so the archive is hostile or broken.
		if wrong, ok := err.(safetar.Error); ok && wrong.Outside {
			return leaves(wrong.Name)
		}
		if err != nil {
			return err
		}
		name := u.name(e.Path)
		switch {
		case name == "":
			continue // the copy itself, or the caller does not want it
		case u.depth(name) < 0:
			return leaves(e.Name)
		}
		if err := u.entry(t, e, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// leaves is the error for a name outside of the copy.
func leaves(name string) error {
	return fmt.Errorf("the archive has the name %q, which leaves the folder; the rest is not unpacked", name)
}

// name is where in root an entry of this clean name belongs; "" if nowhere.
func (u *untar) name(clean string) string {
	if u.rename != nil {
		return u.rename(clean)
	}
	return clean
}

// depth is how many directories of the copy are above a name in root: 0 for the copy itself, or for
// what is in it if it has no name of its own; -1 if the name is not in the copy, or means something
// else on this system.
func (u *untar) depth(name string) int {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return -1
	}
	if u.top == "" {
		return strings.Count(name, "/")
	}
	if name == u.top {
		return 0
	}
	rest, ok := strings.CutPrefix(name, u.top+"/")
	if !ok {
		return -1
	}
	return 1 + strings.Count(rest, "/")
}

// entry unpacks one entry. The directories above it are made if the archive has none for them.
func (u *untar) entry(t io.Reader, e *safetar.Entry, name string) error {
	if e.Typeflag == tar.TypeDir {
		if err := u.directory(name); err != nil {
			return err
		}
		u.folders.Add(name, e)
		return nil
	}
	if parent := path.Dir(name); parent != "." {
		if err := u.directory(parent); err != nil {
			return err
		}
	}
	switch e.Typeflag {
	case tar.TypeReg:
		// Permissions are kept, but no setuid and no sticky bit: the file was somebody else's.
		return u.file(t, name, fs.FileMode(e.Mode).Perm(), e.ModTime)
	case tar.TypeSymlink:
		if !u.staysInside(name, e.Linkname) {
			u.skip("%s is left out: it is a link to %s, outside of the copy", name, e.Linkname)
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		u.files++
		return u.root.Symlink(e.Linkname, name)
	case tar.TypeLink:
		return u.hardLink(name, e)
	}
	u.skip("%s is left out: it is neither file, directory nor link", name)
	return nil
}

// staysInside reports whether a symbolic link can only lead to places in the copy. It judges by
// what the kernel will do, not by the words. ".." at the beginning goes up through directories that
// are no links, since none is followed; behind a name it may go up from wherever a link leads.
func (u *untar) staysInside(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	up, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if down {
				return false
			}
			up++
		default:
			down = true
		}
	}
	if u.top == "" {
		return up <= u.depth(name)
	}
	// The copy itself as a link leads to something beside it, wherever that is.
	return up < u.depth(name)
}

// hardLink makes another name for a file of the copy. A hard link to a symbolic link would be one
// that was never judged.
func (u *untar) hardLink(name string, e *safetar.Entry) error {
	from := u.name(e.Target)
	if e.Target == "" || from == "" || u.depth(from) < 0 {
		u.skip("%s is left out: it is a link to %s, outside of the copy", name, e.Linkname)
		return nil
	}
	if parent := path.Dir(from); parent != "." {
		if err := u.directory(parent); err != nil {
			return err
		}
	}
	info, err := u.root.Lstat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		u.skip("%s is left out: it is another name of %s, which is not a file", name, from)
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	u.files++
	return u.root.Link(from, name)
}

// directory makes a directory and those above it. What is there already must be a directory and no
// link: an earlier copy may have left a link that leads anywhere.
func (u *untar) directory(name string) error {
	if name == u.sure {
		return nil
	}
	above := ""
	for part := range strings.SplitSeq(name, "/") {
		above = path.Join(above, part)
		info, err := u.root.Lstat(above)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.root.Mkdir(above, 0o755); err != nil {
				return err
			}
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			return fmt.Errorf("%q is a symbolic link here, and nothing is written through links; remove it, or copy to another place", above)
		case !info.IsDir():
			return fmt.Errorf("%q exists and is not a directory; remove it, or copy to another place", above)
		}
	}
	u.sure = name
	return nil
}

// clear makes room for a file. What was there is replaced, unless it is a directory with something
// in it.
func (u *untar) clear(name string) error {
	u.sure = ""
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// file writes a file under another name first, and then gives it its own: under its own name none
// is ever there in part.
func (u *untar) file(r io.Reader, name string, mode fs.FileMode, modified time.Time) error {
	partial, f, err := u.create(path.Dir(name))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if e := f.Chmod(mode); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = u.root.Chtimes(partial, modified, modified)
	}
	if err == nil {
		err = u.settle(partial, name)
	}
	if err != nil {
		_ = u.root.Remove(partial)
		return err
	}
	u.files++
	return nil
}

// create makes a file of a name that nobody looks for. It tries a few names, for one may be taken.
func (u *untar) create(folder string) (string, *os.File, error) {
	for try := 0; ; try++ {
		name := path.Join(folder, fmt.Sprintf(".muster-%08x.partial", rand.Uint32()))
		// Nobody else may read it before it has its own permissions.
		f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil || !errors.Is(err, fs.ErrExist) || try == 10 {
			return name, f, err
		}
	}
}

// settle gives a file its own name. What has it is replaced, but for a directory with something in
// it.
func (u *untar) settle(partial, name string) error {
	if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
		if err := u.clear(name); err != nil {
			return err
		}
	}
	return u.root.Rename(partial, name)
}

// settleFolder gives a directory its permissions and time, unless a later entry has put something
// else in its place.
func (u *untar) settleFolder(name string, mode uint32, modified time.Time) error {
	if info, err := u.root.Lstat(name); err != nil || !info.IsDir() {
		return nil
	}
	// Its owner must be able to remove it.
	err := u.root.Chmod(name, fs.FileMode(mode).Perm()|0o700)
	if err == nil {
		err = u.root.Chtimes(name, modified, modified)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
