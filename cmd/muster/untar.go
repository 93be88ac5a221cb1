package main

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
)

// untar unpacks an archive that comes from untrusted ground. Nothing in it can
// reach outside of root: not by names, nor by links that it made before.
type untar struct {
	root *os.Root
	// rename, if set, gives entries and what hard links name another name; "" leaves it out.
	rename  func(name string) string
	files   int
	skipped []string // what was left out, and why
	folders []folder
}

// folder gets its permissions and time at the end: it may forbid writing into itself.
type folder struct {
	name string
	mode fs.FileMode
	time time.Time
}

// maxSkipped bounds what is told of what was left out.
const maxSkipped = 20

func (u *untar) skip(format string, args ...any) {
	if len(u.skipped) < maxSkipped {
		u.skipped = append(u.skipped, fmt.Sprintf(format, args...))
	}
}

func (u *untar) unpack(r io.Reader) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return err
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return fmt.Errorf("the archive has the name %q, which leaves the folder; nothing more of it is unpacked", h.Name)
		}
		if u.rename != nil {
			if name = u.rename(name); name != "" && !filepath.IsLocal(filepath.FromSlash(name)) {
				return fmt.Errorf("the name %q leaves the folder", name)
			}
		}
		if name == "." || name == "" {
			continue
		}
		if err := u.entry(t, h, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func (u *untar) entry(t *tar.Reader, h *tar.Header, name string) error {
	mode := h.FileInfo().Mode().Perm() // no setuid, no sticky: it was not ours
	if h.Typeflag == tar.TypeDir {
		if err := u.root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		u.folders = append(u.folders, folder{name, mode, h.ModTime})
		return nil
	}
	if parent := path.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(t, name, mode, h.ModTime)
	case tar.TypeSymlink:
		// It could not lead us out, but whoever opens it later.
		to := path.Join(path.Dir(name), h.Linkname)
		if path.IsAbs(h.Linkname) || !filepath.IsLocal(filepath.FromSlash(to)) {
			u.skip("%s is left out: it is a link to %s, outside of what was kept", name, h.Linkname)
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		u.files++
		return u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		from := path.Clean(strings.TrimPrefix(h.Linkname, "./"))
		if u.rename != nil && filepath.IsLocal(filepath.FromSlash(from)) {
			from = u.rename(from)
		}
		if !filepath.IsLocal(filepath.FromSlash(from)) {
			u.skip("%s is left out: it is a link to %s, outside of what was kept", name, h.Linkname)
			return nil
		}
		if err := u.clear(name); err != nil {
			return err
		}
		u.files++
		return u.root.Link(from, name)
	}
	u.skip("%s is left out: it is neither file, directory nor link", name)
	return nil
}

// clear makes room for a file: what was there is replaced, unless it is a directory with something in it.
func (u *untar) clear(name string) error {
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// file is made under another name, so that none is ever there in part under its own.
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

// create makes a file of no name that anybody would look for.
func (u *untar) create(folder string) (string, *os.File, error) {
	for try := 0; ; try++ {
		name := path.Join(folder, fmt.Sprintf(".muster-%08x.partial", rand.Uint32()))
		f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil || !errors.Is(err, fs.ErrExist) || try == 10 {
			return name, f, err
		}
	}
}

// settle gives a file its own name. What has it is replaced, but for a directory with something in it.
func (u *untar) settle(partial, name string) error {
	if info, err := u.root.Lstat(name); err == nil && info.IsDir() {
		if err := u.clear(name); err != nil {
			return err
		}
	}
	return u.root.Rename(partial, name)
}

// finish gives folders their permissions and times, inner ones first.
func (u *untar) finish() error {
	for i := len(u.folders) - 1; i >= 0; i-- {
		d := u.folders[i]
		if err := u.root.Chmod(d.name, d.mode|0o700); err != nil { // its owner must be able to remove it
			return fmt.Errorf("%s: %w", d.name, err)
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}
