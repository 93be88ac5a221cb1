package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// tokenUsual is how long a token lasts that does not say it, as the token protocol has it.
const tokenUsual = 60 * time.Second

// authorize asks a registry how it wants to be asked, and makes what the node is
// to show there.
func (r *Registries) authorize(ctx context.Context, k *known, ref name.Reference) (wire.PullGrant, error) {
	if k.session != nil {
		g, err := r.authorizeIdentity(ctx, k, ref)
		if !errors.Is(err, errRefused) {
			return g, err
		}
		// The cloud may have taken back the login before its end. A new one is tried once.
		k.session.stale.Store(true)
		if g, err = r.authorizeIdentity(ctx, k, ref); errors.Is(err, errRefused) {
			err = k.denied("the server's identity")
		}
		return g, err
	}
	if k.spec.Username == "" {
		return wire.PullGrant{Insecure: k.spec.Insecure}, nil // the node asks for an anonymous token by itself
	}
	g, _, err := r.exchange(ctx, k, ref, Login{})
	return g, err
}

// authorizeIdentity is authorize with what the cloud gives to the server's identity. The error is
// errRefused if the registry does not accept that.
func (r *Registries) authorizeIdentity(ctx context.Context, k *known, ref name.Reference) (wire.PullGrant, error) {
	login, err := k.session.get(ctx)
	if err != nil {
		return wire.PullGrant{}, err
	}
	g, scheme, err := r.exchange(ctx, k, ref, login)
	if err != nil || g.Authorization == "" {
		return g, err
	}
	who := cmp.Or(login.Who, "the server's identity")
	if err := k.check(ctx, k.guard(r.http), scheme, ref, &g, who); err != nil {
		return wire.PullGrant{}, err
	}
	return g, nil
}

// exchange makes what the node is to show, out of a login or, if that is zero, of the credentials
// of the configuration. It also returns the scheme by which the registry is spoken to.
func (r *Registries) exchange(ctx context.Context, k *known, ref name.Reference, login Login) (g wire.PullGrant, scheme string, err error) {
	g, scheme = wire.PullGrant{Insecure: k.spec.Insecure}, "https"
	reg, err := k.registry(ref)
	if err != nil {
		return g, scheme, err
	}
	rt := k.guard(r.http)
	began := time.Now()
	challenge, err := transport.Ping(ctx, reg, rt)
	if err != nil {
		return g, scheme, k.explain(err)
	}
	if challenge.Insecure {
		scheme = "http"
	}
	switch strings.ToLower(challenge.Scheme) {
	case "":
		return g, scheme, nil // open to everybody
	case "bearer":
		err = r.bearer(ctx, k, &g, reg, ref, challenge, login, began)
	case "basic":
		err = k.basic(&g, login, began)
	default:
		err = Outside("registry %s wants to be asked in a way (%s) that is not known here", k.spec.Host, short(challenge.Scheme))
	}
	return g, scheme, err
}

// bearer gets a token for the repository from the token server that the registry names.
func (r *Registries) bearer(ctx context.Context, k *known, g *wire.PullGrant, reg name.Registry, ref name.Reference, challenge *transport.Challenge, login Login, began time.Time) error {
	auth := login.auth()
	if k.session == nil {
		var err error
		if auth, err = k.credentials(); err != nil {
			return err
		}
	}
	scope := ref.Context().Scope(transport.PullScope)
	t, err := transport.Exchange(ctx, reg, auth, k.guard(r.http), []string{scope}, challenge)
	var said *transport.Error
	switch {
	case err != nil && k.session != nil && errors.As(err, &said) && said.StatusCode == http.StatusUnauthorized:
		return errRefused
	case err != nil && k.session != nil && errors.As(err, &said) && said.StatusCode == http.StatusForbidden:
		return k.denied(cmp.Or(login.Who, "the server's identity"))
	case err != nil:
		return k.explain(err)
	}
	token := cmp.Or(t.Token, t.AccessToken)
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return Outside("registry %s: its token server answers without a token", k.spec.Host)
	}
	lasts := time.Duration(t.ExpiresIn) * time.Second
	if lasts <= 0 || lasts > 24*time.Hour {
		lasts = tokenUsual
	}
	g.Authorization, g.Until = "Bearer "+token, muster.At(began.Add(lasts))
	return nil
}

// basic gives out a password: of the configuration only if that says so, of a login always, as it
// ends by itself and the registry knows no smaller right.
func (k *known) basic(g *wire.PullGrant, login Login, began time.Time) error {
	until := began.Add(passwordFor)
	switch {
	case k.session != nil:
		g.Authorization = basic(login.Username, login.Password.Reveal())
		if login.Until.Before(until) {
			until = login.Until
		}
	case !k.spec.SendCredentials:
		return NoAccess("registry %s takes only a username and a password, which stay with the server; "+
			"send_credentials: true in its entry under registries gives them to nodes, and with image_cache the server pulls for them", k.spec.Host)
	default:
		password, err := k.password()
		if err != nil {
			return err
		}
		g.Authorization = basic(k.spec.Username, password)
	}
	g.Until = muster.At(until)
	return nil
}

// mirrored is the grant for a mirror that has the image; not ok if it has not, or
// does not answer.
func (r *Registries) mirrored(ctx context.Context, k *known, ref name.Reference, ns muster.Namespace) (wire.PullGrant, bool) {
	where := k.spec.Mirror + "/" + ref.Context().RepositoryStr()
	if _, isTag := ref.(name.Tag); isTag {
		where += ":" + ref.Identifier()
	} else {
		where += "@" + ref.Identifier()
	}
	there, err := name.ParseReference(where)
	if err != nil {
		r.log.Warn("mirror not used", "registry", k.spec.Host, "mirror", k.spec.Mirror, "error", err)
		return wire.PullGrant{}, false
	}
	m := r.entry(host(there), ns)
	if m == nil {
		m = &known{host: host(there)}
		m.spec.Host = m.host
	}
	g, err := m.has(ctx, r, there)
	if err != nil {
		r.log.Info("mirror not used", "registry", k.spec.Host, "mirror", k.spec.Mirror, "image", ref.Name(), "error", m.explain(err))
		return wire.PullGrant{}, false
	}
	g.Pull = where
	return g, true
}

// mirrorPatience is how long a mirror may take before the registry itself is asked.
const mirrorPatience = 5 * time.Second

// has makes a grant for an image that is found to be there.
func (k *known) has(ctx context.Context, r *Registries, ref name.Reference) (wire.PullGrant, error) {
	ctx, cancel := context.WithTimeout(ctx, mirrorPatience)
	defer cancel()
	g, err := r.authorize(ctx, k, ref)
	if err != nil {
		return g, err
	}
	if k.session != nil {
		return g, nil // its image was asked for with the login
	}
	auth, err := k.credentials()
	if err != nil {
		return g, err
	}
	reg, err := k.registry(ref)
	if err != nil {
		return g, err
	}
	repo := reg.Repo(ref.Context().RepositoryStr())
	var at name.Reference = repo.Tag(ref.Identifier())
	if _, isTag := ref.(name.Tag); !isTag {
		at = repo.Digest(ref.Identifier())
	}
	_, err = remote.Head(at, remote.WithContext(ctx), remote.WithTransport(k.guard(r.http)), remote.WithAuth(auth), remote.WithRetryPredicate(func(error) bool { return false }))
	return g, err
}

// registry is where an image is asked for, by plain HTTP too if that is allowed.
func (k *known) registry(ref name.Reference) (name.Registry, error) {
	var opts []name.Option
	if k.spec.Insecure {
		opts = append(opts, name.Insecure)
	}
	return name.NewRegistry(ref.Context().RegistryStr(), opts...)
}

// guard refuses what the library would do by itself: plain HTTP to every address of a
// private network. Redirects and token servers go through it as well.
type guard struct {
	inner http.RoundTripper
	plain bool
}

var errPlain = errors.New("plain HTTP is refused; insecure: true in its entry under registries allows it")

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !g.plain {
		return nil, errPlain
	}
	return g.inner.RoundTrip(req)
}

func (k *known) guard(inner http.RoundTripper) http.RoundTripper {
	return guard{inner: inner, plain: k.spec.Insecure || isLoopback(k.host)}
}

func isLoopback(registry string) bool {
	h := registry
	if before, _, err := net.SplitHostPort(registry); err == nil {
		h = before
	}
	if h == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(h, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// explain makes a failure of what a registry, or the way to it, said. Nothing of
// the answer's text is repeated: it may be what was sent.
func (k *known) explain(err error) error {
	var f *muster.Failure
	var said *transport.Error
	switch {
	case errors.As(err, &f):
		return f
	case !errors.As(err, &said):
		return Outside("registry %s cannot be reached: %s", k.spec.Host, way(err))
	}
	switch code := said.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		if k.spec.Username == "" {
			return NoAccess("not found in registry %s, or no access: check its spelling, or give credentials under registries in the server's configuration", k.spec.Host)
		}
		return NoAccess("not found in registry %s, or no access for user %s: check its spelling, and the credentials under registries in the server's configuration", k.spec.Host, k.spec.Username)
	case code == http.StatusNotFound:
		return NoAccess("not found in registry %s: check its spelling", k.spec.Host)
	default:
		return Outside("registry %s is out of order: it answers %d %s", k.spec.Host, code, http.StatusText(code))
	}
}

// way says what went wrong on the way, without the address that was asked: its query may have an account.
func way(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "it does not answer"
	}
	return short(err.Error())
}

func short(s string) string {
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

// NoAccess is the failure for an image that the server cannot get a right to pull for: someone must
// change the job or the configuration.
func NoAccess(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImageNotFound, Message: fmt.Sprintf(format, args...)}
}

// Outside is the failure of a registry, of a cloud, or of the way to one. It may pass by itself.
func Outside(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonImage, Message: fmt.Sprintf(format, args...)}
}

// failureOf names the image.
func failureOf(ref string, err error) *muster.Failure {
	var f *muster.Failure
	if !errors.As(err, &f) {
		f = Outside("%s", short(err.Error()))
	}
	named := *f
	named.Message = "image " + ref + ": " + f.Message
	return &named
}
