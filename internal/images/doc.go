// Package images keeps the images that users load on the server, for nodes that have no registry.
// It reads a tar as docker save writes it, an OCI layout or a root file system, stores what the
// image is made of as uploads in the blob store, by digest, and proposes the fact that names it. It
// lists and removes images, and prunes those that nothing uses when the store is over its quota. It
// is the service behind every transport.
//
// It must never send anything to a node: the link does, when an agent asks for a blob. It must
// never hold a layer in memory or use a name of a tar as a path. internal/httpapi uses it;
// internal/server makes it, and has the reaper prune by it.
package images

// What the API's description says of the operations.
const (
	LoadDescription = "The body is a tar as `docker save` writes it, of an OCI layout, or of a root file system; it may be compressed. " +
		"Jobs that name an image that is loaded get it from the server, and ask no registry. Loading under a name that is loaded replaces that image. " +
		"The answer has the images that were loaded."
	RemoveDescription = "Jobs that name it ask a registry from then on. An image that a job or an environment uses which has not ended is not removed."
)
