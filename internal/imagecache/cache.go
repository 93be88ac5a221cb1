package imagecache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Grants make the rights by which the server pulls out of its credentials. *registry.Registries does.
type Grants interface {
	// Grant is the right to pull one image for a member of a namespace. It may return the same answer
	// again.
	Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant
	// Refused says that a registry did not accept an authorization.
	Refused(ref string, ns muster.Namespace, authorization string)
	// Known reports whether the configuration has the registry of a reference for a namespace.
	Known(ref string, ns muster.Namespace) bool
	// Scope stands for the credentials that a namespace has for an image. It asks nobody.
	Scope(ref string, ns muster.Namespace) string
}

// Config of a Cache. All but those marked optional are needed.
type Config struct {
	Grants Grants
	// Dir is the cache's own directory.
	Dir string
	// Size is how many bytes it may hold.
	Size int64
	// Fresh is for how long the answer of a registry counts, what a tag means and that the image may
	// be pulled.
	Fresh time.Duration
	// DiskLow says why nothing more may be written now, or nil. Optional.
	DiskLow func() error
	// HTTP is what requests to registries go through. Optional.
	HTTP   http.RoundTripper
	Logger *slog.Logger // optional
}

const (
	// resolveTimeout bounds the questions for one reference: an agent waits longer for its grant.
	resolveTimeout = 20 * time.Second
	// staleFor is for how long a registry that does not answer is not asked again.
	staleFor = 15 * time.Second
	// failedFor is for how long the failure of a download is the answer to grants of its image: nodes
	// that wait ask within that time.
	failedFor = 30 * time.Second
	// answersFor is for how long a registry that does not answer is not asked for an image that is not
	// here.
	answersFor = 5 * time.Second
	// maxRefs and maxImages bound what is remembered in memory. What is on the disk is found again.
	maxRefs, maxImages = 4096, 4096
	// maxParts bounds the manifests, configurations and layers of one image.
	maxParts = 4096
)

// Cache is the cache. Its methods may be called from any goroutine.
type Cache struct {
	cfg   Config
	store *store
	// resolving has a turn for each reference that is being resolved; guarded by mu.
	mu        sync.Mutex
	resolving map[pullKey]*resolving
	refs      map[pullKey]*meaning
	images    map[imageKey]*image
	sources   map[pullKey]*source.Registry
	failed    map[pullKey]failed
	// downloads are under way, by blob.
	downloads map[blobKey]*download
	// closed: Run has ended, and nothing is downloaded any more.
	closed bool
	// life ends with Run. running are the downloads.
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{}

	stats stats
}

// pullKey is a reference as it is pulled with some credentials. Whether an image may be pulled, and
// what failed, is known for one scope only. Bytes are the same in all.
type pullKey struct{ ref, scope string }

// stored is the name of the key on the disk.
func (k pullKey) stored() string {
	if k.scope == "" {
		return k.ref
	}
	return k.ref + " " + k.scope
}

// pulled is a reference that is pulled for a member of a namespace.
type pulled struct {
	source.Reference
	namespace muster.Namespace
	key       pullKey
}

// pulledFor is a reference for a namespace.
func (c *Cache) pulledFor(r source.Reference, ns muster.Namespace) pulled {
	return pulled{r, ns, pullKey{r.Canonical, c.cfg.Grants.Scope(r.Canonical, ns)}}
}

// resolving is the turn to ask for a reference, and how many want it.
type resolving struct {
	turn *wait.Turn
	want int
}

// meaning is what a reference means.
type meaning struct {
	digest v1.Hash
	// asked is when its registry said so.
	asked time.Time
}

// failed is why an image cannot be had, until a time.
type failed struct {
	failure *muster.Failure
	until   time.Time
}

// New opens a cache with what is in its directory.
func New(cfg Config) (*Cache, error) {
	if cfg.Grants == nil || cfg.Dir == "" || cfg.Size <= 0 || cfg.Fresh <= 0 {
		return nil, errors.New("image cache: grants, dir, size and fresh are needed")
	}
	if cfg.DiskLow == nil {
		cfg.DiskLow = func() error { return nil }
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.HTTP == nil {
		t := destinations.Allowed{}.Transport(30 * time.Second)
		t.MaxIdleConnsPerHost = downloadsAtOnce
		cfg.HTTP = t
	}
	st, err := openStore(cfg.Dir, cfg.Size)
	if err != nil {
		return nil, fmt.Errorf("image cache: %w", err)
	}
	c := &Cache{
		cfg: cfg, store: st, resolving: map[pullKey]*resolving{}, refs: map[pullKey]*meaning{}, images: map[imageKey]*image{},
		sources: map[pullKey]*source.Registry{}, failed: map[pullKey]failed{}, downloads: map[blobKey]*download{},
		slots: make(chan struct{}, downloadsAtOnce),
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Run ends the downloads when ctx ends, and returns when they have ended.
func (c *Cache) Run(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.running.Wait()
	return nil
}

// Grant is the right to get an image from the cache for a member of a namespace: the digest by which
// the server has it. It is a failure if the registry, asked with the credentials of the namespace, or
// an earlier download says so. It is not ok if the cache does not serve the image, and the node is to
// pull it from its registry.
func (c *Cache) Grant(ctx context.Context, ref string, ns muster.Namespace) (g wire.PullGrant, ok bool) {
	r, err := source.Parse(ref)
	if err != nil || r.Kind != source.FromRegistry || !c.cfg.Grants.Known(ref, ns) {
		return g, false
	}
	p := c.pulledFor(r, ns)
	if f := c.failureOf(p.key); f != nil {
		return c.without(ref, f)
	}
	m, err := c.resolve(ctx, p)
	if err != nil {
		return c.without(ref, failureOf(r.Canonical, err))
	}
	return wire.PullGrant{Ref: ref, Namespace: ns, Scope: p.key.scope, Digest: m.digest.String(), Until: muster.At(m.asked.Add(c.cfg.Fresh))}, true
}

// without is the answer when the cache cannot serve an image: the node pulls it by itself if only
// the cache is out of order, and else gets the failure.
func (c *Cache) without(ref string, f *muster.Failure) (wire.PullGrant, bool) {
	if f.Class != muster.FailureNode {
		return wire.PullGrant{Ref: ref, Failure: f}, true
	}
	c.cfg.Logger.Warn("image not cached, nodes pull it by themselves", "image", ref, "error", f.Message)
	return wire.PullGrant{}, false
}

// failureOf makes a failure that names the image.
func failureOf(ref string, err error) *muster.Failure {
	var f *muster.Failure
	if errors.As(failure.Naming("image "+ref, err), &f) {
		return f
	}
	return failure.Outside("image %s: %v", ref, err)
}

// failureOf is why an image could not be had a moment ago; nil if nothing is known.
func (c *Cache) failureOf(k pullKey) *muster.Failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.failed[k]
	if ok && time.Now().After(f.until) {
		delete(c.failed, k)
		return nil
	}
	return f.failure
}

// fail remembers for a while why an image cannot be had.
func (c *Cache) fail(k pullKey, err error, d time.Duration) {
	f := failed{failureOf(k.ref, err), time.Now().Add(d)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.failed) >= maxRefs {
		clear(c.failed)
	}
	c.failed[k] = f
}

// source gives the repository of a reference, with the session that it had last.
func (c *Cache) source(p pulled) *source.Registry {
	c.mu.Lock()
	defer c.mu.Unlock()
	src := c.sources[p.key]
	if src == nil {
		if len(c.sources) >= maxRefs {
			clear(c.sources)
		}
		src = source.NewRegistry(p.Reference, c.granting(p.namespace), nil, c.cfg.HTTP, nil)
		c.sources[p.key] = src
	}
	return src
}

// granting is how the grants of one source are asked for. One that is asked for again before its
// end was refused.
func (c *Cache) granting(ns muster.Namespace) func(context.Context, string) (source.Grant, error) {
	var mu sync.Mutex
	var last wire.PullGrant
	return func(ctx context.Context, ref string) (source.Grant, error) {
		mu.Lock()
		before := last
		mu.Unlock()
		if before.Authorization != "" && time.Now().Before(before.Until.Std()) {
			c.cfg.Grants.Refused(ref, ns, before.Authorization)
		}
		g := c.cfg.Grants.Grant(ctx, ref, ns)
		if g.Failure != nil {
			return source.Grant{}, g.Failure
		}
		mu.Lock()
		last = g
		mu.Unlock()
		return source.Grant{Ref: g.Pull, Authorization: g.Authorization, Insecure: g.Insecure, Until: g.Until.Std()}, nil
	}
}
