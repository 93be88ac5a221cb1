package blob

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
)

// Config of a Store.
type Config struct {
	// URL of a bucket: s3://…, gs://…, azblob://… or file:///directory. Empty: Dir.
	URL string
	// Dir is a directory, made if it is missing.
	Dir string
	// Shared says that other servers write to the same directory.
	Shared bool
	// Open opens the bucket of a URL. It is nil in a program without the drivers of buckets.
	Open Opener
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
	bucket Bucket
	// dir is the bucket if it is a directory, or nil. Its blobs are deleted and counted by way of
	// their files.
	dir     *directory
	diskLow func() error
	logger  *slog.Logger
	used    atomic.Int64

	mu    sync.Mutex
	asked map[string]time.Time // uploads that somebody was told are here
	going map[string]bool      // uploads that are being deleted
	// opened is when this store began to know who was promised what.
	opened time.Time
}

// Info is what is known of a blob without reading it.
type Info struct {
	Key      string
	Size     int64
	Modified time.Time
}

// New opens the store. It does not speak to a bucket yet: see Check.
func New(c Config) (*Store, error) {
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
			if c.Open == nil {
				return nil, muster.Faultf(muster.FaultInvalid, "blob.url: this program was built without the drivers of %s buckets (build tag lean); run one that `make build` has made", u.Scheme)
			}
			b, err := c.Open(context.Background(), c.URL)
			if err != nil {
				return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "blob.url: bucket " + u.Scheme + "://" + u.Host, Err: err}
			}
			return newStore(c, b), nil
		default:
			return nil, muster.Faultf(muster.FaultInvalid, "blob.url: scheme %.20q is none of file, s3, gs, azblob", u.Scheme)
		}
	}
	if dir == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "blob store: neither a directory nor a URL is given")
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("blob directory %s: %w", dir, err)
	}
	d, err := openDirectory(root, c.Shared)
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "blob directory " + root, Err: err}
	}
	s := newStore(c, d)
	s.dir = d
	return s, nil
}

func newStore(c Config, b Bucket) *Store {
	s := &Store{
		bucket: b, diskLow: c.DiskLow, logger: c.Logger, opened: time.Now(),
		asked: map[string]time.Time{}, going: map[string]bool{},
	}
	if s.diskLow == nil {
		s.diskLow = func() error { return nil }
	}
	s.logger = cmp.Or(s.logger, slog.New(slog.DiscardHandler))
	return s
}

// Close releases the connections of a bucket.
func (s *Store) Close() error { return s.bucket.Close() }

// Check asks whether the bucket can be reached with the credentials that it has.
func (s *Store) Check(ctx context.Context) error {
	if err := s.bucket.Check(ctx); err != nil {
		return s.fault(ctx, "bucket", err)
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
	var before int64
	if info, err := s.Stat(ctx, key); err == nil {
		before = info.Size
	} else if !muster.IsKind(err, muster.FaultNotFound) {
		return 0, err
	}
	src := &source{r: r, verify: verify}
	err := s.bucket.Put(ctx, key, src)
	switch {
	case src.err != nil:
		return 0, fmt.Errorf("blob %s: %w", key, src.err)
	case src.refused != nil:
		return 0, s.fault(ctx, "blob "+key, src.refused)
	case err != nil:
		return 0, s.fault(ctx, "blob "+key, err)
	}
	s.used.Add(src.n - before)
	return src.n, nil
}

// source is what a Put reads. It counts the bytes and asks verify at the end.
type source struct {
	r      io.Reader
	verify func() error
	n      int64
	// err is an error of r, refused one of verify: neither is the store's.
	err, refused error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	switch {
	case err == io.EOF && s.verify != nil:
		if s.refused = s.verify(); s.refused != nil {
			err = s.refused
		}
	case err != nil && err != io.EOF:
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
	r, err := s.bucket.Open(ctx, key, offset)
	if err != nil {
		return nil, s.fault(ctx, "blob "+key, err)
	}
	return &reader{ReadCloser: r, s: s, ctx: ctx, key: key}, nil
}

// reader turns what a driver says into faults.
type reader struct {
	io.ReadCloser
	s   *Store
	ctx context.Context
	key string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = r.s.fault(r.ctx, "blob "+r.key, err)
	}
	return n, err
}

// Stat tells size and time of a blob.
func (s *Store) Stat(ctx context.Context, key string) (Info, error) {
	if err := checkKey(key); err != nil {
		return Info{}, err
	}
	i, err := s.bucket.Stat(ctx, key)
	if err != nil {
		return Info{}, s.fault(ctx, "blob "+key, err)
	}
	return i, nil
}
