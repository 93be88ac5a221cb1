package images

import (
	"context"
	"io"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
	"github.com/musterhq/muster/internal/agent/images/source"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	// askAgain: a tag whose registry does not answer means for so long what it meant.
	askAgain = 24 * time.Hour
	// maxSessions is how many repositories are remembered with their sessions.
	maxSessions = 256
	// askFor is how long a registry is waited for when the answer is at hand.
	askFor = 10 * time.Second
)

// found is what a reference means, and where its layers are to be had.
type found struct {
	content *source.Content
	held    *image // it is here and for the puller, and in use until the pull ends; nil if the content was fetched
	src     source.Source
	ref     string
	by      access
	digest  string
	at      time.Time // when it was asked
	stamp   string
}

// find resolves a reference.
func (s *Store) find(ctx context.Context, r source.Reference, by wire.Puller, fresh time.Duration) (*found, error) {
	switch r.Kind {
	case source.FromLayout:
		return s.findInLayout(ctx, r, by)
	case source.FromArchive:
		return s.findInArchive(ctx, r, by)
	case source.FromServer:
		return s.findOnServer(ctx, r, by)
	}
	return s.findInRegistry(ctx, r, by, fresh)
}

func (s *Store) findInRegistry(ctx context.Context, r source.Reference, by wire.Puller, fresh time.Duration) (*found, error) {
	src := s.registryOf(r, by)
	f := &found{src: src, ref: r.Canonical, by: access{use: by.Scope, give: by.Scope, from: r.Repository()}, at: time.Now()}
	s.mu.Lock()
	known := s.refs[r.Canonical]
	s.mu.Unlock()
	// Of a loaded image the registry has never said that it has this name.
	if known != nil && known.Stamp != loadedStamp {
		done, err := s.recall(ctx, f, src, r, known, fresh)
		if done || err != nil {
			return f, err
		}
	}
	var doc source.Document
	err := s.resolver.Try(ctx, func() (err error) {
		doc, err = src.ByTag(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.digest, f.by.give = doc.Digest.String(), src.Shown()
	if s.shown(f) {
		return f, nil // by another name
	}
	f.content, err = s.resolver.Complete(ctx, src, doc)
	return f, err
}

// recall answers from what is here, if it is here, the reference still means it, and the scope of
// the pull may have it.
func (s *Store) recall(ctx context.Context, f *found, src *source.Registry, r source.Reference, known *refRecord, fresh time.Duration) (done bool, err error) {
	f.held, f.content = s.cached(known.Digest)
	if f.held == nil {
		return false, nil
	}
	s.mu.Lock()
	serves := f.held.servesLocked(f.by.use)
	s.mu.Unlock()
	m, err := s.ask(ctx, src, r, known, fresh, !serves)
	if err == nil && m.digest == known.Digest && !m.asked {
		f.digest, f.at, f.by.whole = m.digest, m.at, true
		return true, nil
	}
	s.release(f.held, nil)
	f.held, f.content = nil, nil
	if err != nil || m.digest == "" {
		return false, err
	}
	f.digest, f.at, f.by.give = m.digest, m.at, src.Shown()
	return s.shown(f), nil
}

// registryOf gives the repository of a reference, with the session it had last.
func (s *Store) registryOf(r source.Reference, by wire.Puller) *source.Registry {
	key := keyOfPull(r.Canonical, by)
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[key]
	if src == nil {
		if len(s.sources) >= maxSessions {
			clear(s.sources)
		}
		var grant func(context.Context, string) (source.Grant, error)
		if s.Grant != nil {
			grant = func(ctx context.Context, ref string) (source.Grant, error) { return s.Grant(ctx, ref, by.Namespace) }
		}
		src = source.NewRegistry(r, grant, s.Loaded, s.HTTP, s.Destinations)
		s.sources[key] = src
	}
	return src
}

// meaning is what a reference means.
type meaning struct {
	// digest is empty if the registry does not say it without sending all.
	digest string
	at     time.Time // when that was so
	// asked: the registry has just shown the image.
	asked bool
}

// ask finds out what a reference that is known means now: a digest always the same, a tag what its
// registry says, or what it said within the last day if that does not answer; a pinned
// image whenever it said so. With prove only what
// the registry shows now counts, of a digest too.
func (s *Store) ask(ctx context.Context, src *source.Registry, r source.Reference, known *refRecord, fresh time.Duration, prove bool) (meaning, error) {
	now := time.Now()
	if !prove && (r.Digest != nil || now.Sub(known.At) < fresh) {
		return meaning{digest: known.Digest, at: known.At}, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, askFor, failure.Outside("its registry does not answer"))
	defer cancel()
	h, ok, err := src.Head(wait)
	switch {
	case err == nil && r.Digest != nil && (!ok || h == *r.Digest):
		return meaning{known.Digest, now, true}, nil
	case err == nil && ok && r.Digest == nil:
		return meaning{h.String(), now, true}, nil
	case err == nil:
		return meaning{at: now}, nil
	case ctx.Err() != nil:
		return meaning{}, context.Cause(ctx)
	case failure.Is(err, muster.FailureOutside) && !prove && (now.Sub(known.At) < askAgain || isPinned(s, known.Digest)):
		s.Logger.Warn("registry does not say what a tag means, so it means what it meant", "image", r.Canonical,
			"digest", known.Digest, "asked", known.At, "error", err)
		return meaning{digest: known.Digest, at: known.At}, nil
	case failure.Is(err, muster.FailureOutside), failure.IsNotFound(err):
		return meaning{}, err
	}
	return meaning{at: now}, nil // some registries know no HEAD
}

// forAll is the access of a pull to what everybody may use: files of the node, and images that are
// loaded on the server.
func forAll(by wire.Puller, from string) access {
	return access{use: by.Scope, give: muster.PublicScope, from: from}
}

// loadedStamp is in the records of references to images that were loaded on the server.
const loadedStamp = "loaded"

// findOnServer finds an image that was loaded on the server. The server says by its digest which
// one it is, so that what is here is never out of date.
func (s *Store) findOnServer(ctx context.Context, r source.Reference, by wire.Puller) (*found, error) {
	if s.Loaded == nil {
		return nil, failure.Node("this agent has no way to get images from the server")
	}
	src := source.Pushed{Get: s.Loaded}
	f := &found{src: src, ref: r.Canonical, by: forAll(by, loadedStamp), digest: r.Digest.String(), at: time.Now(), stamp: loadedStamp}
	if s.shown(f) {
		return f, nil
	}
	doc, err := src.Document(ctx, v1.Descriptor{Digest: *r.Digest})
	if err != nil {
		return nil, err
	}
	f.content, err = s.resolver.Complete(ctx, src, doc)
	return f, err
}

func (s *Store) findInLayout(ctx context.Context, r source.Reference, by wire.Puller) (*found, error) {
	l, err := source.OpenLayout(r.Path)
	if err != nil {
		return nil, err
	}
	f := &found{src: l, ref: r.Canonical, by: forAll(by, r.Path), at: time.Now()}
	d, err := l.Find(r.Name, s.Platform)
	if err == nil {
		f.digest = d.Digest.String()
		if s.shown(f) {
			return f, nil
		}
		var doc source.Document
		if doc, err = l.Document(ctx, d); err == nil {
			f.content, err = s.resolver.Complete(ctx, l, doc)
		}
	}
	if err != nil {
		l.Close()
		return nil, source.LocalError(err)
	}
	return f, nil
}

func (s *Store) findInArchive(ctx context.Context, r source.Reference, by wire.Puller) (*found, error) {
	stamp, err := source.StampOf(r.Path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	known := s.refs[r.Canonical]
	s.mu.Unlock()
	if known != nil && known.Stamp == stamp {
		f := &found{src: &lateArchive{s: s, ref: r}, ref: r.Canonical, by: forAll(by, r.Path), digest: known.Digest, at: known.At, stamp: stamp}
		if s.shown(f) {
			return f, nil
		}
	}
	a, ct, err := s.readArchive(ctx, r)
	if err != nil {
		return nil, err
	}
	return &found{content: ct, src: a, ref: r.Canonical, by: forAll(by, r.Path), digest: ct.Manifest.Digest.String(), at: time.Now(), stamp: stamp}, nil
}

// readArchive opens an archive and finds the image in it.
func (s *Store) readArchive(ctx context.Context, r source.Reference) (*source.Archive, *source.Content, error) {
	res := &reservation{s: s}
	defer res.end()
	a, err := source.OpenArchive(ctx, r.Path, s.path(tmpDir), res)
	if err != nil {
		return nil, nil, err
	}
	ct, err := a.Find(r.Name, s.Platform)
	if err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, ct, nil
}

// lateArchive is an archive that has not changed: it is read only if a layer that was here turns
// out to be missing or bad.
type lateArchive struct {
	s   *Store
	ref source.Reference

	once sync.Once
	a    *source.Archive
	err  error
}

func (l *lateArchive) Document(context.Context, v1.Descriptor) (source.Document, error) {
	return source.Document{}, failure.Unusable("%s has no manifests", l.ref.Path)
}

func (l *lateArchive) Blob(ctx context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	l.once.Do(func() { l.a, _, l.err = l.s.readArchive(ctx, l.ref) })
	if l.err != nil {
		return nil, l.err
	}
	return l.a.Blob(ctx, d, from)
}

func (l *lateArchive) Broken(_ context.Context, err error) error {
	return source.BrokenFile(l.ref.Path, err)
}

func (l *lateArchive) Close() {
	l.once.Do(func() { l.err = failure.Node("%s: closed", l.ref.Path) })
	if l.a != nil {
		l.a.Close()
	}
}
