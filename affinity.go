package muster

import "strings"

// AffinityKey is a name for warmth: what a node has at hand that makes work of the
// same key start sooner there. Users name data sets and the like in a job's affinity; images
// have keys of their own, see ImageKey.
type AffinityKey string

// imageKeys begin the keys that are made of images. No key that a user writes begins so.
const imageKeys = "image:"

// MaxAffinityKey is how many bytes a user's key may have.
const MaxAffinityKey = 200

// ImageKey is the key of an image, the same for all ways to write one reference. An image that is named by
// its digest, or a digest alone ("sha256:…"), is known by that wherever it comes from.
func ImageKey(ref string) AffinityKey {
	if _, digest, ok := strings.Cut(ref, "@"); ok {
		return AffinityKey(imageKeys + digest)
	}
	if name := ImageName(ref); name != "" {
		return AffinityKey(imageKeys + name)
	}
	return AffinityKey(imageKeys + ref)
}

// ImageName is the full name of an image, with registry and tag, the same for all ways to write it. It is "" for a
// reference by digest, or to a file of a node.
func ImageName(ref string) string {
	if ref == "" || strings.Contains(ref, "@") || strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, "sha256:") ||
		strings.HasPrefix(ref, "oci:") || strings.HasPrefix(ref, "docker-archive:") || strings.HasPrefix(ref, LoadedImage) {
		return ""
	}
	registry, name, ok := strings.Cut(ref, "/")
	if !ok || !strings.ContainsAny(registry, ".:") && registry != "localhost" {
		registry, name = "docker.io", ref
	}
	if registry == "index.docker.io" {
		registry = "docker.io"
	}
	if registry == "docker.io" && !strings.Contains(name, "/") {
		name = "library/" + name
	}
	if !strings.Contains(name, ":") {
		name += ":latest"
	}
	return registry + "/" + name
}

// PublicScope is the scope of images that their registry shows to everybody. Others have the scope of the credentials
// that they are pulled with.
const PublicScope = "public"

// LoadedImage begins the reference by which a server tells an agent to get an image from the server: LoadedImage, the
// image's full name, @ and the digest of its manifest. Agents that do not know it refuse it as malformed, so that none
// asks a registry for the name instead.
const LoadedImage = "loaded:"

// IsImage reports whether the key is one of an image.
func (k AffinityKey) IsImage() bool { return strings.HasPrefix(string(k), imageKeys) }

// CheckAffinityKey says what is wrong with a key that a user wrote, in words that go after
// "affinity"; empty if nothing is.
func CheckAffinityKey(k string) string {
	switch {
	case len(k) > MaxAffinityKey:
		return "has more than 200 bytes"
	case AffinityKey(k).IsImage():
		return "begins with image:, as the keys that images have of themselves; call it something else"
	case strings.ContainsFunc(k, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "has a space, or a character outside of ASCII; write a name as dataset/imagenet-2012"
	}
	return ""
}
