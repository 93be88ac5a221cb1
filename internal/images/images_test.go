package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// bench is a service over a real state and a real blob store.
type bench struct {
	*testing.T
	*Service
	state *state.State
	blobs *blob.Store
	quota int64
	low   error

	mu    sync.Mutex
	index uint64
	now   time.Time
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, now: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)}
	var err error
	if b.state, err = state.New(16); err != nil {
		t.Fatal(err)
	}
	if b.blobs, err = blob.New(blob.Config{Dir: filepath.Join(t.TempDir(), "blobs")}); err != nil {
		t.Fatal(err)
	}
	b.Service, err = New(Config{
		State: b.state, Proposer: b, Clock: func() muster.Time { return muster.At(b.now) }, Blobs: b.blobs, Quota: func() int64 { return b.quota },
		Dir: t.TempDir(), DiskLow: func() error { return b.low },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.propose(&state.FormatRaised{Format: state.FormatNewest})
	return b
}

func (b *bench) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, err := b.state.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	b.index++
	v := b.state.Apply(b.index, 1, b.now.UnixMicro(), [][]byte{data})[0]
	err, _ = v.(error)
	return b.index, v, err
}

func (b *bench) propose(f state.Fact) {
	b.Helper()
	if _, _, err := b.Propose(b.Context(), f); err != nil {
		b.Fatal(err)
	}
}

// image is one with a layer of about so many bytes that nothing compresses.
func image(t *testing.T, size int, seed byte) v1.Image {
	data := make([]byte, size)
	x := uint32(seed) + 1
	for i := range data {
		x = x*1664525 + 1013904223
		data[i] = byte(x >> 24)
	}
	return imagetest.New(t, v1.Config{Cmd: []string{"x"}}, imagetest.Layer(t, imagetest.File("data", string(data), 0o644)))
}

// tarOf is an image as `docker save` writes it.
func (b *bench) tarOf(name string, im v1.Image) []byte {
	b.Helper()
	file := filepath.Join(b.TempDir(), "a.tar")
	imagetest.WriteArchive(b, file, name, im)
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	return data
}

func (b *bench) load(q Request, tar []byte) (*api.LoadedImageList, error) {
	return b.Load(b.Context(), q, int64(len(tar)), bytes.NewReader(tar))
}

func (b *bench) mustLoad(name string, im v1.Image) api.LoadedImage {
	b.Helper()
	list, err := b.load(Request{}, b.tarOf(name, im))
	if err != nil || len(list.Images) != 1 {
		b.Fatalf("%+v, %v", list, err)
	}
	return list.Images[0]
}

// blobCount is how many uploads the store has.
func (b *bench) blobCount() (n int) {
	b.Helper()
	all, err := b.blobs.List(b.Context(), "uploads/")
	if err != nil {
		b.Fatal(err)
	}
	return len(all)
}

// names are those of all images.
func (b *bench) names() string {
	var all []string
	for _, im := range b.List().Images {
		all = append(all, im.Name)
	}
	return strings.Join(all, " ")
}

func (b *bench) submit(name, image string) {
	b.Helper()
	s := &api.JobSpec{Name: name, Count: 1}
	s.Image, s.Command = image, []string{"x"}
	s.Defaults()
	b.propose(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID("u" + name), Spec: s})
}

// Blobs are stored once, and go with the last image that has them.
func TestLayersAreShared(t *testing.T) {
	b := newBench(t)
	im := image(t, 10_000, 1)
	one, two := b.mustLoad("web:1", im), b.mustLoad("team/web:2", im)
	if one.Digest != two.Digest || one.Name != "web:1" || two.Name != "team/web:2" || b.blobCount() != 3 {
		t.Errorf("%+v, %+v, %d blobs", one, two, b.blobCount())
	}
	if list := b.List(); list.Used != one.Size || list.Used != b.blobs.Usage() {
		t.Errorf("%d bytes are used, an image has %d, the store %d", list.Used, one.Size, b.blobs.Usage())
	}
	if err := b.Remove(t.Context(), "docker.io/library/web:1"); err != nil {
		t.Fatal(err)
	}
	if b.blobCount() != 3 || b.names() != "team/web:2" {
		t.Errorf("%d blobs, images %s", b.blobCount(), b.names())
	}
	if err := b.Remove(t.Context(), "team/web:2"); err != nil {
		t.Fatal(err)
	}
	if b.blobCount() != 0 || b.blobs.Usage() != 0 {
		t.Errorf("%d blobs, %d bytes are left", b.blobCount(), b.blobs.Usage())
	}
	if err := b.Remove(t.Context(), "team/web:2"); problem.Of(err).Status != http.StatusNotFound {
		t.Errorf("removed twice: %v", err)
	}
}

// A name that is loaded again means the new image. Of earlier versions only the last is kept.
func TestImageIsReplaced(t *testing.T) {
	b := newBench(t)
	var last api.LoadedImage
	for seed := range byte(4) {
		last = b.mustLoad("web:1", image(t, 10_000, seed))
	}
	if list := b.List().Images; len(list) != 1 || list[0].Digest != last.Digest || b.blobCount() != 6 {
		t.Errorf("%+v, %d blobs", list, b.blobCount())
	}
	b.mustLoad("web:1", image(t, 10_000, 3))
	if b.blobCount() < 3 {
		t.Errorf("%d blobs after the same was loaded again", b.blobCount())
	}
	if err := b.Remove(t.Context(), "web:1"); err != nil || b.blobCount() != 0 {
		t.Errorf("%d blobs are left, %v", b.blobCount(), err)
	}
}

// An image of a job that has not ended stays, whatever is asked.
func TestImageInUseStays(t *testing.T) {
	b := newBench(t)
	b.mustLoad("web:1", image(t, 10_000, 1))
	b.submit("j", "library/web:1")
	if err := b.Remove(t.Context(), "web:1"); !muster.IsKind(err, muster.FaultConflict) || !strings.Contains(err.Error(), "image web:1: job default/j uses it") {
		t.Errorf("%v", err)
	}
	b.quota = 1
	b.now = b.now.Add(100 * time.Hour)
	if err := b.Prune(t.Context()); err != nil || b.names() != "web:1" {
		t.Errorf("%s, %v", b.names(), err)
	}
	b.propose(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "j"}})
	if err := b.Prune(t.Context()); err != nil || b.names() != "" || b.blobCount() != 0 {
		t.Errorf("%s, %d blobs, %v", b.names(), b.blobCount(), err)
	}
}

// Over the quota, unused images go: the oldest first, no more than needed, and none of this day.
func TestUnusedImagesArePruned(t *testing.T) {
	b := newBench(t)
	for i, name := range []string{"b:1", "a:1", "c:1"} {
		b.mustLoad(name, image(t, 100_000, byte(i)))
		b.now = b.now.Add(time.Minute)
	}
	b.quota = 250_000
	if err := b.Prune(t.Context()); err != nil || b.names() != "a:1 b:1 c:1" {
		t.Errorf("within a day: %s, %v", b.names(), err)
	}
	b.now = b.now.Add(24 * time.Hour)
	if err := b.Prune(t.Context()); err != nil || b.names() != "a:1 c:1" {
		t.Errorf("after a day: %s, %v", b.names(), err)
	}
	// So they do for one that is loaded.
	b.mustLoad("d:1", image(t, 100_000, 9))
	if b.names() != "c:1 d:1" {
		t.Errorf("for another image: %s", b.names())
	}
}

// Above the quota the answer says what is there, what is missing, and what may be removed.
func TestQuotaOfImages(t *testing.T) {
	b := newBench(t)
	b.mustLoad("a:1", image(t, 100_000, 1))
	b.mustLoad("used:1", image(t, 100_000, 2))
	b.submit("j", "used:1")
	b.quota = 250_000
	_, err := b.load(Request{}, b.tarOf("c:1", image(t, 100_000, 3)))
	p := problem.Of(err)
	if p.Status != http.StatusInsufficientStorage || p.Code != "quota" {
		t.Fatalf("%v", err)
	}
	for _, says := range []string{"needs 100.2KiB more", "loaded images have 200.4KiB", "blob.quota", "(`muster image remove`): a:1;"} {
		if !strings.Contains(p.Detail, says) {
			t.Errorf("it does not say %q: %s", says, p.Detail)
		}
	}
	if b.names() != "a:1 used:1" || b.blobCount() != 6 {
		t.Errorf("%s, %d blobs", b.names(), b.blobCount())
	}
	// What is larger than the quota is not even received.
	_, err = b.load(Request{}, b.tarOf("c:1", image(t, 300_000, 3)))
	if problem.Of(err).Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%v", err)
	}
	_, err = b.Load(t.Context(), Request{}, -1, bytes.NewReader(b.tarOf("c:1", image(t, 300_000, 3))))
	if problem.Of(err).Status != http.StatusRequestEntityTooLarge {
		t.Errorf("without a length: %v", err)
	}
}

// A small file may hold a large tar: its plain form is bounded too.
func TestCompressedTarIsBounded(t *testing.T) {
	b := newBench(t)
	b.quota = 20 << 20
	file := filepath.Join(t.TempDir(), "zeros.tar.gz")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	writeZeros(t, f, 100<<20)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.load(Request{}, data)
	if problem.Of(err).Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}

// Wrong requests and files say so, and leave nothing.
func TestLoadRefuses(t *testing.T) {
	b := newBench(t)
	good := b.tarOf("web:1", image(t, 10_000, 1))
	broken := errors.New("broken off")
	for name, c := range map[string]struct {
		q    Request
		body io.Reader
		says string
	}{
		"name":            {Request{Name: "Web 1"}, bytes.NewReader(good), "cannot be the name of an image"},
		"digest as name":  {Request{Name: "web@sha256:" + strings.Repeat("0", 64)}, bytes.NewReader(good), "cannot be the name of an image"},
		"path as name":    {Request{Name: "oci:/etc"}, bytes.NewReader(good), "cannot be the name of an image"},
		"loaded as name":  {Request{Name: "loaded:web:1@sha256:" + strings.Repeat("0", 64)}, bytes.NewReader(good), "cannot be the name of an image"},
		"rootfs no name":  {Request{Rootfs: true}, bytes.NewReader(good), "has no name of its own"},
		"rootfs of image": {Request{Rootfs: true, Name: "web:1"}, bytes.NewReader(good), "leave out --rootfs"},
		"platform":        {Request{Rootfs: true, Name: "web:1", Platform: "windows/amd64"}, bytes.NewReader(good), "linux/amd64 or linux/arm64"},
		"platform alone":  {Request{Platform: "linux/amd64"}, bytes.NewReader(good), "is of a root file system"},
		"empty":           {Request{}, strings.NewReader(""), "neither manifest.json"},
		"text":            {Request{}, strings.NewReader(strings.Repeat("hello ", 200)), "not a tar of an image"},
		"truncated":       {Request{}, bytes.NewReader(good[:len(good)/2]), "truncated"},
		"broken off":      {Request{}, io.MultiReader(bytes.NewReader(good[:100]), errorReader{broken}), "could not be received: broken off"},
	} {
		_, err := b.Load(t.Context(), c.q, -1, c.body)
		p := problem.Of(err)
		said := p.Detail
		for _, f := range p.Errors {
			said += " " + f.Message
		}
		if p.Code != string(muster.FaultInvalid) || !strings.Contains(said, c.says) {
			t.Errorf("%s: %d %s: %s", name, p.Status, p.Code, said)
		}
	}
	b.low = muster.Faultf(muster.FaultDiskLow, "the disk is nearly full")
	if _, err := b.load(Request{}, good); !muster.IsKind(err, muster.FaultDiskLow) {
		t.Errorf("with a full disk: %v", err)
	}
	if files, err := os.ReadDir(b.cfg.Dir); err != nil || len(files) != 0 || b.blobCount() != 0 || b.names() != "" {
		t.Errorf("%v, %d blobs and images %q are left, %v", files, b.blobCount(), b.names(), err)
	}
}

type errorReader struct{ error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.error }

// A name of the user's takes the place of the name in the file; a root file system has only that.
func TestImageGetsAName(t *testing.T) {
	b := newBench(t)
	if list, err := b.load(Request{Name: "team/other:3"}, b.tarOf("web:1", image(t, 100, 1))); err != nil || list.Images[0].Name != "team/other:3" || b.names() != "team/other:3" {
		t.Errorf("%+v, %v", list, err)
	}
	root := imagetest.Tar(t, imagetest.File("etc/hostname", "h", 0o644))
	list, err := b.load(Request{Name: "root", Rootfs: true, Platform: "linux/arm64"}, root)
	if err != nil || list.Images[0].Name != "root:latest" || list.Images[0].Platforms[0] != "linux/arm64" {
		t.Errorf("%+v, %v", list, err)
	}
}

// Images that share layers may be loaded and removed at the same time: one that is there is whole.
func TestLoadAndRemoveTogether(t *testing.T) {
	b := newBench(t)
	base := image(t, 10_000, 1)
	tars := [][]byte{b.tarOf("a:1", base), b.tarOf("b:1", base)}
	var wg sync.WaitGroup
	for i, name := range []string{"a:1", "b:1"} {
		wg.Go(func() {
			for range 20 {
				if _, err := b.load(Request{}, tars[i]); err != nil {
					t.Error(err)
				}
				if i == 0 {
					if err := b.Remove(context.Background(), name); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if b.names() != "b:1" || b.blobCount() != 3 {
		t.Errorf("%s, %d blobs", b.names(), b.blobCount())
	}
}

// writeZeros writes a compressed tar with an entry of so many zeros.
func writeZeros(t *testing.T, f *os.File, size int64) {
	t.Helper()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: size})
	if err == nil {
		_, err = io.CopyN(w, zeros{}, size)
	}
	if err := errors.Join(err, w.Close(), z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
