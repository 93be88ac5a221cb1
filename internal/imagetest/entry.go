package imagetest

import (
	"archive/tar"
	"bytes"
	"io"
	"path"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Entry is one thing of a layer: a header of a tar, and the bytes of a file. Any header can be made, evil ones too.
type Entry struct {
	tar.Header
	Body []byte
}

// born is the date of everything, so that equal layers have equal digests.
var born = time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)

// File is a regular file that belongs to root.
func File(name, body string, mode int64) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, Body: []byte(body)}
}

// Dir is a directory.
func Dir(name string, mode int64) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}}
}

// Symlink points from name to target.
func Symlink(name, target string) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

// Link is a second name of an entry before it.
func Link(name, target string) Entry {
	return Entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
}

// Device is a character ('c') or block ('b') device.
func Device(name string, kind byte, major, minor int64) Entry {
	flag := byte(tar.TypeChar)
	if kind == 'b' {
		flag = tar.TypeBlock
	}
	return Entry{Header: tar.Header{Typeflag: flag, Name: name, Devmajor: major, Devminor: minor, Mode: 0o666}}
}

// Whiteout takes away what a lower layer has at name.
func Whiteout(name string) Entry {
	return File(path.Join(path.Dir(name), ".wh."+path.Base(name)), "", 0)
}

// Opaque takes away everything that lower layers have below dir.
func Opaque(dir string) Entry { return File(path.Join(dir, ".wh..wh..opq"), "", 0) }

// Owned is the same entry with another owner.
func (e Entry) Owned(uid, gid int) Entry {
	e.Uid, e.Gid = uid, gid
	return e
}

// Tar is the entries as a tar.
func Tar(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.Body))
		if e.ModTime.IsZero() {
			e.ModTime = born
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatalf("tar: %s: %v", e.Name, err)
		}
		if _, err := w.Write(e.Body); err != nil {
			t.Fatalf("tar: %s: %v", e.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("tar: %v", err)
	}
	return b.Bytes()
}

// Layer is the entries as a layer of an image.
func Layer(t testing.TB, entries ...Entry) v1.Layer {
	t.Helper()
	return TarLayer(t, Tar(t, entries...))
}

// TarLayer is a layer from the bytes of a tar.
func TarLayer(t testing.TB, data []byte) v1.Layer {
	t.Helper()
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		t.Fatalf("layer: %v", err)
	}
	return layer
}

// New is an image of layers, the lowest first, for this machine's platform.
func New(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	return configured(t, image, config)
}

// With is the image with layers on top.
func With(t testing.TB, image v1.Image, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	return image
}

// Configured is the image with its configuration changed.
func Configured(t testing.TB, image v1.Image, change func(*v1.Config)) v1.Image {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	config := *file.Config.DeepCopy()
	change(&config)
	return configured(t, image, config)
}

func configured(t testing.TB, image v1.Image, config v1.Config) v1.Image {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	file = file.DeepCopy()
	file.Config = config
	file.OS, file.Architecture = "linux", architecture
	file.Created = v1.Time{Time: born}
	image, err = mutate.ConfigFile(image, file)
	if err != nil {
		t.Fatalf("image: %v", err)
	}
	return image
}
