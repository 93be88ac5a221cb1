package source

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Kind says where an image comes from.
type Kind int

// Kinds of references.
const (
	// FromRegistry is NAME[:TAG] or NAME@DIGEST.
	FromRegistry Kind = iota
	// FromLayout is oci:PATH[:NAME], an OCI layout directory of this node.
	FromLayout
	// FromArchive is docker-archive:PATH[:NAME], a file of this node.
	FromArchive
	// FromServer is loaded:NAME@DIGEST, an image that was loaded on the server.
	FromServer
)

// Reference is a parsed image reference.
type Reference struct {
	Kind Kind
	// given is what the user wrote.
	given string
	// Canonical is the same text for all ways to write the same reference.
	Canonical string

	// repo, tag and Digest are of a registry. Digest comes instead of a tag.
	repo   name.Repository
	tag    string
	Digest *v1.Hash

	// Path is of a layout or archive. It is absolute.
	Path string
	// Name says which of the images there is meant; empty: the only one.
	Name string
}

// What references begin with, how long they may be, and where a name without a registry is.
const (
	layoutPrefix  = "oci:"
	archivePrefix = "docker-archive:"
	maxReference  = 1024
	hub           = "docker.io"
)

// repositoryPart is one part of a repository's name between slashes.
var repositoryPart = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$`)

// Parse reads a reference as a user of Docker would mean it. It fails for a text that no image can
// have.
func Parse(given string) (Reference, error) {
	r := Reference{given: given}
	switch {
	case given == "":
		return r, failure.Unusable("the image reference is empty")
	case len(given) > maxReference:
		return r, failure.Unusable("the image reference has %d characters, %d at most", len(given), maxReference)
	// References are shown to users and written to logs.
	case !utf8.ValidString(given), strings.IndexFunc(given, func(r rune) bool { return r <= ' ' || r == 0x7f }) >= 0:
		return r, failure.Unusable("image reference %q has characters that no image name has", given)
	}
	if rest, ok := strings.CutPrefix(given, layoutPrefix); ok {
		r.Kind = FromLayout
		return r.local(layoutPrefix, rest)
	}
	if rest, ok := strings.CutPrefix(given, archivePrefix); ok {
		r.Kind = FromArchive
		return r.local(archivePrefix, rest)
	}
	if rest, ok := strings.CutPrefix(given, muster.LoadedImage); ok {
		return r.loaded(rest)
	}
	return r.remote()
}

// Repository is the full name of the repository of a reference to a registry, as
// docker.io/library/web.
func (r Reference) Repository() string {
	before, _, _ := strings.Cut(r.Canonical, "@")
	return strings.TrimSuffix(before, ":"+r.tag)
}

// loaded splits NAME@DIGEST. The canonical text is that of the name alone: for users it is the same
// image.
func (r Reference) loaded(rest string) (Reference, error) {
	at := max(strings.LastIndexByte(rest, '@'), 0)
	p, err := parseRemote(rest[:at])
	if err != nil {
		return r, err
	}
	h, err := v1.NewHash(strings.TrimPrefix(rest[at:], "@"))
	if err != nil || h.Algorithm != "sha256" || p.Digest != nil {
		return r, failure.Unusable("image reference %q is malformed: it is %sNAME@sha256:DIGEST", r.given, muster.LoadedImage)
	}
	r.Kind, r.Digest, r.Canonical = FromServer, &h, p.Canonical
	return r, nil
}

// local splits PATH[:NAME]. The path ends at the first colon, because names have colons.
func (r Reference) local(prefix, rest string) (Reference, error) {
	path, which, named := strings.Cut(rest, ":")
	switch {
	case !filepath.IsAbs(path):
		return r, failure.Unusable("%s%s: the path after %s must be absolute", prefix, rest, prefix)
	case named && which == "":
		return r, failure.Unusable("%s%s: nothing follows the last colon", prefix, rest)
	}
	r.Path, r.Name = filepath.Clean(path), which
	if r.Kind == FromArchive && which != "" {
		n, err := parseRemote(which)
		if err != nil || n.Digest != nil {
			return r, failure.Unusable("%s%s: %q is not the name of an image", prefix, rest, which)
		}
		r.Name = n.Canonical
	}
	r.Canonical = prefix + r.Path
	if r.Name != "" {
		r.Canonical += ":" + r.Name
	}
	return r, nil
}

// remote reads a reference to a registry.
func (r Reference) remote() (Reference, error) {
	p, err := parseRemote(r.given)
	if err != nil {
		return r, err
	}
	p.given = r.given
	return p, nil
}

// parseRemote is remote for a text alone.
func parseRemote(s string) (Reference, error) {
	r := Reference{Kind: FromRegistry, given: s}
	if strings.Contains(s, "://") {
		return r, failure.Unusable("image reference %q is a URL: leave out the part before the registry's name", s)
	}
	ref, err := name.ParseReference(s)
	if err != nil {
		return r, failure.Unusable("image reference %q is malformed: it is [REGISTRY/]NAME[:TAG] or [REGISTRY/]NAME@sha256:DIGEST, in lower case", s)
	}
	r.repo = ref.Context()
	for part := range strings.SplitSeq(r.repo.RepositoryStr(), "/") {
		if !repositoryPart.MatchString(part) {
			return r, failure.Unusable("image reference %q is malformed: %q cannot be a part of a repository's name", s, part)
		}
	}
	registry := r.repo.RegistryStr()
	if registry == name.DefaultRegistry {
		registry = hub
	}
	r.Canonical = registry + "/" + r.repo.RepositoryStr()
	switch ref := ref.(type) {
	case name.Digest:
		h, err := v1.NewHash(ref.DigestStr())
		if err != nil || h.Algorithm != "sha256" {
			return r, failure.Unusable("image reference %q: only sha256 digests can be checked here", s)
		}
		r.Digest = &h
		r.Canonical += "@" + h.String()
	case name.Tag:
		r.tag = ref.TagStr()
		r.Canonical += ":" + r.tag
	}
	return r, nil
}

// hostOf is the host of a registry's name, which may have a port.
func hostOf(registry string) string {
	return (&url.URL{Host: registry}).Hostname()
}

// addressOf reads a host that is an address. For any other it is not valid.
func addressOf(host string) netip.Addr {
	a, _ := netip.ParseAddr(host)
	return a.Unmap().WithZone("")
}

// isHere reports whether a host is this machine, by its name alone.
func isHere(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	a := addressOf(host)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || a.IsLoopback() || a.IsUnspecified()
}

// isForbidden reports whether no registry has this host, by its name alone. Among others these are
// hosts where clouds tell their machines secrets. When a connection is made, what a name resolves
// to is checked by the same destinations.
func isForbidden(d destinations.Allowed, host string) bool {
	if a := addressOf(host); a.IsValid() {
		return !isHere(host) && d.Refuses(a)
	}
	switch strings.ToLower(strings.TrimSuffix(host, ".")) {
	case "metadata.google.internal", "metadata":
		return true
	}
	return false
}
