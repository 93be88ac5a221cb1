package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/cmd/muster/internal/term"
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

// moved counts what is copied, and shows it on a terminal.
type moved struct {
	screen *term.Screen
	n      atomic.Int64

	mu    sync.Mutex
	what  string
	began time.Time
}

// begin is the next source.
func (m *moved) begin(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n.Store(0)
	m.what, m.began = what, time.Now()
}

func (m *moved) bytes() int64 { return m.n.Load() }

func (m *moved) reader(r io.Reader) io.Reader { return &countingReader{r, &m.n} }

type countingReader struct {
	io.Reader
	n *atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// show draws progress until it is stopped.
func (m *moved) show(ctx context.Context) (stop func()) {
	if !m.screen.HasBar() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer m.screen.SetBar("")
		ticker := time.NewTicker(showEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			m.mu.Lock()
			what, took, n := m.what, time.Since(m.began), m.n.Load()
			m.mu.Unlock()
			m.screen.SetBar(fmt.Sprintf("%s  %s  %s/s", what, muster.Bytes(n), muster.Bytes(float64(n)/max(took.Seconds(), 0.001))))
		}
	}()
	return func() {
		cancel()
		<-over
	}
}
