package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
)

// strandedAfter is how long after its last byte a temporary file of another process counts as left behind. A
// client that sends nothing for a minute has been cut off by then.
const strandedAfter = time.Hour

// deleteTries bounds how often a directory is removed that writers fill meanwhile.
const deleteTries = 100

// directory is a Bucket of files. A key is a path below root: what checkKey accepts needs no
// escaping.
type directory struct {
	root   string
	opened time.Time
	// shared says that other processes write here as well.
	shared bool

	// mu guards the fields below.
	mu sync.Mutex
	// writing holds the temporary files that this process fills, and next numbers them.
	writing map[string]bool
	next    uint64
}

func openDirectory(root string, shared bool) (*directory, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	return &directory{root: root, opened: time.Now(), shared: shared, writing: map[string]bool{}}, nil
}

func (d *directory) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

func (d *directory) Close() error { return nil }

func (d *directory) Check(context.Context) error {
	_, err := os.Stat(d.root)
	return err
}

// Kind: a directory has no passing faults.
func (d *directory) Kind(err error) muster.FaultKind {
	if errors.Is(err, fs.ErrNotExist) {
		return muster.FaultNotFound
	}
	return muster.FaultInternal
}

// Put fills a temporary file beside the blob, or the rename could cross file systems.
func (d *directory) Put(ctx context.Context, key string, r io.Reader) error {
	path := d.path(key)
	temp := d.temp(path)
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.writing, temp)
	}()
	f, err := createIn(temp)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close(), ctx.Err())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	// The rename has to last as well. Directories made on the way are older than it in the file
	// system's journal.
	return atomicfile.SyncDir(filepath.Dir(path))
}

// temp returns the name of a new temporary file, which counts as being written from now on. The
// number in it makes it differ from those of other calls, the time from those of earlier processes.
func (d *directory) temp(path string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	name := fmt.Sprintf("%s.%x-%x%s", path, d.opened.UnixNano(), d.next, tempSuffix)
	d.writing[name] = true
	return name
}

// createIn creates a file, with the directories on the way. DeletePrefix may take them away in
// between.
func createIn(path string) (f *os.File, err error) {
	for range deleteTries {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return f, err
}

func (d *directory) Open(_ context.Context, key string, offset int64) (io.ReadCloser, error) {
	f, err := os.Open(d.path(key))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (d *directory) Stat(_ context.Context, key string) (Info, error) {
	info, err := os.Stat(d.path(key))
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, err
	}
	return Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

func (d *directory) List(ctx context.Context, prefix string, fn func(Info) error) error {
	return d.walk(ctx, prefix, func(_ string, i Info) error {
		if strings.HasSuffix(i.Key, tempSuffix) {
			return nil
		}
		return fn(i)
	})
}

// walk calls fn for every file under a prefix.
func (d *directory) walk(ctx context.Context, prefix string, fn func(path string, i Info) error) error {
	return filepath.WalkDir(d.path(prefix), func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || e.IsDir() {
			// What is deleted while it is listed is no longer listed.
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(d.root, path)
		if err != nil {
			return err
		}
		return fn(path, Info{Key: filepath.ToSlash(rel), Size: fi.Size(), Modified: fi.ModTime()})
	})
}

func (d *directory) Delete(_ context.Context, key string) error { return os.Remove(d.path(key)) }

// deletePrefix removes a directory, and returns how many bytes its blobs had.
func (d *directory) deletePrefix(ctx context.Context, prefix string) (size int64, err error) {
	if err := d.List(ctx, prefix, func(i Info) error { size += i.Size; return nil }); err != nil {
		return 0, err
	}
	err = os.RemoveAll(d.path(prefix))
	for tries := 0; errors.Is(err, syscall.ENOTEMPTY) && tries < deleteTries; tries++ {
		// A late writer put something in between.
		err = os.RemoveAll(d.path(prefix))
	}
	return size, err
}

// removeStranded removes the temporary files that an earlier process left, and returns how many. In a shared
// directory another process may be writing them.
func (d *directory) removeStranded(ctx context.Context) (n int, err error) {
	before := d.opened
	if d.shared {
		before = before.Add(-strandedAfter)
	}
	err = d.walk(ctx, "", func(path string, i Info) error {
		if strings.HasSuffix(i.Key, tempSuffix) && i.Modified.Before(before) && !d.writes(path) && os.Remove(path) == nil {
			n++
		}
		return nil
	})
	return n, err
}

// writes reports whether this process is writing a temporary file. The file's time does not say so
// for sure, as the system's clock may have been set back since the store was opened.
func (d *directory) writes(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writing[path]
}
