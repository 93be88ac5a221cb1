package imagecache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/wait"
)

// imageKey is an image of a repository.
type imageKey struct {
	// repo is the full name of the repository, as docker.io/library/web.
	repo   string
	digest v1.Hash
}

// image is what an image is made of, as far as its manifests are known.
type image struct {
	parts map[v1.Hash]v1.Descriptor
	used  time.Time
}

// repoOf is the repository in the canonical form of a reference.
func repoOf(canonical string) string {
	name, _, digest := strings.Cut(canonical, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') && !digest {
		name = name[:i]
	}
	return name
}

// resolve finds out what a reference means, and has its manifest here. The registry is asked once
// for all who want to know, and not again within Fresh. If it is out of order, the reference means
// what it meant.
func (c *Cache) resolve(ctx context.Context, r pulled) (meaning, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, resolveTimeout, failure.Outside("its registry does not answer"))
	defer cancel()
	t := c.want(r.key)
	defer c.unwant(r.key, t)
	if err := t.turn.Take(ctx); err != nil {
		return meaning{}, err
	}
	defer t.turn.Leave()
	if f := c.failureOf(r.key); f != nil {
		return meaning{}, f
	}
	known, err := c.recall(ctx, r)
	if err != nil {
		return meaning{}, err
	}
	if known != nil && time.Since(known.asked) < c.cfg.Fresh {
		return *known, nil
	}
	m, err := c.ask(ctx, r)
	switch {
	case err == nil:
		return *m, c.remember(r, m)
	// Everybody who has left leaves no answer.
	case known != nil && (failure.Is(err, muster.FailureOutside) || ctx.Err() != nil):
		c.cfg.Logger.Warn("registry does not answer, the cached image is used", "image", r.Canonical, "digest", known.digest, "error", err)
		stale := &meaning{known.digest, time.Now().Add(staleFor - c.cfg.Fresh)}
		c.mu.Lock()
		c.refs[r.key] = stale
		c.mu.Unlock()
		return *stale, nil
	case failure.Is(err, muster.FailureUser):
		// It is gone, or may be pulled no more: nobody gets it from here.
		c.forget(r)
	case failure.Is(err, muster.FailureOutside) && ctx.Err() == nil:
		// Those who wait for the turn need not ask as well.
		c.fail(r.key, err, answersFor)
	}
	return meaning{}, err
}

// want and unwant count who waits for the turn of a reference.
func (c *Cache) want(k pullKey) *resolving {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.resolving[k]
	if t == nil {
		t = &resolving{turn: wait.NewTurn()}
		c.resolving[k] = t
	}
	t.want++
	return t
}

func (c *Cache) unwant(k pullKey, t *resolving) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.want--; t.want == 0 {
		delete(c.resolving, k)
	}
}

// recall is what a reference meant when its registry was asked last, if that image's manifest is
// still here; else nil. After a start the time of that is not known.
func (c *Cache) recall(ctx context.Context, r pulled) (*meaning, error) {
	c.mu.Lock()
	known := c.refs[r.key]
	c.mu.Unlock()
	repo := repoOf(r.Canonical)
	if known == nil {
		digest, ok := c.store.ref(repo, r.key.stored())
		if !ok {
			return nil, nil
		}
		known = &meaning{digest: digest}
	}
	if !c.store.has(blobKey{repo, known.digest}) {
		return nil, nil
	}
	return known, c.learn(ctx, imageKey{repo, known.digest}, known.digest)
}

// ask asks the registry, and gets the manifest unless it is here.
func (c *Cache) ask(ctx context.Context, r pulled) (*meaning, error) {
	src, repo, now := c.source(r), repoOf(r.Canonical), time.Now()
	digest, ok, err := src.Head(ctx)
	// Some registries know no HEAD, or do not say the digest. Then the manifest itself tells.
	if err != nil && (failure.Is(err, muster.FailureOutside) || failure.IsNotFound(err) || ctx.Err() != nil) {
		return nil, err
	}
	if r.Digest != nil {
		digest = *r.Digest
	}
	if ok && err == nil && c.store.has(blobKey{repo, digest}) {
		return &meaning{digest, now}, c.learn(ctx, imageKey{repo, digest}, digest)
	}
	doc, err := src.ByTag(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.store.put(blobKey{repo, doc.Digest}, doc.Data, c.cfg.DiskLow); err != nil {
		return nil, err
	}
	c.stats.missed.Add(1)
	c.stats.fetched.Add(int64(len(doc.Data)))
	return &meaning{doc.Digest, now}, c.add(imageKey{repo, doc.Digest}, doc)
}

// remember keeps what a reference means, for starts when its registry does not answer too.
func (c *Cache) remember(r pulled, m *meaning) error {
	c.mu.Lock()
	if len(c.refs) >= maxRefs {
		clear(c.refs)
	}
	was := c.refs[r.key]
	c.refs[r.key] = m
	c.mu.Unlock()
	if was != nil && was.digest == m.digest {
		return nil
	}
	return c.store.setRef(repoOf(r.Canonical), r.key.stored(), m.digest)
}

func (c *Cache) forget(r pulled) {
	c.mu.Lock()
	delete(c.refs, r.key)
	c.mu.Unlock()
	c.store.dropRef(repoOf(r.Canonical), r.key.stored())
}

// learn reads a manifest or index that is here, and those that it names and that are here, for what
// the image is made of. It does nothing for an image that is known.
func (c *Cache) learn(ctx context.Context, of imageKey, digest v1.Hash) error {
	c.mu.Lock()
	im := c.images[of]
	if im != nil {
		im.used = time.Now()
	}
	c.mu.Unlock()
	if im != nil && digest == of.digest {
		return nil
	}
	doc, err := c.document(ctx, blobKey{of.repo, digest})
	if err != nil {
		return err
	}
	return c.add(of, doc)
}

// document reads a manifest or index that is here.
func (c *Cache) document(ctx context.Context, k blobKey) (source.Document, error) {
	f, err := c.store.open(k)
	if err != nil {
		return source.Document{}, err
	}
	if f == nil {
		return source.Document{}, failure.Node("the image cache has lost %s", k.digest)
	}
	sent := source.Pushed{Get: func(context.Context, string) (io.ReadSeekCloser, error) { return f, nil }}
	return sent.Document(ctx, v1.Descriptor{Digest: k.digest})
}

// add adds the parts of a manifest or index to its image. Of manifests that it names, those are read
// that are here.
func (c *Cache) add(of imageKey, doc source.Document) error {
	parts, err := doc.Parts()
	if err != nil {
		return err
	}
	c.mu.Lock()
	im := c.images[of]
	if im == nil {
		if len(c.images) >= maxImages {
			c.dropImagesLocked()
		}
		im = &image{parts: map[v1.Hash]v1.Descriptor{}}
		c.images[of] = im
	}
	im.used = time.Now()
	if len(im.parts)+len(parts) > maxParts {
		c.mu.Unlock()
		return failure.Unusable("it has more than %d manifests, configurations and layers", maxParts)
	}
	var inner []v1.Hash
	im.parts[doc.Digest] = v1.Descriptor{Digest: doc.Digest, Size: int64(len(doc.Data)), MediaType: types.OCIManifestSchema1}
	for _, p := range parts {
		if _, there := im.parts[p.Digest]; !there && source.IsDocument(p) {
			inner = append(inner, p.Digest)
		}
		im.parts[p.Digest] = p
	}
	c.mu.Unlock()
	for _, digest := range inner {
		if !c.store.has(blobKey{of.repo, digest}) {
			continue
		}
		doc, err := c.document(context.Background(), blobKey{of.repo, digest})
		if err == nil {
			err = c.add(of, doc)
		}
		if err != nil {
			// It is found out again when a node asks for it.
			c.cfg.Logger.Warn("cached manifest not read", "repository", of.repo, "digest", digest, "error", err)
		}
	}
	return nil
}

// dropImagesLocked forgets the half of the images that were used the longest ago. They are read
// again when somebody asks for them. c.mu is held.
func (c *Cache) dropImagesLocked() {
	byUse := slices.SortedFunc(maps.Keys(c.images), func(a, b imageKey) int { return c.images[a].used.Compare(c.images[b].used) })
	for _, k := range byUse[:len(byUse)/2] {
		delete(c.images, k)
	}
}

// errNoPart is the error for a blob that is no part of the image.
var errNoPart = errors.New("it is no part of the image")

// part is what an image says of a part of it.
func (c *Cache) part(of imageKey, digest v1.Hash) (v1.Descriptor, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	im := c.images[of]
	if im == nil {
		return v1.Descriptor{}, errNoPart
	}
	p, ok := im.parts[digest]
	if !ok {
		return v1.Descriptor{}, errNoPart
	}
	im.used = time.Now()
	return p, nil
}

// fetchDocument gets a manifest that an index names.
func (c *Cache) fetchDocument(ctx context.Context, src *source.Registry, of imageKey, p v1.Descriptor) ([]byte, error) {
	doc, err := src.Document(ctx, p)
	if err != nil {
		return nil, err
	}
	if int64(len(doc.Data)) != p.Size {
		return nil, failure.Unusable("%s has %d bytes, and its index says %d", p.Digest, len(doc.Data), p.Size)
	}
	return bytes.Clone(doc.Data), c.add(of, doc)
}
