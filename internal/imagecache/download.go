package imagecache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
)

const (
	// downloadsAtOnce is how many blobs are downloaded at a time. Others wait.
	downloadsAtOnce = 16
	// pieceSize is how many bytes are written at a time, and checkDiskEvery how many come between
	// two looks at the free disk.
	pieceSize      = 256 << 10
	checkDiskEvery = 8 << 20
)

// stats count what the cache does.
type stats struct{ hit, missed, fetched, served atomic.Int64 }

// Stats are what a cache has done since its start.
type Stats struct {
	// Hits are blobs that were here, or on their way, when a node asked. Misses are those that were
	// asked for at a registry.
	Hits, Misses int64
	// Fetched and Served are bytes that came from registries and went to nodes.
	Fetched, Served int64
	// Used is what the cache holds, in bytes.
	Used int64
}

// Stats are the counts until now.
func (c *Cache) Stats() Stats {
	return Stats{c.stats.hit.Load(), c.stats.missed.Load(), c.stats.fetched.Load(), c.stats.served.Load(), c.store.usage()}
}

// Part reports whether a blob is a part of an image that was granted for a reference by its digest.
// It asks nobody.
func (c *Cache) Part(ref, image, digest string) bool {
	_, of, h, err := parse(ref, image, digest)
	if err == nil {
		_, err = c.part(of, h)
	}
	return err == nil
}

func parse(ref, image, digest string) (r source.Reference, of imageKey, h v1.Hash, err error) {
	if r, err = source.Parse(ref); err != nil {
		return r, of, h, err
	}
	of.repo = repoOf(r.Canonical)
	if of.digest, err = v1.NewHash(image); err == nil {
		h, err = v1.NewHash(digest)
	}
	return r, of, h, err
}

// Open opens a part of an image that was granted for a namespace. What is not here is downloaded,
// once for all that open it, and read while it comes: the end of a blob comes only if it has its
// digest. The reader waits no longer than ctx.
func (c *Cache) Open(ctx context.Context, ref string, ns muster.Namespace, image, digest string) (io.ReadCloser, error) {
	r, of, h, err := parse(ref, image, digest)
	if err != nil {
		return nil, err
	}
	p, err := c.part(of, h)
	if err != nil {
		return nil, fmt.Errorf("image %s: %s: %w", r.Canonical, digest, err)
	}
	k := blobKey{of.repo, h}
	for {
		f, err := c.store.open(k)
		if err != nil {
			return nil, err
		}
		if f != nil {
			// Another image may have brought it: this one does not know yet what it names.
			if source.IsDocument(p) {
				if err := c.learn(ctx, of, h); err != nil {
					_ = f.Close()
					return nil, err
				}
			}
			c.stats.hit.Add(1)
			return &served{ReadCloser: f, c: c}, nil
		}
		d, mine, err := c.join(c.pulledFor(r, ns), of, k, p)
		if err != nil {
			return nil, err
		}
		in, err := d.reader(ctx)
		if err != nil {
			return nil, err
		}
		if in == nil {
			continue // it has just come
		}
		if !mine {
			c.stats.hit.Add(1)
		}
		return &served{ReadCloser: in, c: c}, nil
	}
}

// served counts what a node is sent.
type served struct {
	io.ReadCloser
	c *Cache
}

func (s *served) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.c.stats.served.Add(int64(n))
	return n, err
}

// download is a blob on its way.
type download struct {
	path string

	mu sync.Mutex
	// have is how many bytes are in the file; more is closed when there are more, or at the end.
	have  int64
	more  chan struct{}
	ended bool
	// err is why it failed; valid after the end.
	err error
}

// join returns the download of a blob: that which is under way, or a new one. It goes on when those
// who asked have left: others will ask, as a node that was lost is replaced.
func (c *Cache) join(r pulled, of imageKey, k blobKey, p v1.Descriptor) (d *download, mine bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.downloads[k]; d != nil {
		return d, false, nil
	}
	if c.closed {
		return nil, false, failure.Node("image cache: the server is stopping")
	}
	file, err := c.store.create(k)
	if err != nil {
		return nil, false, err
	}
	d = &download{path: file.Name(), more: make(chan struct{})}
	c.downloads[k] = d
	c.stats.missed.Add(1)
	c.running.Go(func() {
		err := c.download(d, file, r, of, k, p)
		_ = file.Close()
		if err != nil && c.life.Err() == nil {
			c.cfg.Logger.Warn("image not cached: a download failed", "image", r.Canonical, "digest", k.digest, "error", err)
			c.fail(r.key, err, failedFor)
		}
		c.mu.Lock()
		delete(c.downloads, k)
		c.mu.Unlock()
		d.end(err)
		// Only now: whoever finds no file must know why.
		if err != nil {
			_ = os.Remove(d.path)
		}
	})
	return d, true, nil
}

// download brings a blob into its place.
func (c *Cache) download(d *download, file *os.File, r pulled, of imageKey, k blobKey, p v1.Descriptor) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.life.Done():
		return context.Cause(c.life)
	}
	if err := c.cfg.DiskLow(); err != nil {
		return failure.Node("image cache: %v", err)
	}
	release, err := c.store.reserve(p.Size)
	if err != nil {
		return err
	}
	defer release()
	out := &filling{d: d, file: file, low: c.cfg.DiskLow}
	src := c.source(r)
	if source.IsDocument(p) {
		data, err := c.fetchDocument(c.life, src, of, p)
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		c.stats.fetched.Add(int64(len(data)))
	} else if err := c.fetchBlob(src, out, p); err != nil {
		return err
	}
	return c.store.land(k, file, p.Size)
}

// fetchBlob reads a configuration or a layer, over new connections where one breaks, and compares
// its digest.
func (c *Cache) fetchBlob(src *source.Registry, out *filling, p v1.Descriptor) error {
	var gauge source.Gauge
	t := source.NewTransfer(c.life, src, source.Layer{Descriptor: p}, &gauge, c.cfg.Logger, source.FirstPause)
	defer t.Close()
	n, err := io.CopyBuffer(out, struct{ io.Reader }{t}, make([]byte, pieceSize))
	c.stats.fetched.Add(n)
	if err == nil {
		err = t.Verify()
	}
	if errors.Is(err, source.ErrDigest) {
		return failure.Outside("the registry sends other bytes for %s than its digest says", p.Digest)
	}
	return failure.Naming(p.Digest.String(), err)
}

// filling writes the file of a download, and tells those who read it.
type filling struct {
	d         *download
	file      *os.File
	low       func() error
	unchecked int
}

func (w *filling) Write(p []byte) (int, error) {
	if w.unchecked += len(p); w.unchecked >= checkDiskEvery {
		w.unchecked = 0
		if err := w.low(); err != nil {
			return 0, failure.Node("image cache: %v", err)
		}
	}
	n, err := w.file.Write(p)
	if err != nil {
		return n, failure.Node("image cache: %v", err)
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.d.have += int64(n)
	close(w.d.more)
	w.d.more = make(chan struct{})
	return n, nil
}

// end tells those who read that nothing more comes.
func (d *download) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.ended = err, true
	close(d.more)
}

// reader reads a download from its begin while it comes. It is nil if the download has just come
// to its place.
func (d *download) reader(ctx context.Context) (io.ReadCloser, error) {
	f, err := os.Open(d.path)
	if err == nil {
		return &following{ctx: ctx, d: d, file: f}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err != nil:
		return nil, d.err
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	}
	return nil, failure.Node("image cache: %v", err)
}

// following is a reader of a download.
type following struct {
	ctx  context.Context
	d    *download
	file *os.File
	at   int64
}

// Read reads what is there, and waits if that is nothing.
func (f *following) Read(p []byte) (int, error) {
	for {
		f.d.mu.Lock()
		have, more, ended, err := f.d.have, f.d.more, f.d.ended, f.d.err
		f.d.mu.Unlock()
		switch left := have - f.at; {
		case ended && err != nil:
			return 0, err
		case left > 0:
			n, err := f.file.ReadAt(p[:min(int64(len(p)), left)], f.at)
			f.at += int64(n)
			return n, err
		case ended:
			return 0, io.EOF
		}
		select {
		case <-more:
		case <-f.ctx.Done():
			return 0, context.Cause(f.ctx)
		}
	}
}

// Close ends the reading. The download goes on.
func (f *following) Close() error { return f.file.Close() }
