package source

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Layout is an OCI layout directory as a source. Links in it do not lead out of it.
type Layout struct {
	// path is what the user named, and root keeps all reading below it.
	path string
	root *os.Root
}

// refNameAnnotation is where an index has the names of its images.
const refNameAnnotation = "org.opencontainers.image.ref.name"

// OpenLayout opens a directory. The caller closes the layout.
func OpenLayout(path string) (*Layout, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, localFault(path, err)
	}
	return &Layout{path: path, root: root}, nil
}

// localFault is the failure for a path of this node that somebody named. It says nothing of what is
// there.
func localFault(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return failure.NotFound("%s does not exist on this node", path)
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return failure.Unusable("%s cannot be read on this node: %v", path, err)
}

// Close closes the directory.
func (l *Layout) Close() { _ = l.root.Close() }

// Find is the image of a name; without a name, the only image.
func (l *Layout) Find(which string, want Platform) (v1.Descriptor, error) {
	data, err := l.read("index.json", maxManifest)
	if err != nil {
		if failure.IsNotFound(err) {
			return v1.Descriptor{}, failure.Unusable("%s is not an OCI layout: it has no index.json", l.path)
		}
		return v1.Descriptor{}, err
	}
	// Some writers leave the media type out.
	index, err := newDocument(data, types.OCIImageIndex, v1.Hash{})
	if err != nil {
		return v1.Descriptor{}, err
	}
	m, err := v1.ParseIndexManifest(strings.NewReader(string(index.Data)))
	if err != nil {
		return v1.Descriptor{}, failure.Unusable("its index.json cannot be read: %s", failure.Bounded(err.Error()))
	}
	var names []string
	var found []v1.Descriptor
	for _, d := range m.Manifests {
		if isAttestation(d) {
			continue
		}
		n := d.Annotations[refNameAnnotation]
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
		if which == "" || n == which {
			found = append(found, d)
		}
	}
	switch {
	// A name that is wrong is told with those that there are.
	case len(found) == 0 && which != "":
		return v1.Descriptor{}, failure.NotFound("there is no %q in %s; it has: %s", which, l.path, listed(names))
	case len(found) == 0:
		return v1.Descriptor{}, failure.NotFound("%s has no image", l.path)
	case len(found) == 1:
		return found[0], nil
	// Several images are one only if they are for several platforms.
	case which == "" && len(names) > 1 || slices.ContainsFunc(found, func(d v1.Descriptor) bool { return d.Platform == nil }):
		return v1.Descriptor{}, failure.Unusable("%s has %d images: name one of: %s", l.path, len(found), listed(names))
	}
	return chooseFrom(found, want)
}

// listed are names for a sentence.
func listed(names []string) string {
	if len(names) == 0 {
		return "none that has a name"
	}
	return failure.Bounded(strings.Join(names, ", "))
}

// read reads a file of the layout of at most so many bytes.
func (l *Layout) read(path string, most int64) ([]byte, error) {
	f, err := l.open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := readAll(f, most, path)
	if err != nil {
		return nil, failure.Naming(l.path+"/"+path, err)
	}
	return b, nil
}

// open opens a regular file of the layout. It never waits.
func (l *Layout) open(path string) (*os.File, error) {
	// A pipe in its place must not be waited for.
	f, err := l.root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	return regular(f, err, l.path+"/"+path)
}

// regular checks that what was opened is a regular file: reading a pipe would hang, and a device
// never ends.
func regular(f *os.File, err error, path string) (*os.File, error) {
	if err != nil {
		return nil, localFault(path, err)
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		return f, nil
	}
	_ = f.Close()
	if err != nil {
		return nil, failure.Node("%s: %v", path, err)
	}
	return nil, failure.Unusable("%s is not a regular file", path)
}

// openRegular opens a file that somebody named, if it is a regular one. Opening a device may
// already do something, such as starting a watchdog. So it looks the name up without opening what
// is there, and then opens the file that it found.
func openRegular(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, localFault(path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, failure.Node("%s: %v", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, failure.Unusable("%s is not a regular file", path)
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
	return regular(f, err, path)
}

// blobPath is where a layout has a blob.
func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// Document reads a manifest or an index, and checks its digest.
func (l *Layout) Document(_ context.Context, d v1.Descriptor) (Document, error) {
	if d.Digest.Algorithm != "sha256" {
		return Document{}, failure.Unusable("only sha256 digests can be checked here, and its index names %s", d.Digest)
	}
	data, err := l.read(blobPath(d.Digest), maxManifest)
	if err != nil {
		return Document{}, err
	}
	doc, err := newDocument(data, d.MediaType, d.Digest)
	return doc, LocalError(err)
}

// LocalError is an error of reading from this node. What is wrong on a disk does not pass by
// waiting, so that a failure of the outside becomes one of the user.
func LocalError(err error) error {
	if failure.Is(err, muster.FailureOutside) {
		return failure.Unusable("%s", err.Error())
	}
	return err
}

// Blob opens a configuration or layer at an offset.
func (l *Layout) Blob(_ context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	path := blobPath(d.Digest)
	f, err := l.open(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, failure.Node("%s/%s: %v", l.path, path, err)
	}
	return f, nil
}

// Broken is the failure of a read from a file of the layout.
func (l *Layout) Broken(_ context.Context, err error) error { return BrokenFile(l.path, err) }

// BrokenFile is the failure of a read from a file of this node that ended before it should.
func BrokenFile(path string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return failure.Unusable("%s has less than its manifest says", path)
	}
	return failure.Node("%s: %v", path, err)
}
