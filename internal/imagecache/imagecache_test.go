package imagecache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/images"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/layertest"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/registry"
	"github.com/musterhq/muster/internal/testwait"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a registry with tokens, and a cache before it.
type rig struct {
	*Cache
	up     *imagetest.Registry
	direct *registry.Registries
	cfg    Config
	logs   logs
}

type logs struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{up: imagetest.NewRegistry(t, imagetest.Token)}
	grants, err := registry.New(registry.Config{Registries: []api.RegistrySpec{{
		Host: r.up.Host, Username: imagetest.User, Password: muster.NewSecret(imagetest.Password), Insecure: true,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r.direct = grants
	r.cfg = Config{Grants: grants.ForServer(), Dir: filepath.Join(t.TempDir(), "cache"), Size: 1 << 30, Fresh: time.Hour, Logger: slog.New(slog.NewTextHandler(&r.logs, nil))}
	if change != nil {
		change(&r.cfg)
	}
	r.again(t)
	t.Cleanup(func() {
		if said := r.logs.String(); strings.Contains(said, imagetest.Password) || strings.Contains(said, "Bearer") {
			t.Errorf("the log has a credential: %s", said)
		}
	})
	return r
}

// Grant is what a node gets: from the cache or, if that does not serve the image, as without it.
func (r *rig) Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant {
	if g, ok := r.Cache.Grant(ctx, ref, ns); ok {
		return g
	}
	return r.direct.Grant(ctx, ref, ns)
}

// again starts the cache anew on its directory.
func (r *rig) again(t *testing.T) {
	t.Helper()
	tr := http.DefaultTransport.(*http.Transport).Clone()
	r.cfg.HTTP = tr
	c, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Cache = c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		tr.CloseIdleConnections()
	})
}

// layered is an image with so many layers of random bytes.
func layered(t *testing.T, size int64, layers int64) v1.Image {
	t.Helper()
	im, err := random.Image(size, layers)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// fetched counts the requests for blobs by digest.
func (r *rig) fetched() map[string]int {
	n := map[string]int{}
	for _, line := range r.up.Served() {
		if _, digest, ok := strings.Cut(line, "/blobs/"); ok && strings.HasPrefix(line, "GET ") {
			n[digest]++
		}
	}
	return n
}

// node is the image store of a node: what it takes from the cache goes as the link sends it.
type node struct {
	*images.Store
	c *Cache
	// direct counts requests to registries.
	direct int
	mu     sync.Mutex
	given  map[string]string // digests by reference
	// granted has a wake-up after each grant: a link pushes what is asked for again.
	granted chan struct{}
}

func (n *node) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.direct++
	n.mu.Unlock()
	return http.DefaultTransport.RoundTrip(r)
}

func newNode(t *testing.T, r *rig) *node {
	t.Helper()
	n := &node{c: r.Cache, given: map[string]string{}, granted: make(chan struct{}, 1)}
	dir := t.TempDir()
	grant := func(ctx context.Context, ref string) (wire.PullGrant, error) {
		g := r.Grant(ctx, ref, "")
		if g.Failure != nil {
			return g, g.Failure
		}
		n.mu.Lock()
		n.given[ref] = g.Digest
		n.mu.Unlock()
		wait.Poke(n.granted)
		return g, nil
	}
	var err error
	n.Store, err = images.New(images.Config{Dir: dir, Grant: images.Granted(grant), HTTP: n, Loaded: func(ctx context.Context, digest string) (io.ReadSeekCloser, error) {
		return n.take(ctx, dir, digest)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// take gets a blob as a link pushes it: whole, or again until the node wants it no more.
func (n *node) take(ctx context.Context, dir, digest string) (io.ReadSeekCloser, error) {
	for {
		if in := n.open(ctx, digest); in != nil {
			f, err := os.CreateTemp(dir, "sent-")
			if err != nil {
				return nil, err
			}
			_ = os.Remove(f.Name())
			sum := sha256.New()
			_, err = io.Copy(io.MultiWriter(f, sum), in)
			_ = in.Close()
			if err == nil && "sha256:"+hex.EncodeToString(sum.Sum(nil)) == digest {
				_, err = f.Seek(0, io.SeekStart)
				return f, err
			}
			_ = f.Close()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-n.granted:
		}
	}
}

func (n *node) open(ctx context.Context, digest string) io.ReadCloser {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ref, image := range n.given {
		if n.c.Part(ref, image, digest) {
			if in, err := n.c.Open(ctx, ref, "", image, digest); err == nil {
				return in
			}
		}
	}
	return nil
}

func (n *node) pull(t *testing.T, ref string) *images.Image {
	t.Helper()
	im, err := n.Open(t.Context(), ref, wire.Puller{}, nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	im.Release()
	return im
}

// A cold fleet pulls each part of an image from its registry once, and the nodes ask it for nothing.
func TestColdFleet(t *testing.T) {
	layertest.NeedRoot(t)
	r := newRig(t, nil)
	const size = 200 << 10
	image := layered(t, size, 5)
	ref := r.up.Push(t, "team/app:1", image)
	want, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	nodes := make([]*node, 20)
	for i := range nodes {
		nodes[i] = newNode(t, r)
		wg.Go(func() {
			if im := nodes[i].pull(t, ref); im != nil && im.Digest != want.String() {
				t.Errorf("node %d has %s", i, im.Digest)
			}
		})
	}
	wg.Wait()
	counts := r.fetched()
	for digest, n := range counts {
		if n != 1 {
			t.Errorf("the registry was asked %d times for %s", n, digest)
		}
	}
	direct := 0
	for _, n := range nodes {
		direct += n.direct
	}
	s := r.Stats()
	if len(counts) != 6 || direct != 0 || s.Misses != 7 || s.Hits != 20*7-6 || s.Served < 20*5*size || s.Fetched > 6*size || s.Used != s.Fetched {
		t.Errorf("%d blobs were fetched, %d requests of nodes, %+v", len(counts), direct, s)
	}
}

// What is here serves while the registry is out of order, after a start too. What is not fails.
func TestRegistryIsOutOfOrder(t *testing.T) {
	layertest.NeedRoot(t)
	r := newRig(t, nil)
	ref := r.up.Push(t, "team/app:1", layered(t, 1000, 2))
	other := r.up.Push(t, "team/other:1", layered(t, 1000, 1))
	newNode(t, r).pull(t, ref)
	r.up.Strike(imagetest.Fault{Times: -1, Status: http.StatusServiceUnavailable, Cut: -1})
	r.cfg.Fresh = time.Nanosecond
	r.again(t)
	n := newNode(t, r)
	n.pull(t, ref)
	if n.direct != 0 || r.Stats().Misses != 0 {
		t.Errorf("%d requests, %+v", n.direct, r.Stats())
	}
	g := r.Grant(t.Context(), other, "")
	if g.Failure == nil || g.Failure.Class != muster.FailureOutside || !strings.Contains(g.Failure.Message, r.up.Host) {
		t.Errorf("%+v %v", g, g.Failure)
	}
}

// A tag means what it meant until the time is over; then its registry is asked, once for all.
func TestTagMoves(t *testing.T) {
	layertest.NeedRoot(t)
	r := newRig(t, func(c *Config) { c.Fresh = time.Hour })
	one, two := layered(t, 100, 1), layered(t, 100, 1)
	ref := r.up.Push(t, "team/app:1", one)
	first := r.Grant(t.Context(), ref, "")
	r.up.Push(t, "team/app:1", two)
	if again := r.Grant(t.Context(), ref, ""); again.Digest != first.Digest || first.Digest == "" {
		t.Errorf("%+v, %+v", first, again)
	}
	r.cfg.Fresh = time.Nanosecond
	r.again(t)
	second := r.Grant(t.Context(), ref, "")
	if second.Digest == first.Digest || second.Digest == "" {
		t.Errorf("%+v, %+v", first, second)
	}
	// A node that began with the version before may end with it.
	r.cfg.Fresh = time.Hour
	if !r.Part(ref, second.Digest, second.Digest) || r.Part(ref, second.Digest, first.Digest) {
		t.Error("the parts of the new version are not its own")
	}
}

// An image that is here because one namespace may pull it is given to another one only after its
// registry has shown it to the credentials of that: also after a restart, and while the registry is
// out of order. The bytes are stored once.
func TestCacheOfNamespaces(t *testing.T) {
	var shop, guest api.RegistrySpec
	r := newRig(t, func(c *Config) { c.Fresh = time.Hour })
	shop = api.RegistrySpec{Host: r.up.Host, Username: imagetest.User, Password: muster.NewSecret(imagetest.Password), Insecure: true, Namespaces: []string{"shop", "web"}}
	guest = shop
	guest.Namespaces, guest.Password = []string{"guest"}, muster.NewSecret("of nobody")
	same := shop
	same.Namespaces = []string{"ml"}
	grants, err := registry.New(registry.Config{Registries: []api.RegistrySpec{shop, guest, same}})
	if err != nil {
		t.Fatal(err)
	}
	r.direct, r.cfg.Grants = grants, grants.ForServer()
	r.again(t)
	image := layered(t, 1000, 1)
	ref := r.up.Push(t, "team/app:1", image)
	g := r.Grant(t.Context(), ref, "shop")
	if g.Digest == "" || g.Scope == "" || g.Namespace != "shop" {
		t.Fatalf("%+v", g)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	part, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	in, err := r.Open(t.Context(), ref, "shop", g.Digest, part.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Error(err)
	}
	_ = in.Close()
	blobs := r.up.Blobs()
	for range 2 {
		served := len(r.up.Served())
		if g := r.Grant(t.Context(), ref, "guest"); g.Failure == nil || g.Digest != "" || g.Authorization != "" {
			t.Errorf("guest: %+v", g)
		}
		// It has no entry: its nodes ask the registry themselves, and have nothing to show there.
		if g, ok := r.Cache.Grant(t.Context(), ref, "nobody"); ok {
			t.Errorf("nobody: %+v", g)
		}
		if len(r.up.Served()) == served {
			t.Error("the registry was not asked")
		}
		// The same entry, or another one that the registry lets in.
		for _, ns := range []muster.Namespace{"web", "ml"} {
			if g := r.Grant(t.Context(), ref, ns); g.Digest == "" || g.Namespace != ns {
				t.Errorf("%s: %+v", ns, g)
			}
		}
		r.again(t)
	}
	if r.Grant(t.Context(), ref, "web").Scope != r.Grant(t.Context(), ref, "shop").Scope || r.Grant(t.Context(), ref, "ml").Scope == r.Grant(t.Context(), ref, "shop").Scope {
		t.Error("scopes are not those of the entries")
	}
	if n := r.up.Blobs(); n != blobs {
		t.Errorf("%d more blobs were fetched", n-blobs)
	}
	r.again(t)
	r.up.Strike(imagetest.Fault{Times: -1, Status: http.StatusServiceUnavailable})
	if g := r.Grant(t.Context(), ref, "guest"); g.Failure == nil || g.Digest != "" {
		t.Errorf("guest, while the registry is out of order: %+v", g)
	}
	if g := r.Grant(t.Context(), ref, "shop"); g.Digest == "" {
		t.Errorf("shop, while the registry is out of order: %+v", g)
	}
}

// A blob is served for the repository that it was pulled from, as a part of an image there: the
// digest of a private layer opens nothing elsewhere.
func TestPrivateLayer(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 100, 1)
	private := r.up.Push(t, "private/app:1", image)
	g := r.Grant(t.Context(), private, "")
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	read(t, r.Cache, private, g.Digest, layer.String())
	// An image elsewhere that names it, in a repository that has no such layer.
	stolen := r.up.Push(t, "public/app:1", layered(t, 100, 1))
	public := r.Grant(t.Context(), stolen, "")
	if r.Part(stolen, public.Digest, layer.String()) || r.Part(stolen, g.Digest, layer.String()) {
		t.Error("a layer is a part of an image that has it not")
	}
	if _, err := r.Open(t.Context(), stolen, "", g.Digest, layer.String()); !errors.Is(err, errNoPart) {
		t.Errorf("%v", err)
	}
	// The same bytes of another repository are asked for there, whose registry says whether it has them.
	copied := r.up.Push(t, "public/copy:1", image)
	g = r.Grant(t.Context(), copied, "")
	r.up.Strike(imagetest.Fault{Path: "/public/copy/blobs/", Times: -1, Status: http.StatusNotFound, Cut: -1})
	in, err := r.Open(t.Context(), copied, "", g.Digest, layer.String())
	if err == nil {
		_, err = io.ReadAll(in)
		_ = in.Close()
	}
	if !failure.Is(err, muster.FailureUser) {
		t.Errorf("a layer that its registry does not give is served: %v", err)
	}
}

// An image that may be pulled no more, or is gone, is not served although it is here.
func TestRightIsTakenAway(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusNotFound} {
		r := newRig(t, func(c *Config) { c.Fresh = time.Nanosecond })
		ref := r.up.Push(t, "team/app:1", layered(t, 100, 1))
		if g := r.Grant(t.Context(), ref, ""); g.Digest == "" {
			t.Fatalf("%+v %v", g, g.Failure)
		}
		r.up.Strike(imagetest.Fault{Path: "/manifests/", Times: -1, Status: status, Cut: -1})
		if g := r.Grant(t.Context(), ref, ""); g.Failure == nil || g.Failure.Class != muster.FailureUser || g.Digest != "" {
			t.Errorf("%d: %+v %v", status, g, g.Failure)
		}
		// Nor when the registry is out of order after that.
		r.up.Heal()
		r.up.Strike(imagetest.Fault{Times: -1, Status: http.StatusBadGateway, Cut: -1})
		if g := r.Grant(t.Context(), ref, ""); g.Failure == nil || g.Digest != "" {
			t.Errorf("%d: %+v", status, g)
		}
	}
}

// read reads a part of an image whole.
func read(t *testing.T, c *Cache, ref, image, digest string) int {
	t.Helper()
	in, err := c.Open(t.Context(), ref, "", image, digest)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	b, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != digest {
		t.Errorf("%s came for %s", got, digest)
	}
	return len(b)
}

// layersOf grants an image, and returns its digest and those of its layers.
func layersOf(t *testing.T, r *rig, ref string, image v1.Image) (digest string, layers []string) {
	t.Helper()
	g := r.Grant(t.Context(), ref, "")
	if g.Digest == "" {
		t.Fatalf("%+v %v", g, g.Failure)
	}
	all, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		h, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, h.String())
	}
	return g.Digest, layers
}

// A connection that breaks in the middle of a layer goes on where it broke, for all who read it.
func TestConnectionBreaks(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 3<<20, 1)
	ref := r.up.Push(t, "team/app:1", image)
	digest, layers := layersOf(t, r, ref, image)
	r.up.Strike(imagetest.Fault{Path: "/blobs/", Times: 2, Cut: 1 << 20})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { read(t, r.Cache, ref, digest, layers[0]) })
	}
	wg.Wait()
	if s := r.Stats(); s.Misses != 2 || s.Fetched > 4<<20 {
		t.Errorf("%+v", s)
	}
}

// Bytes with another digest are never kept, and reach no reader as whole. The image cannot be had
// for a while, for a reason that names it.
func TestBytesAreWrong(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 1<<20, 1)
	ref := r.up.Push(t, "team/app:1", image)
	digest, layers := layersOf(t, r, ref, image)
	r.up.Strike(imagetest.Fault{Path: "/blobs/", Times: -1, Cut: -1, Corrupt: true})
	in, err := r.Open(t.Context(), ref, "", digest, layers[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(in)
	_ = in.Close()
	if !failure.Is(err, muster.FailureOutside) || !strings.Contains(err.Error(), layers[0]) {
		t.Errorf("%v", err)
	}
	if g := r.Grant(t.Context(), ref, ""); g.Failure == nil || g.Failure.Class != muster.FailureOutside || !strings.Contains(g.Failure.Message, ref) {
		t.Errorf("%+v %v", g, g.Failure)
	}
	testwait.Until(t, "the file is deleted", func() bool { return files(t, r.cfg.Dir, tempPrefix) == 0 })
	if h, _ := v1.NewHash(layers[0]); r.store.has(blobKey{repoOf(ref), h}) {
		t.Error("it is kept")
	}
}

// files counts those below dir whose name begins so.
func files(t *testing.T, dir, prefix string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", prefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// A node that goes in the middle of a pull disturbs no other, and what it began is there for the
// next.
func TestNodeGoesInTheMiddle(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 2<<20, 1)
	ref := r.up.Push(t, "team/app:1", image)
	digest, layers := layersOf(t, r, ref, image)
	r.up.Strike(imagetest.Fault{Path: "/blobs/", Times: 1, Cut: -1, Wait: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	in, err := r.Open(ctx, ref, "", digest, layers[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(in, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.Copy(io.Discard, in); !errors.Is(err, context.Canceled) && err != nil {
		t.Errorf("%v", err)
	}
	_ = in.Close()
	read(t, r.Cache, ref, digest, layers[0])
	if n := r.fetched()[layers[0]+" 200"]; n != 1 {
		t.Errorf("the registry sent it %d times", n)
	}
}

// The cache never holds more than its size: what was used the longest ago goes. What does not fit
// at all is left to the nodes.
func TestSize(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Size = 1 << 20 })
	var refs, digests, layers []string
	for i := range 4 {
		image := layered(t, 300<<10, 1)
		ref := r.up.Push(t, fmt.Sprintf("team/app:%d", i), image)
		digest, of := layersOf(t, r, ref, image)
		refs, digests, layers = append(refs, ref), append(digests, digest), append(layers, of[0])
		read(t, r.Cache, ref, digest, of[0])
		if i == 1 {
			read(t, r.Cache, refs[0], digests[0], layers[0])
		}
		if used := r.Stats().Used; used > 1<<20 {
			t.Errorf("%d bytes are used", used)
		}
	}
	for i, here := range []bool{true, false, true, true} {
		h, err := v1.NewHash(layers[i])
		if err != nil {
			t.Fatal(err)
		}
		if r.store.has(blobKey{repoOf(refs[i]), h}) != here {
			t.Errorf("layer %d is here: %t", i, !here)
		}
	}
	used := r.Stats().Used
	r.again(t)
	if now := r.Stats().Used; now != used {
		t.Errorf("%d bytes after a start, %d before", now, used)
	}
	r.cfg.Size = 400 << 10
	r.again(t)
	if now := r.Stats().Used; now > 400<<10 || now == 0 {
		t.Errorf("%d bytes after its size was lowered", now)
	}
	large := layered(t, 1<<20, 1)
	ref := r.up.Push(t, "team/large:1", large)
	digest, of := layersOf(t, r, ref, large)
	in, err := r.Open(t.Context(), ref, "", digest, of[0])
	if err == nil {
		_, err = io.ReadAll(in)
		_ = in.Close()
	}
	if !failure.Is(err, muster.FailureNode) || !strings.Contains(err.Error(), "image_cache.size") {
		t.Errorf("%v", err)
	}
	if g := r.Grant(t.Context(), ref, ""); g.Failure != nil || g.Digest != "" || g.Authorization == "" {
		t.Errorf("%+v %v", g, g.Failure)
	}
}

// A full disk is no reason to fail a job: nodes pull by themselves.
func TestDiskIsLow(t *testing.T) {
	layertest.NeedRoot(t)
	low := errors.New("the disk is nearly full")
	r := newRig(t, func(c *Config) { c.DiskLow = func() error { return low } })
	ref := r.up.Push(t, "team/app:1", layered(t, 100, 1))
	n := newNode(t, r)
	n.pull(t, ref)
	if n.direct == 0 || r.Stats().Used != 0 {
		t.Errorf("%d requests of the node, %+v", n.direct, r.Stats())
	}
}

// An index leads to the image of the node's platform, and the others are not fetched. Another index
// with the same image needs nothing again.
func TestIndex(t *testing.T) {
	layertest.NeedRoot(t)
	r := newRig(t, nil)
	here := layered(t, 1000, 2)
	index := func() v1.ImageIndex {
		idx, err := random.Index(500, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		return mutate.AppendManifests(idx,
			mutate.IndexAddendum{Add: here, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
			mutate.IndexAddendum{Add: layered(t, 1000, 2), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}})
	}
	ref := r.up.Push(t, "team/app:1", index())
	n := newNode(t, r)
	n.pull(t, ref)
	if len(r.fetched()) != 3 || n.direct != 0 {
		t.Errorf("%v, %d requests of the node", r.fetched(), n.direct)
	}
	// Known by two indexes, and read from the disk for the second.
	second := r.up.Push(t, "team/app:2", index())
	r.again(t)
	n = newNode(t, r)
	n.pull(t, second)
	n.pull(t, ref)
	if len(r.fetched()) != 3 || n.direct != 0 {
		t.Errorf("%v, %d requests of the node", r.fetched(), n.direct)
	}
}

// A login that is taken back in the middle of a pull is replaced: the registry is shown a new token.
func TestTokenIsRotated(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 1<<20, 2)
	ref := r.up.Push(t, "team/app:1", image)
	digest, layers := layersOf(t, r, ref, image)
	read(t, r.Cache, ref, digest, layers[0])
	g := &rotating{Grants: r.cfg.Grants}
	r.Cache.cfg.Grants = g
	r.up.Strike(imagetest.Fault{Path: "/blobs/", Times: 1, Status: http.StatusUnauthorized, Cut: -1})
	read(t, r.Cache, ref, digest, layers[1])
	if g.refused != 1 {
		t.Errorf("%d tokens were said to be refused", g.refused)
	}
}

type rotating struct {
	Grants
	refused int
}

func (g *rotating) Refused(ref string, ns muster.Namespace, authorization string) {
	g.refused++
	g.Grants.Refused(ref, ns, authorization)
}

// What is not of a registry of the configuration is not asked for, whatever it is.
func TestOnlyRegistriesOfTheConfiguration(t *testing.T) {
	r := newRig(t, nil)
	stranger := imagetest.NewRegistry(t, imagetest.Anonymous)
	ref := stranger.Push(t, "team/app:1", layered(t, 100, 1))
	pushed := len(stranger.Served())
	for _, ref := range []string{ref, "oci:/images/app", "docker-archive:/a.tar", "loaded:web@sha256:0", "Not A Name", ""} {
		if g := r.Grant(t.Context(), ref, ""); g != (wire.PullGrant{Ref: ref}) {
			t.Errorf("%q: %+v", ref, g)
		}
	}
	if n := len(stranger.Served()) - pushed; n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A large layer passes through in pieces: memory stays as it is.
func TestMemoryIsFlat(t *testing.T) {
	r := newRig(t, nil)
	image := layered(t, 24<<20, 1)
	ref := r.up.Push(t, "team/app:1", image)
	digest, layers := layersOf(t, r, ref, image)
	image = nil
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			in, err := r.Open(t.Context(), ref, "", digest, layers[0])
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = in.Close() }()
			if n, err := io.Copy(io.Discard, in); err != nil || n < 24<<20 {
				t.Errorf("%d %v", n, err)
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	// The registry of the test is in this process: it has the layer in memory already.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d bytes were allocated to send 8 times 24 MiB", grown)
	}
}

func TestRepository(t *testing.T) {
	for ref, want := range map[string]string{
		"docker.io/library/web:latest":            "docker.io/library/web",
		"localhost:5000/web:1":                    "localhost:5000/web",
		"ghcr.io/team/app@sha256:" + zeros:        "ghcr.io/team/app",
		"localhost:5000/team/app@sha256:" + zeros: "localhost:5000/team/app",
	} {
		r, err := source.Parse(ref)
		if err != nil {
			t.Fatal(err)
		}
		if got := repoOf(r.Canonical); got != want {
			t.Errorf("%s is in %s, want %s", r.Canonical, got, want)
		}
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
