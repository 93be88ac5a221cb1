package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/musterhq/muster/internal/imagetest"
)

// plenty is space without a bound.
type plenty struct{}

func (plenty) Reserve(context.Context, int64) error { return nil }
func (plenty) Piece() int64                         { return 1 << 20 }

// pack reads an archive from a file.
func pack(t *testing.T, file string) ([]Packed, *Archive, error) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewArchive(t.Context(), f, "the file", t.TempDir(), plenty{})
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(a.Close)
	list, err := a.Packed(t.Context())
	return list, a, err
}

func mustPack(t *testing.T, file string) []Packed {
	t.Helper()
	list, _, err := pack(t, file)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		for _, b := range p.Blobs {
			h := sha256.New()
			if n, err := io.Copy(h, b.Open()); err != nil || n != b.Size || hex.EncodeToString(h.Sum(nil)) != b.Digest.Hex {
				t.Errorf("%s has %d bytes of %x, said were %d: %v", b.Digest, n, h.Sum(nil), b.Size, err)
			}
		}
	}
	return list
}

// complete reads a packed image as an agent does that gets its blobs from the server.
func complete(t *testing.T, p Packed, of Platform) (*Content, error) {
	t.Helper()
	src := Pushed{Get: func(_ context.Context, digest string) (io.ReadSeekCloser, error) {
		for _, b := range p.Blobs {
			if b.Digest.String() == digest {
				data, err := io.ReadAll(b.Open())
				return seekable{bytes.NewReader(data)}, err
			}
		}
		t.Errorf("%s is asked for and not packed", digest)
		return nil, os.ErrNotExist
	}}
	doc, err := src.Document(t.Context(), v1.Descriptor{Digest: p.Root})
	if err != nil {
		t.Fatal(err)
	}
	return Resolver{Platform: of}.Complete(t.Context(), src, doc)
}

type seekable struct{ *bytes.Reader }

func (seekable) Close() error { return nil }

func small(t *testing.T, text string) v1.Image {
	return imagetest.New(t, v1.Config{Cmd: []string{text}}, imagetest.Layer(t, imagetest.File("f", text, 0o644)), imagetest.Layer(t, imagetest.File("g", "g", 0o644)))
}

// platformOfImage is what the images of these tests say that they are for.
func platformOfImage(t *testing.T, im v1.Image) Platform {
	t.Helper()
	c, err := im.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return Platform{OS: c.OS, Architecture: c.Architecture}
}

// A `docker save`, plain or compressed, and an OCI layout become the same configuration and layers.
func TestPackedImages(t *testing.T) {
	dir := t.TempDir()
	im := small(t, "hello")
	of := platformOfImage(t, im)
	imagetest.WriteArchive(t, filepath.Join(dir, "a.tar"), "team/web:1", im)
	imagetest.WriteArchive(t, filepath.Join(dir, "a.tar.gz"), "team/web:1", im)
	imagetest.WriteLayout(t, filepath.Join(dir, "layout"), "team/web:1", im)
	addTree(t, filepath.Join(dir, "oci.tar"), filepath.Join(dir, "layout"))
	for _, file := range []string{"a.tar", "a.tar.gz", "oci.tar"} {
		t.Run(file, func(t *testing.T) {
			list := mustPack(t, filepath.Join(dir, file))
			if len(list) != 1 || len(list[0].Names) != 1 || list[0].Names[0] != "docker.io/team/web:1" {
				t.Fatalf("%+v", list)
			}
			p := list[0]
			if len(p.Blobs) != 4 || len(p.Platforms) != 1 || p.Platforms[0] != of {
				t.Errorf("%d blobs, platforms %v", len(p.Blobs), p.Platforms)
			}
			ct, err := complete(t, p, of)
			if err != nil || len(ct.Layers) != 2 || ct.Image.Cmd[0] != "hello" {
				t.Errorf("%+v, %v", ct, err)
			}
			if file == "oci.tar" {
				if want, _ := im.Digest(); p.Root != want {
					t.Errorf("its digest is %s, and was %s", p.Root, want)
				}
			}
		})
	}
}

// An index of several platforms keeps those that are in the file; an agent of another one says so.
func TestPackedPlatforms(t *testing.T) {
	amd, arm := small(t, "amd"), small(t, "arm")
	armed := func(im v1.Image, arch string) v1.Image {
		c, err := im.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c = c.DeepCopy()
		c.OS, c.Architecture = "linux", arch
		im, err = mutate.ConfigFile(im, c)
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	amd, arm = armed(amd, "amd64"), armed(arm, "arm64")
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: arm, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	dir := t.TempDir()
	l, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{containerdName: "docker.io/library/web:1"})); err != nil {
		t.Fatal(err)
	}
	addTree(t, filepath.Join(dir, "both.tar"), filepath.Join(dir, "layout"))
	p := mustPack(t, filepath.Join(dir, "both.tar"))[0]
	if want, _ := index.Digest(); p.Root != want || len(p.Platforms) != 2 || p.Names[0] != "docker.io/library/web:1" {
		t.Errorf("%s of %v, names %v", p.Root, p.Platforms, p.Names)
	}
	for arch, cmd := range map[string]string{"amd64": "amd", "arm64": "arm"} {
		ct, err := complete(t, p, Platform{OS: "linux", Architecture: arch})
		if err != nil || ct.Image.Cmd[0] != cmd {
			t.Errorf("%s: %+v, %v", arch, ct, err)
		}
	}
	if _, err := complete(t, p, Platform{OS: "linux", Architecture: "riscv64"}); err == nil || !strings.Contains(err.Error(), "none for linux/riscv64, only for linux/amd64, linux/arm64") {
		t.Errorf("another platform: %v", err)
	}
	// `docker save` leaves out the platforms that it does not have.
	digest, _ := arm.Digest()
	if err := os.Remove(filepath.Join(dir, "layout", "blobs", "sha256", digest.Hex)); err != nil {
		t.Fatal(err)
	}
	addTree(t, filepath.Join(dir, "one.tar"), filepath.Join(dir, "layout"))
	p = mustPack(t, filepath.Join(dir, "one.tar"))[0]
	if want, _ := amd.Digest(); p.Root != want || len(p.Platforms) != 1 {
		t.Errorf("%s of %v", p.Root, p.Platforms)
	}
}

// addTree writes a tar of a directory.
func addTree(t *testing.T, file, dir string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is wrong with a file is said with the file, and what to do.
func TestPackedRefuses(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.tar")
	imagetest.WriteArchive(t, good, "web:1", small(t, "hello"))
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	windows := small(t, "w")
	c, _ := windows.ConfigFile()
	c = c.DeepCopy()
	c.OS = "windows"
	if windows, err = mutate.ConfigFile(windows, c); err != nil {
		t.Fatal(err)
	}
	imagetest.WriteArchive(t, filepath.Join(dir, "windows.tar"), "web:1", windows)
	manifest := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"empty":       {nil, "has neither manifest.json (docker save) nor index.json (OCI layout)"},
		"text":        {bytes.Repeat([]byte("no tar "), 200), "the file is not a tar of an image"},
		"truncated":   {whole[:len(whole)/2], "it is truncated; copy or save it again"},
		"other tar":   {tarOf(t, map[string][]byte{"etc/passwd": []byte("root")}), "has neither manifest.json"},
		"no json":     {tarOf(t, map[string][]byte{"manifest.json": []byte("{")}), "its manifest.json cannot be read"},
		"no config":   {tarOf(t, map[string][]byte{"manifest.json": manifest([]saved{{Config: "../../etc/passwd"}})}), "has no ../../etc/passwd"},
		"damaged":     {damaged(t, whole), "the file is damaged; save the image again"},
		"no layer":    {without(t, whole, ".tar.gz"), "has no "},
		"empty index": {tarOf(t, map[string][]byte{"index.json": manifest(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{{MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: sumOf(nil), Platform: &v1.Platform{OS: "linux"}}}})}), "it has no image"},
		"cut gzip":    {[]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00"), "cannot be decompressed"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(file, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			_, _, err := pack(t, file)
			if err == nil || !strings.HasPrefix(err.Error(), "the file") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, _, err := pack(t, filepath.Join(dir, "windows.tar")); err == nil || !strings.Contains(err.Error(), "it is for windows/") {
		t.Errorf("windows: %v", err)
	}
}

// tarOf is a tar of some files.
func tarOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// remake writes a tar again with what change makes of each file; nil leaves the file out.
func remake(t *testing.T, data []byte, change func(name string, content []byte) []byte) []byte {
	t.Helper()
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return tarOf(t, files)
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if content = change(h.Name, content); content != nil {
			files[h.Name] = content
		}
	}
}

// damaged has another layer in place of the first.
func damaged(t *testing.T, data []byte) []byte {
	other, err := imagetest.Layer(t, imagetest.File("f", "other", 0o644)).Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	bad, err := io.ReadAll(other)
	if err != nil {
		t.Fatal(err)
	}
	return remake(t, data, func(name string, content []byte) []byte {
		if strings.HasSuffix(name, ".tar.gz") {
			return bad
		}
		return content
	})
}

func without(t *testing.T, data []byte, suffix string) []byte {
	return remake(t, data, func(name string, content []byte) []byte {
		if strings.HasSuffix(name, suffix) {
			return nil
		}
		return content
	})
}

// A root file system becomes an image of one layer; the tar of an image is not taken for one.
func TestRootfsBecomesAnImage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "root.tar")
	if err := os.WriteFile(file, tarOf(t, map[string][]byte{"etc/hostname": []byte("h")}), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewArchive(t.Context(), f, "the file", dir, plenty{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	of := Platform{OS: "linux", Architecture: "arm64"}
	p, err := a.Rootfs(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	ct, err := complete(t, p, of)
	if err != nil || len(ct.Layers) != 1 || ct.Image.Cmd[0] != "/bin/sh" || len(p.Blobs) != 3 {
		t.Errorf("%+v, %v", ct, err)
	}
	image := filepath.Join(dir, "image.tar")
	imagetest.WriteArchive(t, image, "web:1", small(t, "x"))
	_, a, err = pack(t, image)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Rootfs(t.Context(), of); err == nil || !strings.Contains(err.Error(), "leave out --rootfs") {
		t.Errorf("%v", err)
	}
}
