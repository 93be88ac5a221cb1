package source

import (
	"context"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Pushed is an image that was loaded on the server, as a source. The server sends what it is made
// of, each blob when it is asked for.
type Pushed struct {
	// Get waits for a blob. What it returns has the digest. An error is a failure, or that of ctx.
	Get func(ctx context.Context, digest string) (io.ReadSeekCloser, error)
}

// Document reads a manifest or an index.
func (p Pushed) Document(ctx context.Context, d v1.Descriptor) (Document, error) {
	f, err := p.Get(ctx, d.Digest.String())
	if err != nil {
		return Document{}, err
	}
	defer func() { _ = f.Close() }()
	data, err := readAll(f, maxManifest, "manifest")
	if err != nil {
		return Document{}, LocalError(err)
	}
	doc, err := newDocument(data, d.MediaType, d.Digest)
	return doc, LocalError(err)
}

// Blob opens a configuration or layer at an offset.
func (p Pushed) Blob(ctx context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	f, err := p.Get(ctx, d.Digest.String())
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, failure.Node("layer %s: %v", d.Digest, err)
	}
	return f, nil
}

// Broken is the failure of a read from the file of a blob.
func (p Pushed) Broken(_ context.Context, err error) error {
	return BrokenFile("the server's copy", err)
}

// Close does nothing: each blob is closed by its reader.
func (p Pushed) Close() {}
