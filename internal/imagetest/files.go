package imagetest

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// WriteLayout puts the image into an OCI layout directory, made when it is not there, under a tag unless that is empty.
func WriteLayout(t testing.TB, dir, tag string, image v1.Image) {
	t.Helper()
	l, err := layout.FromPath(dir)
	if err != nil {
		if l, err = layout.Write(dir, empty.Index); err != nil {
			t.Fatalf("layout: %v", err)
		}
	}
	var options []layout.Option
	matcher := match.Matcher(func(v1.Descriptor) bool { return false })
	if tag != "" {
		options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag}))
		matcher = match.Name(tag)
	}
	if err := l.ReplaceImage(image, matcher, options...); err != nil {
		t.Fatalf("layout: %v", err)
	}
}

// WriteArchive writes the image as `docker save` does, gzipped when the path ends in gz.
func WriteArchive(t testing.TB, file, tagged string, image v1.Image) {
	t.Helper()
	tag, err := name.NewTag(tagged)
	if err != nil {
		t.Fatalf("archive: %v", err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatalf("archive: %v", err)
	}
	defer func() { _ = f.Close() }()
	var w io.Writer = f
	if strings.HasSuffix(file, "gz") {
		z := gzip.NewWriter(f)
		defer func() { _ = z.Close() }()
		w = z
	}
	if err := tarball.Write(tag, image, w); err != nil {
		t.Fatalf("archive: %v", err)
	}
}

// Root is an unpacked image, as a node's image store leaves it.
type Root struct {
	Dir string
	// Layers are directories below Dir, the topmost first, in the form that overlay wants.
	Layers []string
	Config v1.Config
}

// Unpack writes the image's layers below dir, owners shifted by shift. It trusts the image: the test made it. Where
// the kernel lets nobody make what overlay wants (not root), the test is skipped.
func Unpack(t testing.TB, dir string, image v1.Image, shift int) Root {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatalf("unpack: %v", err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatalf("unpack: %v", err)
	}
	root := Root{Dir: dir, Config: file.Config}
	for i, layer := range layers {
		short := fmt.Sprintf("l%d", i)
		body, err := layer.Uncompressed()
		if err == nil {
			err = unpackLayer(filepath.Join(dir, short), body, shift)
			_ = body.Close()
		}
		if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
			t.Skipf("unpack: only root can: %v", err)
		}
		if err != nil {
			t.Fatalf("unpack: layer %d: %v", i, err)
		}
		root.Layers = append([]string{short}, root.Layers...)
	}
	return root
}

func unpackLayer(dir string, body io.Reader, shift int) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chown(dir, shift, shift); err != nil {
		return err
	}
	r := tar.NewReader(body)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = unpackEntry(dir, h, r, shift)
		}
		if err != nil {
			return err
		}
	}
}

func unpackEntry(dir string, h *tar.Header, body io.Reader, shift int) error {
	place := filepath.Join(dir, path.Clean("/"+h.Name))
	parent, base := filepath.Split(place)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if base == ".wh..wh..opq" {
		return unix.Setxattr(filepath.Clean(parent), "trusted.overlay.opaque", []byte("y"), 0)
	}
	if hidden, ok := strings.CutPrefix(base, ".wh."); ok {
		return unix.Mknod(filepath.Join(parent, hidden), syscall.S_IFCHR, 0)
	}
	if err := makeEntry(dir, place, h, body); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeLink {
		return nil
	}
	if err := os.Lchown(place, h.Uid+shift, h.Gid+shift); err != nil || h.Typeflag == tar.TypeSymlink {
		return err
	}
	// After the owner, whose change takes set-user-id away.
	return unix.Chmod(place, uint32(h.Mode))
}

func makeEntry(dir, place string, h *tar.Header, body io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(place, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, place)
	case tar.TypeLink:
		return os.Link(filepath.Join(dir, path.Clean("/"+h.Linkname)), place)
	case tar.TypeChar:
		return unix.Mknod(place, syscall.S_IFCHR|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	case tar.TypeBlock:
		return unix.Mknod(place, syscall.S_IFBLK|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	case tar.TypeFifo:
		return unix.Mkfifo(place, 0o600)
	}
	f, err := os.OpenFile(place, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Close())
}
