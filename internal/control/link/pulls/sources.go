package pulls

import (
	"context"
	"io"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Granter makes pull credentials for images out of the server's own credentials. Its methods may be
// called concurrently.
type Granter interface {
	// Grant returns the right to pull one image for a member of a namespace, or sets Failure if there
	// is none. It may take as long as a registry takes. It may return the same answer again.
	Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant
	// Refused says that a node asks again although it was given this authorization. The registry
	// may have refused it, so Grant must not return it again.
	Refused(ref string, ns muster.Namespace, authorization string)
	// Scope stands for the credentials that a namespace has for an image: wire.Puller. It asks nobody.
	Scope(ref string, ns muster.Namespace) string
	// FullName returns the same name for all spellings of one reference.
	FullName(ref string) string
}

// ImageCache holds images that nodes get from the server instead of their registry. Its methods may
// be called concurrently.
type ImageCache interface {
	// Grant returns the right to get one image from the server for a member of a namespace, or sets
	// Failure. It is not ok for an image that the node pulls from its registry. It may take as long as
	// a registry takes.
	Grant(ctx context.Context, ref string, ns muster.Namespace) (g wire.PullGrant, ok bool)
	// Part reports whether a blob is part of an image that was granted for ref. It asks nobody.
	Part(ref, image, digest string) bool
	// Open opens such a blob. What is not in the cache is downloaded with the credentials of the
	// namespace, and read while it comes.
	Open(ctx context.Context, ref string, ns muster.Namespace, image, digest string) (io.ReadCloser, error)
}
