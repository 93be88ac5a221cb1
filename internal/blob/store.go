package blob

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
)

// Config of a Store.
type Config struct {
	// URL of a bucket: s3://…, gs://…, azblob://… or file:///directory. Empty: Dir.
	URL string
	// Dir is a directory, made if it is missing.
	Dir string
	// DiskLow says why nothing more may be written now, or nil. It is asked
	// before an upload and during it. May be nil.
	DiskLow func() error
	Logger  *slog.Logger
}

// Store keeps blobs by key. All methods may be called at once. A blob is there
// whole or not at all, and survives a loss of power once Put has returned.
//
// Errors are *muster.Fault: not-found; invalid (a key or digest); disk-low; auth,
// rate-limited and transient from a bucket; internal. An error of the reader
// given to Put, and the end of a context, are returned as they are, wrapped.
type Store struct {
	bucket *blob.Bucket
	// dir is the directory behind the bucket, or "". Listing and deleting are
	// done on it directly: the driver would walk the whole tree once per page,
	// mis-order neighbours as a and a-b, and leave empty directories.
	dir     string
	diskLow func() error
	logger  *slog.Logger
	opened  time.Time
	used    atomic.Int64

	mu    sync.Mutex
	asked map[string]time.Time // uploads that somebody was told are here
	going map[string]bool      // uploads that are being deleted
	// opening counts the temporary files that are being made in the directory, writing has the paths of those that are made.
	opening int
	writing map[string]bool
}

// Info is what is known of a blob without reading it.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// New opens the store. It does not speak to a bucket yet: see Check.
func New(c Config) (*Store, error) {
	s := &Store{
		diskLow: c.DiskLow, logger: c.Logger, opened: time.Now(),
		asked: map[string]time.Time{}, going: map[string]bool{}, writing: map[string]bool{},
	}
	if s.diskLow == nil {
		s.diskLow = func() error { return nil }
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	dir := c.Dir
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil {
			// The parser's own message repeats the URL, which may hold a secret.
			return nil, muster.Faultf(muster.FaultInvalid, "blob.url is not a URL")
		}
		switch u.Scheme {
		case "file":
			if u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || !strings.HasPrefix(u.Path, "/") {
				return nil, muster.Faultf(muster.FaultInvalid, "blob.url: write a directory as file:///path, without host or query")
			}
			dir = filepath.FromSlash(u.Path)
		case "s3", "gs", "azblob":
			if !blob.DefaultURLMux().ValidBucketScheme(u.Scheme) {
				return nil, muster.Faultf(muster.FaultInvalid, "blob.url: this program was built without the drivers of %s buckets (build tag lean); run one that `make build` has made", u.Scheme)
			}
			if s.bucket, err = blob.OpenBucket(context.Background(), c.URL); err != nil {
				return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "blob.url: bucket " + u.Scheme + "://" + u.Host, Err: err}
			}
			return s, nil
		default:
			return nil, muster.Faultf(muster.FaultInvalid, "blob.url: scheme %.20q is none of file, s3, gs, azblob", u.Scheme)
		}
	}
	if dir == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "blob store: neither a directory nor a URL is given")
	}
	var err error
	if s.dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("blob directory %s: %w", dir, err)
	}
	s.bucket, err = fileblob.OpenBucket(s.dir, &fileblob.Options{
		CreateDir: true, DirFileMode: 0o700,
		// Beside the blob, or the rename could cross file systems.
		NoTempDir: true,
		Metadata:  fileblob.MetadataDontWrite,
	})
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "blob directory " + s.dir, Err: err}
	}
	return s, nil
}

// Close gives the connections of a bucket back.
func (s *Store) Close() error { return s.bucket.Close() }

// Check asks whether the bucket can be reached with the credentials at hand.
func (s *Store) Check(ctx context.Context) error {
	ok, err := s.bucket.IsAccessible(ctx)
	if err != nil {
		return s.fault(ctx, "bucket", err)
	}
	if !ok {
		return muster.Faultf(muster.FaultNotFound, "bucket: not found, or not ours to see")
	}
	return nil
}

// Put stores what r yields under a key, in place of what was there. It returns
// how many bytes were stored.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	return s.put(ctx, key, r, nil)
}

// put stores only if verify, asked after the last byte, says nil.
func (s *Store) put(ctx context.Context, key string, r io.Reader, verify func() error) (int64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	var before int64
	if info, err := s.Stat(ctx, key); err == nil {
		before = info.Size
	} else if !muster.IsKind(err, muster.FaultNotFound) {
		return 0, err
	}
	var file *os.File
	s.mu.Lock()
	s.opening++
	s.mu.Unlock()
	w, err := s.bucket.NewWriter(writing, key, &blob.WriterOptions{
		ContentType: "application/octet-stream", DisableContentTypeDetection: true,
		BeforeWrite: func(as func(any) bool) error {
			if s.dir != "" {
				as(&file)
			}
			return nil
		},
	})
	s.mu.Lock()
	s.opening--
	if file != nil {
		s.writing[file.Name()] = true
	}
	s.mu.Unlock()
	if file != nil {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.writing, file.Name())
		}()
	}
	if err != nil {
		return 0, s.fault(ctx, "blob "+key, err)
	}
	src := &source{r: r}
	n, err := io.Copy(w, src)
	if err == nil && verify != nil {
		err = verify()
	}
	if err == nil && file != nil {
		err = file.Sync()
	}
	if err != nil {
		// A writer whose context has ended leaves nothing behind when closed.
		cancel()
		_ = w.Close()
		if src.err != nil {
			return 0, fmt.Errorf("blob %s: %w", key, src.err)
		}
		return 0, s.fault(ctx, "blob "+key, err)
	}
	if err := w.Close(); err != nil {
		return 0, s.fault(ctx, "blob "+key, err)
	}
	if s.dir != "" {
		// The rename has to last as well. Directories made on the way are older
		// than it in the file system's journal.
		if err := atomicfile.SyncDir(filepath.Dir(s.file(key))); err != nil {
			return 0, s.fault(ctx, "blob "+key, err)
		}
	}
	s.used.Add(n - before)
	return n, nil
}

// source remembers that it was the reader that failed, not the store.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// Open reads a blob from an offset on. An offset at or past the end reads nothing.
func (s *Store) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, muster.Faultf(muster.FaultInvalid, "blob %s: offset %d is negative", key, offset)
	}
	r, err := s.bucket.NewRangeReader(ctx, key, offset, -1, nil)
	if err == nil {
		return &reader{r: r, s: s, ctx: ctx, key: key}, nil
	}
	if offset > 0 && s.dir == "" {
		// Object stores refuse a range that begins at the end.
		if info, e := s.Stat(ctx, key); e == nil && offset >= info.Size {
			return io.NopCloser(strings.NewReader("")), nil
		}
	}
	return nil, s.fault(ctx, "blob "+key, err)
}

// reader turns what a driver says into faults.
type reader struct {
	r   *blob.Reader
	s   *Store
	ctx context.Context
	key string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		err = r.s.fault(r.ctx, "blob "+r.key, err)
	}
	return n, err
}

func (r *reader) Close() error { return r.r.Close() }

// Stat tells size and time of a blob.
func (s *Store) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	a, err := s.bucket.Attributes(ctx, key)
	if err != nil {
		return Info{}, s.fault(ctx, "blob "+key, err)
	}
	return Info{Key: key, Size: a.Size, Modified: a.ModTime}, nil
}

// file is the path of a key in the directory. Keys have been checked: nothing
// in them is escaped by the driver.
func (s *Store) file(key string) string { return filepath.Join(s.dir, filepath.FromSlash(key)) }
