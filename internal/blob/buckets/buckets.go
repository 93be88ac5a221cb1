// Package buckets brings the drivers that a bucket URL may name, beside a
// directory: a program that links it can keep blobs in S3, Google Cloud Storage and Azure.
//
// Only cmd/muster imports it. It must never be linked into muster-node, nor
// into tests that do not need it: the SDKs are two thirds of the server's size and minutes of
// its first build.
package buckets

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://container
	_ "gocloud.dev/blob/gcsblob"   // gs://bucket
	_ "gocloud.dev/blob/s3blob"    // s3://bucket?region=…
	"gocloud.dev/gcerrors"

	"github.com/musterhq/muster"
	store "github.com/musterhq/muster/internal/blob"
)

// Open opens the bucket of a URL: s3://…, gs://… or azblob://….
func Open(ctx context.Context, url string) (store.Bucket, error) {
	b, err := blob.OpenBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	return bucket{b}, nil
}

// bucket is a bucket of Go Cloud.
type bucket struct{ b *blob.Bucket }

func (b bucket) Close() error { return b.b.Close() }

func (b bucket) Check(ctx context.Context) error {
	ok, err := b.b.IsAccessible(ctx)
	if err == nil && !ok {
		return muster.Faultf(muster.FaultNotFound, "bucket: not found, or not ours to see")
	}
	return err
}

func (b bucket) Put(ctx context.Context, key string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.b.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream", DisableContentTypeDetection: true})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		// A writer whose context has ended leaves nothing behind when closed.
		cancel()
		_ = w.Close()
		return err
	}
	return w.Close()
}

func (b bucket) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	r, err := b.b.NewRangeReader(ctx, key, offset, -1, nil)
	if err == nil {
		return r, nil
	}
	if offset > 0 {
		// Object stores refuse a range that begins at the end.
		if info, e := b.Stat(ctx, key); e == nil && offset >= info.Size {
			return io.NopCloser(strings.NewReader("")), nil
		}
	}
	return nil, err
}

func (b bucket) Stat(ctx context.Context, key string) (store.Info, error) {
	a, err := b.b.Attributes(ctx, key)
	if err != nil {
		return store.Info{}, err
	}
	return store.Info{Key: key, Size: a.Size, Modified: a.ModTime}, nil
}

func (b bucket) List(ctx context.Context, prefix string, fn func(store.Info) error) error {
	it := b.b.List(&blob.ListOptions{Prefix: prefix})
	for {
		o, err := it.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(store.Info{Key: o.Key, Size: o.Size, Modified: o.ModTime}); err != nil {
			return err
		}
	}
}

func (b bucket) Delete(ctx context.Context, key string) error { return b.b.Delete(ctx, key) }

func (b bucket) Kind(err error) muster.FaultKind {
	if errors.Is(err, os.ErrNotExist) {
		return muster.FaultNotFound
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return muster.FaultNotFound
	case gcerrors.PermissionDenied:
		return muster.FaultAuth
	case gcerrors.ResourceExhausted:
		return muster.FaultRateLimited
	case gcerrors.Unknown, gcerrors.DeadlineExceeded:
		return muster.FaultTransient
	}
	return muster.FaultInternal
}
