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

// packer makes a tar stream of a file or tree here.
type packer struct {
	root    string
	follow  bool   // root is a link: what it leads to is meant
	name    string // what root is called in the archive; "" for what is in it
	owners  bool
	skipped []string
}

func (p *packer) pack(w io.Writer) error {
	root := p.root
	if p.follow {
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

func (p *packer) entry(t *tar.Writer, file, name string, d fs.DirEntry) error {
	switch {
	case d.Type().IsRegular():
		return p.file(t, file, name)
	case d.IsDir(), d.Type()&fs.ModeSymlink != 0:
	default:
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

func (p *packer) header(t *tar.Writer, info fs.FileInfo, name, link string) error {
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Format = tar.FormatPAX // whole times
	h.AccessTime, h.ChangeTime = time.Time{}, time.Time{}
	if !p.owners {
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	}
	return t.WriteHeader(h)
}

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
