package source

import (
	"bytes"
	"context"
	"errors"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// smallTries is how often a manifest or a configuration is asked for.
const smallTries = 3

// Resolver gets from a source what an image is made of, but for its layers.
type Resolver struct {
	// Platform is what images are chosen for.
	Platform Platform
	// Pace is the first pause between tries.
	Pace time.Duration
}

// Try calls do again, a few times, while it fails because the outside is out of order.
func (r Resolver) Try(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == smallTries || !failure.Is(err, muster.FailureOutside) {
			return err
		}
		if err := pause(ctx, r.Pace, n, err); err != nil {
			return err
		}
	}
}

// Complete gets what a document leads to: the manifest for this platform, and its configuration.
func (r Resolver) Complete(ctx context.Context, src Source, doc Document) (*Content, error) {
	// An index leads to an image, or to another index.
	for n := 0; doc.mediaType.IsIndex(); n++ {
		if n == maxNesting {
			return nil, failure.Unusable("its index leads to an index, again and again")
		}
		d, err := choose(doc, r.Platform)
		if err != nil {
			return nil, err
		}
		err = r.Try(ctx, func() (err error) {
			doc, err = src.Document(ctx, d)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	config, err := r.configOf(ctx, src, doc)
	if err != nil {
		return nil, err
	}
	return NewContent(doc, config, r.Platform)
}

// configOf is the configuration that a manifest names.
func (r Resolver) configOf(ctx context.Context, src Source, doc Document) (config Document, err error) {
	m, err := readManifest(doc)
	if err != nil {
		return config, err
	}
	err = r.Try(ctx, func() (err error) {
		config, err = r.config(ctx, src, m.Config)
		return err
	})
	return config, err
}

// config reads a configuration and checks its digest.
func (r Resolver) config(ctx context.Context, src Source, d v1.Descriptor) (Document, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallAfter, failure.Outside("its configuration does not come"))
	defer cancel()
	body, err := src.Blob(ctx, d, 0)
	if err != nil {
		return Document{}, err
	}
	defer func() { _ = body.Close() }()
	data, err := readAll(body, d.Size, "configuration")
	if err != nil {
		if f := (*muster.Failure)(nil); errors.As(err, &f) {
			return Document{}, err
		}
		return Document{}, src.Broken(ctx, err)
	}
	h, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil || h != d.Digest {
		return Document{}, failure.Outside("its configuration does not have the digest %s", d.Digest)
	}
	return Document{Digest: h, mediaType: d.MediaType, Data: data}, nil
}
