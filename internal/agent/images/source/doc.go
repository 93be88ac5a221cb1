// Package source is where images come from: registries, OCI layout directories, and archives as
// `docker save` writes them. It parses references, chooses the image for a platform, gets manifests
// and configurations, and reads layers, whose connections it opens again where they broke.
//
// It must never trust what it is given. Digests are checked while the bytes stream by, sizes and
// times are bounded, and a registry cannot send the node to an address that no registry uses. It
// must never print a credential, nor a URL, which may carry one; and of a local file that somebody
// named, nothing is told but that it is no image. It keeps nothing on the disk but the plain form
// of a compressed archive, in a file without a name.
//
// The image store uses it.
package source
