package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Packed is an image in an archive, with all that it is made of.
type Packed struct {
	// Names are those that the archive gives it, in their full form; there may be none.
	Names []string
	// Root is of its manifest, or of its index if it has several platforms.
	Root v1.Hash
	// Blobs are its manifests, configurations and layers, each once.
	Blobs []PackedBlob
	// Platforms are those that it has.
	Platforms []Platform
}

// PackedBlob is a part of an image. Its bytes were not compared with the digest.
type PackedBlob struct {
	Digest v1.Hash
	Size   int64
	// Open reads it from its beginning.
	Open func() io.Reader
}

// maxPackedDocuments bounds the manifests and configurations of an archive together, in bytes: they
// are held in memory until the images are stored.
const maxPackedDocuments = 64 << 20

// containerdName is where containerd, and Docker with it, write the full name of an image.
const containerdName = "io.containerd.image.name"

// NewArchive reads the table of an archive that is open already. name stands for it in messages.
// The rest is as of OpenArchive: it takes over the file, also when it fails.
func NewArchive(ctx context.Context, f *os.File, name, tmp string, room Room) (*Archive, error) {
	a := &Archive{path: name, f: f, entries: map[string]span{}, links: map[string]string{}, blobs: map[v1.Hash]span{}}
	err := a.flatten(ctx, tmp, room)
	if err == nil {
		err = a.scan(ctx)
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Packed lists the images of an archive, as `docker save` writes it or of an OCI layout.
func (a *Archive) Packed(ctx context.Context) ([]Packed, error) {
	if _, ok := a.entries["manifest.json"]; ok {
		return a.packedSaved(ctx)
	}
	if _, ok := a.entries["index.json"]; ok {
		return a.packedLayout()
	}
	return nil, failure.Unusable("%s is a tar without an image: it has neither manifest.json (docker save) nor index.json (OCI layout)", a.path)
}

// packing gathers what one image is made of.
type packing struct {
	a    *Archive
	seen map[v1.Hash]bool
	out  Packed
	// held counts the bytes of documents, of all images of the archive together.
	held *int64
}

func (a *Archive) newPacking(held *int64) *packing {
	return &packing{a: a, seen: map[v1.Hash]bool{}, held: held}
}

// read reads a manifest or a configuration of the archive.
func (p *packing) read(name string, most int64) ([]byte, error) {
	data, err := p.a.read(name, most)
	if *p.held += int64(len(data)); err == nil && *p.held > maxPackedDocuments {
		err = failure.Unusable("its manifests and configurations have more than %d bytes together", maxPackedDocuments)
	}
	return data, err
}

func (p *packing) add(b PackedBlob) {
	if !p.seen[b.Digest] {
		p.seen[b.Digest] = true
		p.out.Blobs = append(p.out.Blobs, b)
	}
}

func (p *packing) addData(digest v1.Hash, data []byte) {
	p.add(PackedBlob{digest, int64(len(data)), func() io.Reader { return bytes.NewReader(data) }})
}

func (p *packing) addSpan(digest v1.Hash, s span) {
	p.add(PackedBlob{digest, s.size, func() io.Reader { return io.NewSectionReader(p.a.f, s.off, s.size) }})
}

// addImage adds a manifest with its configuration, and checks that they belong together.
func (p *packing) addImage(manifest, config Document) (*Content, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(config.Data))
	if err != nil {
		return nil, failure.Unusable("its configuration cannot be read: %s", failure.Bounded(err.Error()))
	}
	have := Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant}
	if have.OS != "" && have.OS != "linux" {
		return nil, failure.Unusable("it is for %s, and nodes run images for linux", failure.Bounded(have.String()))
	}
	ct, err := NewContent(manifest, config, have)
	if err != nil {
		return nil, err
	}
	p.addData(manifest.Digest, manifest.Data)
	p.addData(config.Digest, config.Data)
	if !slices.Contains(p.out.Platforms, have) {
		p.out.Platforms = append(p.out.Platforms, have)
	}
	return ct, nil
}

// packedSaved lists the images of a `docker save`. They get manifests with the digests of their
// layers as they are in the archive.
func (a *Archive) packedSaved(ctx context.Context) ([]Packed, error) {
	data, err := a.read("manifest.json", maxManifest)
	if err != nil {
		return nil, err
	}
	var list []saved
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, failure.Unusable("%s: its manifest.json cannot be read: %s", a.path, failure.Bounded(err.Error()))
	}
	sums := map[span]layerSums{}
	var out []Packed
	var held int64
	for i := range list {
		p := a.newPacking(&held)
		if err := p.saved(ctx, &list[i], sums); err != nil {
			return nil, failure.Naming(a.path, err)
		}
		out = append(out, p.out)
	}
	return out, nil
}

func (p *packing) saved(ctx context.Context, im *saved, sums map[span]layerSums) error {
	data, err := p.read(im.Config, maxConfig)
	if err != nil {
		return err
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(data))
	switch {
	case err != nil:
		return failure.Unusable("its configuration cannot be read: %s", failure.Bounded(err.Error()))
	case len(c.RootFS.DiffIDs) != len(im.Layers):
		return failure.Unusable("its manifest has %d layers, its configuration %d", len(im.Layers), len(c.RootFS.DiffIDs))
	case len(im.Layers) > maxLayers:
		return failure.Unusable("it has %d layers, %d at most", len(im.Layers), maxLayers)
	}
	config := Document{Digest: sumOf(data), mediaType: types.DockerConfigJSON, Data: data}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: v1.Descriptor{MediaType: types.DockerConfigJSON, Size: int64(len(data)), Digest: config.Digest}}
	spans := make([]span, len(im.Layers))
	for i, name := range im.Layers {
		if spans[i], err = p.a.entry(name); err != nil {
			return err
		}
		sum, ok := sums[spans[i]]
		if !ok {
			if sum, err = p.a.sumLayer(ctx, spans[i]); err != nil {
				return failure.Naming("layer "+failure.Bounded(name), err)
			}
			sums[spans[i]] = sum
		}
		if sum.diff != c.RootFS.DiffIDs[i] {
			return failure.Unusable("layer %s has the digest %s, and the image names %s: the file is damaged; save the image again", failure.Bounded(name), sum.diff, c.RootFS.DiffIDs[i])
		}
		kind := types.DockerUncompressedLayer
		if sum.raw != sum.diff {
			kind = types.DockerLayer
		}
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: kind, Size: spans[i].size, Digest: sum.raw})
	}
	data, err = json.Marshal(m)
	if err != nil {
		return err
	}
	doc, err := newDocument(data, types.DockerManifestSchema2, v1.Hash{})
	if err != nil {
		return err
	}
	if _, err := p.addImage(doc, config); err != nil {
		return err
	}
	for i, l := range m.Layers {
		p.addSpan(l.Digest, spans[i])
	}
	p.out.Root = doc.Digest
	for _, tag := range im.RepoTags {
		p.name(tag)
	}
	return nil
}

// name adds a name that an archive gives, if it is one.
func (p *packing) name(s string) {
	if r, err := parseRemote(s); err == nil && r.Digest == nil && len(s) <= maxReference && !slices.Contains(p.out.Names, r.Canonical) {
		p.out.Names = append(p.out.Names, r.Canonical)
	}
}

// layerSums are the digests of a layer: of its bytes in the archive, and of its tar.
type layerSums struct{ raw, diff v1.Hash }

// sumLayer reads a layer for its digests.
func (a *Archive) sumLayer(ctx context.Context, s span) (layerSums, error) {
	raw, diff := sha256.New(), sha256.New()
	in := io.TeeReader(&ending{ctx, io.NewSectionReader(a.f, s.off, s.size)}, raw)
	plain, _, err := Decompress(in)
	if err == nil {
		_, err = io.Copy(diff, plain)
		if e := plain.Close(); err == nil {
			err = e
		}
	}
	if err == nil {
		// What follows the compressed stream belongs to the layer's bytes too.
		_, err = io.Copy(io.Discard, in)
	}
	switch {
	case ctx.Err() != nil:
		return layerSums{}, context.Cause(ctx)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return layerSums{}, failure.Unusable("the file ends in the middle of it; copy or save the image again")
	case err != nil && !failure.IsSystem(err):
		return layerSums{}, failure.Unusable("it cannot be decompressed: %s", failure.Bounded(err.Error()))
	case err != nil:
		return layerSums{}, err
	}
	return layerSums{hashOf(raw.Sum(nil)), hashOf(diff.Sum(nil))}, nil
}

// ending is a reader that ends with a context.
type ending struct {
	ctx context.Context
	r   io.Reader
}

// Read reads, unless the context has ended.
func (e *ending) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(p)
}

func hashOf(sum []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum)} }

func sumOf(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return hashOf(sum[:])
}

// packedLayout lists the images of an OCI layout: what has one name is one image.
func (a *Archive) packedLayout() ([]Packed, error) {
	data, err := a.read("index.json", maxManifest)
	if err != nil {
		return nil, err
	}
	index, err := newDocument(data, types.OCIImageIndex, v1.Hash{})
	if err != nil {
		return nil, failure.Naming(a.path, err)
	}
	m, err := v1.ParseIndexManifest(bytes.NewReader(index.Data))
	if err != nil {
		return nil, failure.Unusable("%s: its index.json cannot be read: %s", a.path, failure.Bounded(err.Error()))
	}
	var names []string
	groups := map[string][]v1.Descriptor{}
	for _, d := range m.Manifests {
		if isAttestation(d) {
			continue
		}
		n := nameInLayout(d)
		if groups[n] == nil {
			names = append(names, n)
		}
		groups[n] = append(groups[n], d)
	}
	var out []Packed
	var held int64
	for _, n := range names {
		p := a.newPacking(&held)
		if err := p.layout(groups[n]); err != nil {
			return nil, failure.Naming(a.path, err)
		}
		if n != "" {
			p.name(n)
		}
		out = append(out, p.out)
	}
	return out, nil
}

// nameInLayout is the name of an entry of an index.json; "" if it has none. Some tools write a tag
// alone, which is no name.
func nameInLayout(d v1.Descriptor) string {
	if n := d.Annotations[containerdName]; n != "" {
		return n
	}
	if n := d.Annotations[refNameAnnotation]; strings.ContainsAny(n, ":/") {
		return n
	}
	return ""
}

// layout packs what has one name: one image or index, or images for several platforms.
func (p *packing) layout(entries []v1.Descriptor) error {
	if len(entries) > 1 && slices.ContainsFunc(entries, func(d v1.Descriptor) bool { return d.Platform == nil }) {
		return failure.Unusable("it has %d images without names of their own; save one of them", len(entries))
	}
	kept, err := p.addAll(entries, 0)
	switch {
	case err != nil:
		return err
	case len(kept) == 0:
		return failure.Unusable("it has no image: the blobs of all that its index names are missing")
	case len(kept) == 1:
		p.out.Root = kept[0].Digest
		return nil
	}
	d, err := p.addIndex(kept)
	p.out.Root = d.Digest
	return err
}

// addIndex makes an index of some images.
func (p *packing) addIndex(entries []v1.Descriptor) (v1.Descriptor, error) {
	data, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries})
	if err != nil {
		return v1.Descriptor{}, err
	}
	p.addData(sumOf(data), data)
	return v1.Descriptor{MediaType: types.OCIImageIndex, Digest: sumOf(data), Size: int64(len(data))}, nil
}

// addAll adds images and indexes, and returns those that are in the archive: tools leave out the
// platforms that they do not have.
func (p *packing) addAll(entries []v1.Descriptor, depth int) (kept []v1.Descriptor, err error) {
	if depth > maxNesting {
		return nil, failure.Unusable("its index leads to an index, again and again")
	}
	for _, d := range entries {
		if isAttestation(d) || !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		if _, ok := p.a.entries[blobPath(d.Digest)]; !ok {
			continue
		}
		doc, err := p.document(d)
		if err != nil {
			return nil, err
		}
		if doc.mediaType.IsIndex() {
			d, err = p.addNested(d, doc, depth)
		} else {
			err = p.addManifest(doc)
		}
		if err != nil {
			return nil, err
		}
		if d.Digest != (v1.Hash{}) {
			kept = append(kept, d)
		}
	}
	return kept, nil
}

// addNested adds an index, without the entries that are not in the archive. It returns no
// descriptor if none is.
func (p *packing) addNested(d v1.Descriptor, doc Document, depth int) (v1.Descriptor, error) {
	m, err := v1.ParseIndexManifest(bytes.NewReader(doc.Data))
	if err != nil {
		return d, failure.Unusable("its index cannot be read: %s", failure.Bounded(err.Error()))
	}
	kept, err := p.addAll(m.Manifests, depth+1)
	switch {
	case err != nil || len(kept) == 0:
		return v1.Descriptor{}, err
	case len(kept) == len(m.Manifests):
		p.addData(doc.Digest, doc.Data)
		return d, nil
	case len(kept) == 1:
		return kept[0], nil
	}
	return p.addIndex(kept)
}

// document reads a manifest or index of the archive, and checks its digest.
func (p *packing) document(d v1.Descriptor) (Document, error) {
	if d.Digest.Algorithm != "sha256" {
		return Document{}, failure.Unusable("only sha256 digests can be checked here, and its index names %s", d.Digest)
	}
	data, err := p.read(blobPath(d.Digest), maxManifest)
	if err != nil {
		return Document{}, err
	}
	doc, err := newDocument(data, d.MediaType, d.Digest)
	return doc, LocalError(err)
}

// addManifest adds an image of a layout with its layers.
func (p *packing) addManifest(doc Document) error {
	m, err := readManifest(doc)
	if err != nil {
		return err
	}
	data, err := p.read(blobPath(m.Config.Digest), maxConfig)
	if err != nil {
		return err
	}
	if sumOf(data) != m.Config.Digest {
		return failure.Unusable("its configuration %s has other bytes: the file is damaged; save the image again", m.Config.Digest)
	}
	ct, err := p.addImage(doc, Document{Digest: m.Config.Digest, mediaType: m.Config.MediaType, Data: data})
	if err != nil {
		return err
	}
	for _, l := range ct.Layers {
		s, err := p.a.entry(blobPath(l.Descriptor.Digest))
		if err != nil {
			return err
		}
		if s.size != l.Descriptor.Size {
			return failure.Unusable("its layer %s has %d bytes, and its manifest says %d: the file is damaged; save the image again", l.Descriptor.Digest, s.size, l.Descriptor.Size)
		}
		p.addSpan(l.Descriptor.Digest, s)
	}
	return nil
}

// Rootfs makes an image of an archive that is the tar of a root file system, as mmdebstrap and
// `docker export` write it, for one platform.
func (a *Archive) Rootfs(ctx context.Context, of Platform) (Packed, error) {
	for _, name := range []string{"manifest.json", "index.json"} {
		if _, ok := a.entries[name]; ok {
			return Packed{}, failure.Unusable("%s has a %s, as the tar of an image has: leave out --rootfs", a.path, name)
		}
	}
	size, err := a.f.Seek(0, io.SeekEnd)
	if err != nil {
		return Packed{}, err
	}
	whole := span{0, size}
	sums, err := a.sumLayer(ctx, whole)
	if err != nil {
		return Packed{}, failure.Naming(a.path, err)
	}
	c := v1.ConfigFile{OS: of.OS, Architecture: of.Architecture, Variant: of.Variant,
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{sums.diff}},
		Config: v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}}
	config, err := json.Marshal(c)
	if err != nil {
		return Packed{}, err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(config)), Digest: sumOf(config)},
		Layers: []v1.Descriptor{{MediaType: types.OCIUncompressedLayer, Size: size, Digest: sums.raw}}})
	if err != nil {
		return Packed{}, err
	}
	doc, err := newDocument(manifest, types.OCIManifestSchema1, v1.Hash{})
	if err != nil {
		return Packed{}, fmt.Errorf("its own manifest: %w", err)
	}
	p := a.newPacking(new(int64))
	if _, err := p.addImage(doc, Document{Digest: sumOf(config), mediaType: types.OCIConfigJSON, Data: config}); err != nil {
		return Packed{}, err
	}
	p.addSpan(sums.raw, whole)
	p.out.Root = doc.Digest
	return p.out, nil
}
