package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

const (
	// askAgain: a tag whose registry does not answer means for so long what it meant.
	askAgain = 24 * time.Hour
	// askFor is how long a registry is waited for when the answer is at hand.
	askFor = 10 * time.Second
	// smallTries is for manifests and configurations.
	smallTries = 3
)

// found is what a reference means, and where its layers are to be had.
type found struct {
	content *content
	held    *image // it is here, and in use until the pull ends; nil if the content was fetched
	src     source
	ref     string
	digest  string
	at      time.Time // when it was asked
	stamp   string
}

// find resolves a reference.
func (s *Store) find(ctx context.Context, r reference, fresh time.Duration) (*found, error) {
	switch r.kind {
	case fromLayout:
		return s.findInLayout(ctx, r)
	case fromArchive:
		return s.findInArchive(ctx, r)
	}
	return s.findInRegistry(ctx, r, fresh)
}

func (s *Store) findInRegistry(ctx context.Context, r reference, fresh time.Duration) (*found, error) {
	src := s.source(r)
	f := &found{src: src, ref: r.canonical, at: time.Now()}
	s.mu.Lock()
	known := s.refs[r.canonical]
	s.mu.Unlock()
	if known != nil {
		done, err := s.recall(ctx, f, src, r, known, fresh)
		if done || err != nil {
			return f, err
		}
	}
	var doc document
	err := s.try(ctx, func() (err error) {
		doc, err = src.byTag(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.digest = doc.digest.String()
	if f.held, f.content = s.cached(f.digest); f.held != nil {
		return f, nil // by another name
	}
	f.content, err = s.complete(ctx, src, doc)
	return f, err
}

// recall answers from what is here, if it is here and the reference still means it.
func (s *Store) recall(ctx context.Context, f *found, src *registry, r reference, known *refRecord, fresh time.Duration) (done bool, err error) {
	f.held, f.content = s.cached(known.Digest)
	if f.held == nil {
		return false, nil
	}
	f.digest, f.at, err = s.ask(ctx, src, r, known, fresh)
	if err == nil && f.digest == known.Digest {
		return true, nil
	}
	s.release(f.held, nil)
	f.held, f.content = nil, nil
	if err != nil {
		return false, err
	}
	f.held, f.content = s.cached(f.digest)
	return f.held != nil, nil
}

// source gives the repository of a reference, with the session it had last.
func (s *Store) source(r reference) *registry {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[r.canonical]
	if src == nil {
		if len(s.sources) >= maxSessions {
			clear(s.sources)
		}
		src = &registry{ref: r, grant: s.Grant, http: s.HTTP, destinations: s.Destinations}
		s.sources[r.canonical] = src
	}
	return src
}

// ask finds out what a reference that is known means now: a digest always the
// same, a tag what its registry says, or what it said within the last day if that does not answer.
// An empty digest: the registry does not say it without sending all.
func (s *Store) ask(ctx context.Context, src *registry, r reference, known *refRecord, fresh time.Duration) (digest string, at time.Time, err error) {
	if r.digest != nil {
		return known.Digest, known.At, nil
	}
	if at = time.Now(); at.Sub(known.At) < fresh {
		return known.Digest, known.At, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, askFor, failure.Outside("its registry does not answer"))
	defer cancel()
	h, ok, err := src.head(wait)
	switch {
	case err == nil && ok:
		return h.String(), at, nil
	case err == nil:
		return "", at, nil
	case ctx.Err() != nil:
		return "", at, context.Cause(ctx)
	case failure.Is(err, muster.FailureOutside) && at.Sub(known.At) < askAgain:
		s.Logger.Warn("registry does not say what a tag means, so it means what it meant", "image", r.canonical,
			"digest", known.Digest, "asked", known.At, "error", err)
		return known.Digest, known.At, nil
	case failure.Is(err, muster.FailureOutside):
		return "", at, err
	case failure.IsNotFound(err):
		return "", at, err
	}
	return "", at, nil // some registries know no HEAD
}

// try calls do again while the outside is out of order.
func (s *Store) try(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		if err == nil || n == smallTries || !failure.Is(err, muster.FailureOutside) {
			return err
		}
		if err := pause(ctx, s.pace, n, err); err != nil {
			return err
		}
	}
}

// complete gets what a document leads to: the manifest for this platform and its configuration.
func (s *Store) complete(ctx context.Context, src source, doc document) (*content, error) {
	for n := 0; doc.mediaType.IsIndex(); n++ {
		if n == maxNesting {
			return nil, failure.Unusable("its index leads to an index, again and again")
		}
		d, err := choose(doc, s.Platform)
		if err != nil {
			return nil, err
		}
		err = s.try(ctx, func() (err error) {
			doc, err = src.document(ctx, d)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	m, err := readManifest(doc)
	if err != nil {
		return nil, err
	}
	var config document
	err = s.try(ctx, func() (err error) {
		config, err = s.config(ctx, src, m.Config)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newContent(doc, config, s.Platform)
}

// config reads a configuration and checks its digest.
func (s *Store) config(ctx context.Context, src source, d v1.Descriptor) (document, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallAfter, failure.Outside("its configuration does not come"))
	defer cancel()
	body, err := src.blob(ctx, d, 0)
	if err != nil {
		return document{}, err
	}
	defer func() { _ = body.Close() }()
	data, err := readAll(body, d.Size, "configuration")
	if err != nil {
		if f := (*muster.Failure)(nil); errors.As(err, &f) {
			return document{}, err
		}
		return document{}, src.broken(ctx, err)
	}
	h, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil || h != d.Digest {
		return document{}, failure.Outside("its configuration does not have the digest %s", d.Digest)
	}
	return document{digest: h, mediaType: d.MediaType, data: data}, nil
}

func (s *Store) findInLayout(ctx context.Context, r reference) (*found, error) {
	l, err := openLayout(r.path)
	if err != nil {
		return nil, err
	}
	f := &found{src: l, ref: r.canonical, at: time.Now()}
	d, err := l.find(r.name, s.Platform)
	if err == nil {
		f.digest = d.Digest.String()
		if f.held, f.content = s.cached(f.digest); f.held != nil {
			return f, nil
		}
		var doc document
		if doc, err = l.document(ctx, d); err == nil {
			f.content, err = s.complete(ctx, l, doc)
		}
	}
	if err != nil {
		l.close()
		return nil, local(err)
	}
	return f, nil
}

func (s *Store) findInArchive(ctx context.Context, r reference) (*found, error) {
	stamp, err := stampOf(r.path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	known := s.refs[r.canonical]
	s.mu.Unlock()
	if known != nil && known.Stamp == stamp {
		if im, ct := s.cached(known.Digest); im != nil {
			return &found{content: ct, held: im, src: &lateArchive{s: s, ref: r}, ref: r.canonical, digest: known.Digest, at: known.At, stamp: stamp}, nil
		}
	}
	a, ct, err := s.readArchive(ctx, r)
	if err != nil {
		return nil, err
	}
	return &found{content: ct, src: a, ref: r.canonical, digest: ct.manifest.digest.String(), at: time.Now(), stamp: stamp}, nil
}

// readArchive opens an archive and finds the image in it.
func (s *Store) readArchive(ctx context.Context, r reference) (*archive, *content, error) {
	res := &reservation{s: s}
	defer res.end()
	a, err := openArchive(ctx, r.path, s.path(tmpDir), res)
	if err != nil {
		return nil, nil, err
	}
	ct, err := a.find(r.name, s.Platform)
	if err != nil {
		a.close()
		return nil, nil, err
	}
	return a, ct, nil
}

// lateArchive is an archive that has not changed: it is read only if a layer
// that was here turns out to be missing or bad.
type lateArchive struct {
	s   *Store
	ref reference

	once sync.Once
	a    *archive
	err  error
}

func (l *lateArchive) document(context.Context, v1.Descriptor) (document, error) {
	return document{}, failure.Unusable("%s has no manifests", l.ref.path)
}

func (l *lateArchive) blob(ctx context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	l.once.Do(func() { l.a, _, l.err = l.s.readArchive(ctx, l.ref) })
	if l.err != nil {
		return nil, l.err
	}
	return l.a.blob(ctx, d, from)
}

func (l *lateArchive) broken(_ context.Context, err error) error { return brokenFile(l.ref.path, err) }

func (l *lateArchive) close() {
	l.once.Do(func() { l.err = failure.Node("%s: closed", l.ref.path) })
	if l.a != nil {
		l.a.close()
	}
}
