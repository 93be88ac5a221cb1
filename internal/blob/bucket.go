package blob

import (
	"context"
	"io"

	"github.com/musterhq/muster"
)

// Bucket is where the blobs of a Store are: a directory, or a bucket of a cloud. All methods may be
// called at once. The Store has checked keys and prefixes, and makes faults of errors by Kind.
type Bucket interface {
	// Check returns an error if the bucket cannot be reached with the credentials that it has.
	Check(ctx context.Context) error
	// Put stores what r yields up to its end, in place of what was there. After an error, one of the
	// reader included, what was there is unchanged.
	Put(ctx context.Context, key string, r io.Reader) error
	// Open reads a blob from an offset on. An offset at or past the end reads nothing.
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	// Stat returns size and time of a blob.
	Stat(ctx context.Context, key string) (Info, error)
	// List calls fn for every blob under a prefix ("": all), in no order that counts.
	List(ctx context.Context, prefix string, fn func(Info) error) error
	// Delete deletes one blob.
	Delete(ctx context.Context, key string) error
	// Close releases connections.
	Close() error
	// Kind returns the kind of an error of the methods above.
	Kind(err error) muster.FaultKind
}

// Opener opens the bucket of a URL: s3://…, gs://… or azblob://….
type Opener func(ctx context.Context, url string) (Bucket, error)
