package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Archive is a tar as `docker save` writes it, as a source. It has no manifest of the kind that
// registries have. So one is made, with the diff ids in place of the digests: the same image always
// has the same digest.
type Archive struct {
	// path is what the user named, and f the file, or a plain form of it.
	path string
	f    *os.File
	// entries are the regular files in it, by their names.
	entries map[string]span
	// links are its links, because old writers link layers that are equal.
	links map[string]string
	// blobs are the layers of the image that was found, by their diff ids.
	blobs map[v1.Hash]span
}

// span is where the content of an entry is in the file.
type span struct{ off, size int64 }

// Bounds of an archive.
const (
	// maxArchiveEntries is how many entries an archive may have.
	maxArchiveEntries = 100_000
	// maxArchiveLinks is how many links lead from one to the next.
	maxArchiveLinks = 8
)

// saved is an image in the manifest.json of an archive.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// StampOf is a text that changes when a file does. Its errors are failures.
func StampOf(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", localFault(path, err)
	}
	return fmt.Sprintf("%d:%d:%d:%d.%09d:%d.%09d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec), nil
}

// Room is asked for room on the disk before a compressed archive is unpacked.
type Room interface {
	// Reserve takes room for n bytes, or says why there is none.
	Reserve(ctx context.Context, n int64) error
	// Piece is how many bytes to ask for at a time.
	Piece() int64
}

// OpenArchive reads the table of an archive. It first unpacks a compressed one into a file without
// a name in tmp, and asks for room before each piece of that. The caller closes the archive.
func OpenArchive(ctx context.Context, path, tmp string, room Room) (*Archive, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	a := &Archive{path: path, f: f, entries: map[string]span{}, links: map[string]string{}, blobs: map[v1.Hash]span{}}
	if err := a.flatten(ctx, tmp, room); err != nil {
		a.Close()
		return nil, err
	}
	// Its content is read later, when a layer is asked for.
	if err := a.scan(ctx); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// flatten replaces a compressed file by a plain one.
func (a *Archive) flatten(ctx context.Context, tmp string, room Room) error {
	r, compressed, err := Decompress(a.f)
	if err != nil {
		return failure.Unusable("%s cannot be decompressed: %s", a.path, failure.Bounded(err.Error()))
	}
	defer r.Close()
	// It can be read where it lies.
	if !compressed {
		_, err := a.f.Seek(0, io.SeekStart)
		return failure.Naming(a.path, err)
	}
	// Only a plain file can be read at any place.
	plain, err := os.CreateTemp(tmp, "archive-")
	if err != nil {
		return failure.Node("image store: %v", err)
	}
	// Without a name it goes with this process, however that ends.
	_ = os.Remove(plain.Name())
	piece := room.Piece()
	for {
		if err = ctx.Err(); err != nil {
			break
		}
		if err = room.Reserve(ctx, piece); err != nil {
			break
		}
		var n int64
		n, err = io.CopyN(plain, r, piece)
		if err == io.EOF {
			_ = a.f.Close()
			a.f = plain
			_, err = plain.Seek(0, io.SeekStart)
			return failure.Naming(a.path, err)
		}
		if err != nil && n < piece {
			if !failure.IsSystem(err) {
				err = failure.Unusable("%s cannot be decompressed: %s", a.path, failure.Bounded(err.Error()))
			}
			break
		}
	}
	_ = plain.Close()
	return failure.Naming(a.path, err)
}

// scan notes where the content of each entry is.
func (a *Archive) scan(ctx context.Context) error {
	tr := tar.NewReader(a.f)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil && n > maxArchiveEntries {
			return failure.Unusable("%s has more than %d entries", a.path, maxArchiveEntries)
		}
		if err != nil || ctx.Err() != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
				return failure.Unusable("%s ends in the middle of an entry: it is truncated; copy or save it again", a.path)
			}
			return failure.Unusable("%s is not a tar of an image: %s", a.path, failure.Bounded(err.Error()))
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader takes from the file exactly what it hands out, so this is where the
			// content begins.
			off, err := a.f.Seek(0, io.SeekCurrent)
			if err != nil {
				return failure.Node("%s: %v", a.path, err)
			}
			a.entries[name] = span{off, h.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
	}
}

// entry finds the content of a name, through links.
func (a *Archive) entry(name string) (span, error) {
	at := path.Clean(name)
	for range maxArchiveLinks {
		if s, ok := a.entries[at]; ok {
			return s, nil
		}
		to, ok := a.links[at]
		if !ok {
			break
		}
		at = to
	}
	return span{}, failure.Unusable("%s has no %s", a.path, failure.Bounded(name))
}

// read reads a small entry of at most so many bytes.
func (a *Archive) read(name string, most int64) ([]byte, error) {
	s, err := a.entry(name)
	if err != nil {
		return nil, err
	}
	b, err := readAll(io.NewSectionReader(a.f, s.off, s.size), most, failure.Bounded(name))
	return b, failure.Naming(a.path, err)
}

// Find makes the content of the image of a name; without a name, of the only image.
func (a *Archive) Find(which string, want Platform) (*Content, error) {
	if _, ok := a.entries["manifest.json"]; !ok {
		if _, ok := a.entries["oci-layout"]; ok {
			return nil, failure.Unusable("%s is a tar of an OCI layout: unpack it and name the directory with oci:", a.path)
		}
	}
	data, err := a.read("manifest.json", maxManifest)
	if err != nil {
		return nil, err
	}
	var list []saved
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, failure.Unusable("%s: its manifest.json cannot be read: %s", a.path, failure.Bounded(err.Error()))
	}
	names := map[string]bool{}
	var found []saved
	for _, im := range list {
		match := which == ""
		for _, tag := range im.RepoTags {
			names[tag] = true
			if r, err := parseRemote(tag); err == nil && r.Canonical == which {
				match = true
			}
		}
		if match {
			found = append(found, im)
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	switch {
	case len(found) == 0 && which != "":
		return nil, failure.NotFound("there is no %s in %s; it has: %s", which, a.path, listed(sorted))
	case len(found) == 0:
		return nil, failure.NotFound("%s has no image", a.path)
	case len(found) > 1 && which == "":
		return nil, failure.Unusable("%s has %d images: name one of: %s", a.path, len(found), listed(sorted))
	}
	return a.content(found[len(found)-1], want)
}

// content makes the content of an image: a manifest and its configuration.
func (a *Archive) content(im saved, want Platform) (*Content, error) {
	config, err := a.read(im.Config, maxConfig)
	if err != nil {
		return nil, err
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return nil, failure.Unusable("%s: its configuration cannot be read: %s", a.path, failure.Bounded(err.Error()))
	}
	if len(c.RootFS.DiffIDs) != len(im.Layers) {
		return nil, failure.Unusable("%s: its manifest has %d layers, its configuration %d", a.path, len(im.Layers), len(c.RootFS.DiffIDs))
	}
	sum := sha256.Sum256(config)
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: v1.Descriptor{MediaType: types.DockerConfigJSON, Size: int64(len(config)), Digest: digest}}
	for i, name := range im.Layers {
		s, err := a.entry(name)
		if err != nil {
			return nil, err
		}
		a.blobs[c.RootFS.DiffIDs[i]] = s
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: types.DockerUncompressedLayer, Size: s.size, Digest: c.RootFS.DiffIDs[i]})
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, failure.Node("%s: %v", a.path, err)
	}
	doc, err := newDocument(data, types.DockerManifestSchema2, v1.Hash{})
	if err != nil {
		return nil, err
	}
	ct, err := NewContent(doc, Document{Digest: digest, mediaType: types.DockerConfigJSON, Data: config}, want)
	if err != nil {
		return nil, err
	}
	for i := range ct.Layers {
		ct.Layers[i].DiffOnly = true
	}
	return ct, nil
}

// Document fails: an archive has no manifests.
func (a *Archive) Document(_ context.Context, d v1.Descriptor) (Document, error) {
	return Document{}, failure.Unusable("%s has no manifest %s", a.path, d.Digest)
}

// Blob opens a layer at an offset.
func (a *Archive) Blob(_ context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	s, ok := a.blobs[d.Digest]
	if !ok {
		return nil, failure.Unusable("%s has no layer %s", a.path, d.Digest)
	}
	if from > s.size {
		from = s.size
	}
	return io.NopCloser(io.NewSectionReader(a.f, s.off+from, s.size-from)), nil
}

// Broken is the failure of a read from the file.
func (a *Archive) Broken(_ context.Context, err error) error { return BrokenFile(a.path, err) }

// Close closes the file. A plain form of it goes with that.
func (a *Archive) Close() { _ = a.f.Close() }
