package source

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Platform is what an image must have been built for.
type Platform struct {
	// They are as Go and OCI call them. Variant may be empty.
	OS, Architecture, Variant string
}

// String is as "linux/arm64/v8".
func (p Platform) String() string {
	if p.Variant == "" {
		return p.OS + "/" + p.Architecture
	}
	return p.OS + "/" + p.Architecture + "/" + p.Variant
}

// Bounds of what an image may be made of.
const (
	// maxManifest and maxConfig are bytes of these documents.
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	// maxLayers is below the 500 that an overlay takes, because the names of the layers must fit
	// into a page of mount options.
	maxLayers = 240
	// maxNesting is how deep indexes may be in indexes.
	maxNesting = 3
)

// dockerZstdLayer is a media type that some tools write and that is not in the library's list.
const dockerZstdLayer types.MediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"

// Document is a manifest or an index as it is stored, with its digest.
type Document struct {
	Digest v1.Hash
	// mediaType is what the document says of itself, or else what its source said.
	mediaType types.MediaType
	Data      []byte
}

// Source is where an image comes from. A failure of class outside may pass when the call is made
// again. Methods may be called from many goroutines.
type Source interface {
	// Document gives a manifest or index. Its bytes have that digest, or it is a failure.
	Document(ctx context.Context, d v1.Descriptor) (Document, error)
	// Blob opens a configuration or layer at an offset. What it gives is not checked.
	Blob(ctx context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error)
	// Broken says what an error in the middle of a blob means.
	Broken(ctx context.Context, err error) error
	// Close is called when its image is on this node, or cannot be had.
	Close()
}

// newDocument checks what a source gave. want is empty if it was asked for by tag.
func newDocument(data []byte, mediaType types.MediaType, want v1.Hash) (Document, error) {
	// The digest is of the bytes as they came, before anything in them is believed.
	sum := sha256.Sum256(data)
	d := Document{Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, mediaType: mediaType, Data: data}
	if want != (v1.Hash{}) && want != d.Digest {
		return d, failure.Outside("its manifest has the digest %s where %s was asked for", d.Digest, want)
	}
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Layers        json.RawMessage `json:"layers"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return d, failure.Unusable("its manifest is not JSON of a manifest: %s", failure.Bounded(err.Error()))
	}
	// What the document says of itself is under its digest. A header of the answer is not.
	if head.MediaType != "" {
		d.mediaType = head.MediaType
	}
	switch {
	case head.SchemaVersion == 1 || d.mediaType == types.DockerManifestSchema1 || d.mediaType == types.DockerManifestSchema1Signed:
		return d, failure.Unusable("its manifest has the old form (schema 1): push it again with a newer tool")
	case head.Manifests != nil && head.Layers != nil:
		return d, failure.Unusable("its manifest is both an image and an index")
	case d.mediaType.IsIndex() && head.Layers == nil, d.mediaType.IsImage() && head.Manifests == nil:
		return d, nil
	case head.Manifests != nil && head.MediaType == "":
		d.mediaType = types.OCIImageIndex
	case head.Layers != nil && head.MediaType == "":
		d.mediaType = types.OCIManifestSchema1
	default:
		return d, failure.Unusable("its manifest has the media type %q, which is not an image", failure.Bounded(string(d.mediaType)))
	}
	return d, nil
}

// Parts are what a manifest or an index names: images and indexes, or a configuration and layers.
func (d Document) Parts() ([]v1.Descriptor, error) {
	if d.mediaType.IsIndex() {
		m, err := v1.ParseIndexManifest(bytes.NewReader(d.Data))
		if err != nil {
			return nil, failure.Unusable("its index cannot be read: %s", failure.Bounded(err.Error()))
		}
		return m.Manifests, nil
	}
	m, err := v1.ParseManifest(bytes.NewReader(d.Data))
	if err != nil {
		return nil, failure.Unusable("its manifest cannot be read: %s", failure.Bounded(err.Error()))
	}
	return append([]v1.Descriptor{m.Config}, m.Layers...), nil
}

// IsDocument reports whether a part is a manifest or an index; others are blobs.
func IsDocument(d v1.Descriptor) bool { return d.MediaType.IsIndex() || d.MediaType.IsImage() }

// isAttestation reports whether an entry of an index is a statement about an image, as build tools
// put beside it.
func isAttestation(d v1.Descriptor) bool {
	return d.Annotations["vnd.docker.reference.type"] == "attestation-manifest" ||
		d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown"
}

// elsewhere is what a user can do about an image that is not for the machine of a node.
const elsewhere = "; a constraint on arch keeps the job on nodes that can run it"

// choose takes the image for a platform out of an index.
func choose(index Document, want Platform) (v1.Descriptor, error) {
	m, err := v1.ParseIndexManifest(bytes.NewReader(index.Data))
	if err != nil {
		return v1.Descriptor{}, failure.Unusable("its index cannot be read: %s", failure.Bounded(err.Error()))
	}
	return chooseFrom(m.Manifests, want)
}

// chooseFrom takes the entry that serves a platform best. It passes over statements about images.
func chooseFrom(list []v1.Descriptor, want Platform) (v1.Descriptor, error) {
	var best *v1.Descriptor
	bestScore := 0
	exist := map[string]bool{}
	for i := range list {
		d := &list[i]
		if isAttestation(*d) || !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		score := 1 // without a platform: whatever it is, it is said by its configuration
		if d.Platform != nil {
			exist[platformOf(*d.Platform).String()] = true
			score = fits(platformOf(*d.Platform), want)
		}
		if score > bestScore {
			best, bestScore = d, score
		}
	}
	// The reason names what there is, so that the user can see what to build.
	if best == nil {
		if len(exist) == 0 {
			return v1.Descriptor{}, failure.Unusable("its index names no image")
		}
		return v1.Descriptor{}, failure.Unusable("there is none for %s, only for %s%s", want, failure.Bounded(strings.Join(slices.Sorted(maps.Keys(exist)), ", ")), elsewhere)
	}
	return *best, nil
}

// platformOf is the platform that an index names.
func platformOf(p v1.Platform) Platform {
	return Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
}

// fits is how well the platform of an image serves a wanted one; 0: not at all.
func fits(have, want Platform) int {
	if have.OS != want.OS || have.Architecture != want.Architecture {
		return 0
	}
	haveLevel, haveKnown := level(have)
	wantLevel, wantKnown := level(want)
	switch {
	case have.Variant == want.Variant:
		return 1000
	// A newer variant than the machine has cannot run on it.
	case !haveKnown || !wantKnown || haveLevel > wantLevel:
		return 0
	}
	return 10 + haveLevel // the newest that the machine has
}

// level orders the variants of an architecture. No variant is the oldest common one.
func level(p Platform) (int, bool) {
	defaults := map[string]string{"amd64": "v1", "arm64": "v8", "arm": "v7"}
	v, ok := strings.CutPrefix(cmp.Or(p.Variant, defaults[p.Architecture], "v0"), "v")
	n := 0
	if _, err := fmt.Sscanf(v, "%d", &n); err != nil || !ok || n < 0 || n > 100 {
		return 0, false
	}
	return n, true
}

// Content is what an image is made of.
type Content struct {
	Manifest Document
	Config   Document
	// Layers come bottom first. The same one may come twice.
	Layers []Layer
	Image  ImageConfig
}

// Layer is a layer as its image names it.
type Layer struct {
	// Diff is the diff id: the digest of its tar.
	Diff v1.Hash
	// Descriptor says what its compressed bytes are: their digest, size and media type.
	Descriptor v1.Descriptor
	// DiffOnly: Descriptor does not say what the compressed bytes are, so that only Diff can be
	// checked.
	DiffOnly bool
}

// readManifest checks the manifest of an image. The sizes of its descriptors are sane afterwards.
func readManifest(d Document) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(d.Data))
	if err != nil {
		return nil, failure.Unusable("its manifest cannot be read: %s", failure.Bounded(err.Error()))
	}
	switch t := m.Config.MediaType; {
	case t != types.OCIConfigJSON && t != types.DockerConfigJSON:
		return nil, failure.Unusable("it is not an image to run: its configuration has the media type %q", failure.Bounded(string(t)))
	case m.Config.Size < 0 || m.Config.Size > maxConfig:
		return nil, failure.Unusable("its configuration is said to have %d bytes, %d at most", m.Config.Size, maxConfig)
	case len(m.Layers) > maxLayers:
		return nil, failure.Unusable("it has %d layers, %d at most", len(m.Layers), maxLayers)
	}
	for _, l := range m.Layers {
		if err := checkLayer(l); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// checkLayer says whether a layer can be had and unpacked here.
func checkLayer(l v1.Descriptor) error {
	switch l.MediaType {
	case types.DockerLayer, types.DockerUncompressedLayer, dockerZstdLayer,
		types.OCILayer, types.OCIUncompressedLayer, types.OCILayerZStd:
	case types.DockerForeignLayer, types.OCIRestrictedLayer, types.OCIUncompressedRestrictedLayer:
		return failure.Unusable("its layer %s may not be distributed by registries (%s) and cannot be had here", l.Digest, l.MediaType)
	default:
		return failure.Unusable("its layer %s has the media type %q, which cannot be unpacked here", l.Digest, failure.Bounded(string(l.MediaType)))
	}
	if l.Size < 0 || l.Size > 1<<42 {
		return failure.Unusable("its layer %s is said to have %d bytes", l.Digest, l.Size)
	}
	return nil
}

// NewContent joins a manifest and its configuration, and checks that they belong together and fit
// the platform.
func NewContent(manifest, config Document, want Platform) (*Content, error) {
	m, err := readManifest(manifest)
	if err != nil {
		return nil, err
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(config.Data))
	if err != nil {
		return nil, failure.Unusable("its configuration cannot be read: %s", failure.Bounded(err.Error()))
	}
	have := Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	if have.OS != "" && have.Architecture != "" && fits(have, want) == 0 {
		return nil, failure.Unusable("it is for %s, and this node is %s%s", failure.Bounded(have.String()), want, elsewhere)
	}
	// Each layer needs its diff id, which alone says what must be unpacked.
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return nil, failure.Unusable("its manifest has %d layers, its configuration %d", len(m.Layers), len(c.RootFS.DiffIDs))
	}
	ct := &Content{Manifest: manifest, Config: config, Image: imageConfig(c)}
	for i, l := range m.Layers {
		if c.RootFS.DiffIDs[i].Algorithm != "sha256" || l.Digest.Algorithm != "sha256" {
			return nil, failure.Unusable("its layer %s: only sha256 digests can be checked here", l.Digest)
		}
		ct.Layers = append(ct.Layers, Layer{Diff: c.RootFS.DiffIDs[i], Descriptor: l})
	}
	return ct, nil
}

// Diffs are the layers to mount, bottom first, each once. An overlay refuses the same directory
// twice, and a layer hides whatever it did further down.
func (c *Content) Diffs() []Layer {
	var list []Layer
	seen := map[v1.Hash]bool{}
	for _, l := range slices.Backward(c.Layers) {
		if !seen[l.Diff] {
			seen[l.Diff] = true
			list = append(list, l)
		}
	}
	slices.Reverse(list)
	return list
}

// ImageConfig is what an image says of how to run it.
type ImageConfig struct {
	Entrypoint, Cmd, Env         []string
	User, WorkingDir, StopSignal string
	// Volumes and ExposedPorts (as "80/tcp") are sorted.
	Volumes, ExposedPorts []string
	OS, Architecture      string
}

// imageConfig takes that from a configuration.
func imageConfig(c *v1.ConfigFile) ImageConfig {
	ic := ImageConfig{
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Env: c.Config.Env,
		User: c.Config.User, WorkingDir: c.Config.WorkingDir, StopSignal: c.Config.StopSignal,
		OS: c.OS, Architecture: c.Architecture,
	}
	for v := range c.Config.Volumes {
		ic.Volumes = append(ic.Volumes, v)
	}
	for p := range c.Config.ExposedPorts {
		ic.ExposedPorts = append(ic.ExposedPorts, p)
	}
	sort.Strings(ic.Volumes)
	sort.Strings(ic.ExposedPorts)
	return ic
}
