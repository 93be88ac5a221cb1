package transfer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// packer makes a tar archive of a file or a tree on this host.
type packer struct {
	// root is what is packed.
	root string
	// follow says that root is a link, and what it leads to is meant.
	follow bool
	// name is what root is called in the archive; "" for what is in it.
	name string
	// owners keeps owners. Otherwise all belongs to whoever unpacks: ids of this host mean nothing
	// in a sandbox.
	owners bool
	// skipped is what was left out, and why; a few of them.
	skipped []string
	left    int // all of them
}

// pack writes the archive. Its order is that of the names, so two archives of one tree are alike.
func (p *packer) pack(w io.Writer) error {
	root := p.root
	if p.follow {
		// Only root's link is followed, not those below it: they may lead anywhere.
		real, err := filepath.EvalSymlinks(root)
		if err != nil {
			return err
		}
		root = real
	}
	t := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name := path.Join(p.name, filepath.ToSlash(rel))
		// What is in the directory has no entry for the directory itself.
		if name == "." {
			return nil
		}
		return p.entry(t, file, name, d)
	})
	if err != nil {
		return err
	}
	return t.Close()
}

// entry writes one file, directory or link. Sockets, pipes and devices are left out: in a copy they
// would be of no use.
func (p *packer) entry(t *tar.Writer, file, name string, d fs.DirEntry) error {
	switch {
	case d.Type().IsRegular():
		return p.file(t, file, name)
	case d.IsDir(), d.Type()&fs.ModeSymlink != 0:
	default:
		p.left++
		if len(p.skipped) < maxSkipped {
			p.skipped = append(p.skipped, fmt.Sprintf("%s is left out: it is neither file, directory nor link", file))
		}
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	return p.header(t, info, name, link)
}

// header writes the header of an entry. The format is PAX, which has times in fractions of a second
// and names of any length.
func (p *packer) header(t *tar.Writer, info fs.FileInfo, name, link string) error {
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	// Other formats cut times to seconds.
	h.Format = tar.FormatPAX
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if !p.owners {
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	}
	return t.WriteHeader(h)
}

// file writes a regular file. It is opened before its size is asked, and must have as many bytes as
// that: a header that says another number breaks the whole archive.
func (p *packer) file(t *tar.Writer, file, name string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: it was another kind of file a moment ago", file)
	}
	if err := p.header(t, info, name, ""); err != nil {
		return err
	}
	if _, err := io.CopyN(t, f, info.Size()); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: it became shorter while it was read", file)
		}
		return err
	}
	return nil
}
