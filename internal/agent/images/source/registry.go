package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/failure"
)

// Grant is the right to pull one image for a short time. It comes from the server, which keeps the
// credentials that it was made from.
type Grant struct {
	// Ref is where to pull from instead: a mirror, or the same image by digest. Empty: as asked.
	Ref string
	// Authorization is the value of that header for this repository, as "Bearer …". Empty:
	// anonymous.
	Authorization string
	// Username and Password are of a login, for those who have one of their own; the registry gets them,
	// and the service that it gets its tokens from. Agents have none: theirs stays on the server.
	Username, Password string
	// Insecure allows plain http, and registries of this machine.
	Insecure bool
	// Until is when it ends. Zero: it is used for a minute.
	Until time.Time
	// Digest is what the reference means, if the server has that image in its cache: then the server
	// sends what it is made of, and the registry is not asked. Zero: it is pulled from the registry.
	Digest v1.Hash
	// Scope stands for the credentials that it was made from; empty if everybody has the same.
	Scope string
}

// scope says who may use what is pulled with the grant: everybody, if the registry itself shows it
// without credentials.
func (g *Grant) scope() string {
	if g.Digest == (v1.Hash{}) && g.Authorization == "" && g.Ref == "" {
		return muster.PublicScope
	}
	return g.Scope
}

const (
	// defaultUntil is how long a session is used again whose grant does not say so, or that has
	// none.
	defaultUntil = time.Minute
)

// Registry is one repository of a registry, as a source.
type Registry struct {
	ref Reference
	// grant asks the server for the right to pull a reference; nil: it pulls anonymously.
	grant func(context.Context, string) (Grant, error)
	// sent waits for a blob that the server sends from its cache; nil: it sends none.
	sent Sender
	// recheck is how often the server is asked, while it sends nothing, whether it still will.
	recheck time.Duration
	// http is what all requests go through, behind a guard.
	http http.RoundTripper
	// destinations are where the registry may be, and where it may send this node.
	destinations destinations.Allowed

	// sess is the session that is used again; nil: none was opened yet. shown is the scope by which
	// the image was shown last.
	mu    sync.Mutex
	sess  *session
	shown string
}

// NewRegistry makes a source of the repository of a reference. If grant is nil, it pulls
// anonymously; if sent is nil, it takes nothing from the server's cache.
func NewRegistry(ref Reference, grant func(context.Context, string) (Grant, error), sent Sender, http http.RoundTripper, destinations destinations.Allowed) *Registry {
	return &Registry{ref: ref, grant: grant, sent: sent, recheck: recheckSent, http: http, destinations: destinations}
}

// session is a way to a repository that was opened with a grant, or without any.
type session struct {
	client *http.Client
	// base is the URL of the repository.
	base string
	// target is what is pulled: the reference itself, or what the grant names instead.
	target Reference
	// until is when a new session is to be opened.
	until time.Time
	// scope says who may use what is pulled.
	scope string
	// digest is what the reference means, if the server sends the image; then there is no client, and
	// grant is what the registry is asked with if that is needed all the same.
	digest v1.Hash
	grant  Grant
}

// open gives the session: a new one if the old one is over or was refused.
func (r *Registry) open(ctx context.Context, refused *session) (*session, error) {
	r.mu.Lock()
	s := r.sess
	r.mu.Unlock()
	if s != nil && s != refused && time.Now().Before(s.until) {
		return s, nil
	}
	s, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.sess = s
	r.mu.Unlock()
	return s, nil
}

// Shown says who may use the image that Head or ByTag has found: the scope of the credentials by
// which the registry has shown it last, muster.PublicScope if it needed none.
func (r *Registry) Shown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shown
}

// showed notes that the image was shown in a session.
func (r *Registry) showed(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown = s.scope
}

// connect opens a session: it asks for a grant, and finds out how the registry wants to be asked.
func (r *Registry) connect(ctx context.Context) (*session, error) {
	var g Grant
	target := r.ref
	if r.grant != nil {
		var err error
		if g, err = r.grant(ctx, r.ref.Canonical); err != nil {
			if f := (*muster.Failure)(nil); errors.As(err, &f) || ctx.Err() != nil {
				return nil, err
			}
			return nil, failure.Outside("the right to pull was not had: %s", said(err))
		}
	}
	if g.Digest != (v1.Hash{}) && r.sent != nil {
		s := &session{target: target, until: g.Until, scope: g.scope(), digest: g.Digest, grant: g}
		if s.until.IsZero() {
			s.until = time.Now().Add(defaultUntil)
		}
		return s, nil
	}
	return r.reach(ctx, target, g)
}

// reach opens a session with the registry itself.
func (r *Registry) reach(ctx context.Context, target Reference, g Grant) (*session, error) {
	// The server may send the node to a mirror.
	if g.Ref != "" {
		var err error
		if target, err = parseRemote(g.Ref); err != nil {
			return nil, failure.Outside("the server sends it elsewhere: %v", err)
		}
	}
	host := target.repo.RegistryStr()
	switch {
	case isForbidden(r.destinations, hostOf(host)):
		return nil, failure.Unusable("registry %s: it is an address that no registry uses", host)
	// Services of the node itself are none that a user may reach by an image.
	case isHere(hostOf(host)) && !g.Insecure:
		return nil, failure.Unusable("registry %s is on the node itself: that is allowed only to registries that the server's configuration calls insecure", host)
	}
	s := &session{target: target, until: g.Until, scope: g.scope()}
	if s.until.IsZero() {
		s.until = time.Now().Add(defaultUntil)
	}
	rt, scheme, err := r.authorize(ctx, target, g)
	if err != nil {
		return nil, err
	}
	s.client = &http.Client{Transport: rt, CheckRedirect: checkRedirect}
	s.base = scheme + "://" + host + "/v2/" + target.repo.RepositoryStr() + "/"
	return s, nil
}

// authorize finds out how the registry wants to be spoken to: by which scheme, and with which
// tokens.
func (r *Registry) authorize(ctx context.Context, target Reference, g Grant) (http.RoundTripper, string, error) {
	host, header, plain := target.repo.RegistryStr(), g.Authorization, g.Insecure
	base := guard{inner: r.http, destinations: r.destinations, plain: plain, local: plain && isHere(hostOf(host))}
	var opts []name.Option
	if plain {
		opts = append(opts, name.Insecure)
	}
	reg, err := name.NewRegistry(host, opts...)
	if err != nil {
		return nil, "", failure.Unusable("registry %q: %v", host, err)
	}
	// Without a header of the server's, tokens are got as anybody gets them, or by a login.
	if header == "" {
		who := authn.Anonymous
		if g.Username != "" {
			who = &authn.Basic{Username: g.Username, Password: g.Password}
		}
		rt, err := transport.NewWithContext(ctx, reg, who, base, []string{target.repo.Scope(transport.PullScope)})
		// The transport puts the scheme that it found in place of this one.
		return rt, "https", r.answer(ctx, err)
	}
	scheme := "https"
	if plain {
		// Whether it speaks https or http is seen by trying.
		ch, err := transport.Ping(ctx, reg, base)
		if err != nil {
			return nil, "", r.answer(ctx, err)
		}
		if ch.Insecure {
			scheme = "http"
		}
	}
	return granted{inner: base, scheme: scheme, host: host, header: header}, scheme, nil
}

// granted sends the header to its registry and nowhere else, because a registry sends its clients
// to other hosts for blobs.
type granted struct {
	inner http.RoundTripper
	// scheme and host are the registry's, and header is for these alone.
	scheme, host, header string
}

// RoundTrip sends a request.
func (g granted) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == g.host && req.URL.Scheme == g.scheme {
		// A transport must not change the request that it is given.
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", g.header)
	}
	return g.inner.RoundTrip(req)
}

// guard keeps a registry from sending this node where it should not go, wherever the request comes
// from: redirects and the realms of tokens are the registry's words. It refuses plain http where it
// was not allowed (the library tries it for addresses of private networks, too), the services of
// this machine for all registries but those on it, and the metadata addresses of clouds always.
type guard struct {
	inner        http.RoundTripper
	destinations destinations.Allowed
	// plain allows plain http, and local the services of this machine.
	plain, local bool
}

// RoundTrip sends a request, or refuses it.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	host := req.URL.Hostname()
	switch {
	case isForbidden(g.destinations, host), isHere(host) && !g.local:
		return nil, errRedirect
	case req.URL.Scheme != "https" && !g.plain:
		return nil, errPlain
	}
	if g.local {
		req = req.WithContext(destinations.AllowHere(req.Context()))
	}
	return steadily(g.inner, req)
}

var (
	errPlain    = errors.New("plain http is refused: only registries that the server's configuration calls insecure may use it")
	errRedirect = errors.New("it sends to an address that no registry uses")
)

// checkRedirect bounds the number of redirects. The guard decides where they may lead.
func checkRedirect(_ *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("it sends from one address to the next")
	}
	return nil
}

// answer makes a failure of what a registry, or the way to it, said.
func (r *Registry) answer(ctx context.Context, err error) error {
	var a *transport.Error
	var untrusted *tls.CertificateVerificationError
	host := r.ref.repo.RegistryStr()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	// The reasons that are most helpful come first.
	case errors.Is(err, errSlow):
		return failure.Outside("registry %s sends too slowly", host)
	case errors.As(err, &untrusted), !errors.As(err, &a):
		return failure.Outside("registry %s cannot be reached: %s", host, said(err))
	}
	switch c := a.StatusCode; {
	case c == http.StatusUnauthorized, c == http.StatusForbidden:
		return failure.NotFound("not found or no access: check the spelling, the tag, and in the server's configuration the credentials for %s and which namespaces have them", host)
	case c == http.StatusNotFound:
		return failure.NotFound("it does not exist in %s: check the spelling and the tag", host)
	case c == http.StatusTooManyRequests:
		return failure.Outside("registry %s wants fewer requests: %s", host, status(a))
	case c >= 500, c == http.StatusRequestTimeout, c == http.StatusTooEarly:
		return failure.Outside("registry %s is out of order: %s", host, status(a))
	}
	return failure.Unusable("registry %s refuses: %s", host, status(a))
}

// do sends a request for something in the repository. If the grant is over or was taken back, it
// asks for a new one, once.
func (r *Registry) do(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	var refused *session
	for {
		s, err := r.open(ctx, refused)
		// The server may have taken the image into its cache since the caller looked.
		if err == nil && s.client == nil {
			s, err = r.reach(ctx, s.target, s.grant)
		}
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
		if err != nil {
			return nil, failure.Unusable("%s", said(err))
		}
		for k, v := range header {
			req.Header[k] = v
		}
		// Registries tell by this who asks them.
		req.Header.Set("User-Agent", "muster-node")
		resp, err := s.client.Do(req)
		if err != nil {
			return nil, r.answer(ctx, err)
		}
		switch resp.StatusCode {
		case http.StatusOK, http.StatusPartialContent:
			if strings.HasPrefix(path, manifests) {
				r.showed(s)
			}
			return resp, nil
		}
		err = transport.CheckError(resp)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return nil, partError{r.answer(ctx, err)}
		}
		// A grant may end between two requests. A new one is asked for once.
		if resp.StatusCode == http.StatusUnauthorized && r.grant != nil && refused == nil {
			refused = s
			continue
		}
		return nil, withPause(r.answer(ctx, err), resp.Header.Get("Retry-After"))
	}
}

// pauseError is a failure with the time for which the registry wants to be left alone.
type pauseError struct {
	error
	pause time.Duration
}

// Unwrap is the failure.
func (e pauseError) Unwrap() error { return e.error }

// withPause adds the time that an answer asks for to a failure.
func withPause(err error, retryAfter string) error {
	// A date is possible too, and nobody sends one.
	if n, e := strconv.Atoi(retryAfter); e == nil && n > 0 && failure.Is(err, muster.FailureOutside) {
		return pauseError{err, time.Duration(min(n, 3600)) * time.Second}
	}
	return err
}

// partError is the answer of a registry that does not give the part that it was asked for.
type partError struct{ error }

// Unwrap is the failure.
func (e partError) Unwrap() error { return e.error }

// isPartRefused reports whether the registry gave no part.
func isPartRefused(err error) bool {
	var p partError
	return errors.As(err, &p)
}

// manifests is where in a repository its manifests are.
const manifests = "manifests/"

// acceptManifest names the kinds of manifests that can be read here.
var acceptManifest = http.Header{"Accept": {
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}}

// ident is what to ask the repository for: the tag or digest, perhaps the mirror's.
func (r *Registry) ident(ctx context.Context) (string, error) {
	s, err := r.open(ctx, nil)
	if err != nil {
		return "", err
	}
	if s.target.Digest != nil {
		return s.target.Digest.String(), nil
	}
	return s.target.tag, nil
}

// Head asks what a tag means now. ok is false if the registry does not say it this way.
func (r *Registry) Head(ctx context.Context) (h v1.Hash, ok bool, err error) {
	if s, err := r.open(ctx, nil); err != nil || s.digest != (v1.Hash{}) {
		if err == nil {
			r.showed(s)
		}
		return s.sentDigest(), err == nil, err
	}
	id, err := r.ident(ctx)
	if err != nil {
		return h, false, err
	}
	resp, err := r.do(ctx, http.MethodHead, manifests+id, acceptManifest)
	if err != nil {
		return h, false, err
	}
	_ = resp.Body.Close()
	h, err = v1.NewHash(resp.Header.Get("Docker-Content-Digest"))
	return h, err == nil && h.Algorithm == "sha256", nil
}

// ByTag gets the manifest or index that the reference means.
func (r *Registry) ByTag(ctx context.Context) (Document, error) {
	s, err := r.open(ctx, nil)
	if err != nil {
		return Document{}, err
	}
	if s.digest != (v1.Hash{}) {
		if r.ref.Digest != nil && *r.ref.Digest != s.digest {
			return Document{}, failure.Outside("the server sends %s where %s was asked for", s.digest, r.ref.Digest)
		}
		r.showed(s)
		return r.Document(ctx, v1.Descriptor{Digest: s.digest})
	}
	id, err := r.ident(ctx)
	if err != nil {
		return Document{}, err
	}
	var want v1.Hash
	if r.ref.Digest != nil {
		want = *r.ref.Digest
	}
	return r.get(ctx, id, want)
}

// Document gets a manifest or index by its digest.
func (r *Registry) Document(ctx context.Context, d v1.Descriptor) (Document, error) {
	if f, err := r.fromServer(ctx, d.Digest); f != nil || err != nil {
		if err != nil {
			return Document{}, err
		}
		defer func() { _ = f.Close() }()
		data, err := readAll(f, maxManifest, "manifest")
		if err != nil {
			return Document{}, failure.Node("manifest %s: %v", d.Digest, err)
		}
		return newDocument(data, d.MediaType, d.Digest)
	}
	return r.get(ctx, d.Digest.String(), d.Digest)
}

// get gets a manifest or index. If want is not empty, it must have this digest.
func (r *Registry) get(ctx context.Context, id string, want v1.Hash) (Document, error) {
	resp, err := r.do(ctx, http.MethodGet, manifests+id, acceptManifest)
	if err != nil {
		return Document{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := readAll(resp.Body, maxManifest, "manifest")
	if err != nil {
		return Document{}, r.Broken(ctx, err)
	}
	mediaType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return newDocument(data, types.MediaType(strings.TrimSpace(mediaType)), want)
}

// Broken is the failure of a transfer that ended in the middle.
func (r *Registry) Broken(ctx context.Context, err error) error {
	if f := (*muster.Failure)(nil); errors.As(err, &f) {
		return err
	}
	return r.answer(ctx, err)
}

// Close does nothing: the session is used again.
func (r *Registry) Close() {}

// readAll reads at most so many bytes of what the image has, and fails if there are more.
func readAll(r io.Reader, most int64, what string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		return nil, failure.Unusable("its %s has more than %d bytes", what, most)
	}
	return b, err
}

// Blob opens a blob at a byte. It asks for a part with its end, because there are registries that
// refuse an open one with 416. A registry that refuses that too, or knows no parts, sends all of
// it, and what was read already is passed over.
func (r *Registry) Blob(ctx context.Context, d v1.Descriptor, from int64) (io.ReadCloser, error) {
	if f, err := r.fromServer(ctx, d.Digest); f != nil || err != nil {
		if err != nil {
			return nil, err
		}
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			_ = f.Close()
			return nil, failure.Node("layer %s: %v", d.Digest, err)
		}
		return f, nil
	}
	part := ""
	if from > 0 && from < d.Size {
		part = fmt.Sprintf("bytes=%d-%d", from, d.Size-1)
	}
	resp, err := r.blobPart(ctx, d, part)
	if part != "" && isPartRefused(err) {
		resp, err = r.blobPart(ctx, d, "")
	}
	if err != nil {
		if failure.IsNotFound(err) {
			return nil, failure.Unusable("its manifest names %s, which the registry does not give", d.Digest)
		}
		return nil, err
	}
	// This is what was asked for.
	if from == 0 || resp.StatusCode == http.StatusPartialContent && startsAt(resp.Header.Get("Content-Range"), from) {
		return resp.Body, nil
	}
	if resp.StatusCode == http.StatusPartialContent {
		_ = resp.Body.Close()
		return nil, failure.Outside("registry %s sends another part of %s than it was asked for", r.ref.repo.RegistryStr(), d.Digest)
	}
	// All of it comes. What is here already is read and thrown away.
	if _, err := io.CopyN(io.Discard, resp.Body, from); err != nil {
		_ = resp.Body.Close()
		return nil, r.answer(ctx, err)
	}
	return resp.Body, nil
}

// blobPart asks for a part of a blob, or for all of it if part is empty.
func (r *Registry) blobPart(ctx context.Context, d v1.Descriptor, part string) (*http.Response, error) {
	header := http.Header{"Accept-Encoding": {"identity"}} // the digest is of the bytes as they are stored
	if part != "" {
		header.Set("Range", part)
	}
	return r.do(ctx, http.MethodGet, "blobs/"+d.Digest.String(), header)
}

// startsAt reports whether an answer begins at this byte.
func startsAt(contentRange string, from int64) bool {
	rest, ok := strings.CutPrefix(contentRange, "bytes ")
	first, _, found := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	return ok && found && err == nil && n == from
}
