package registry

import (
	"cmp"
	"context"
	"encoding/base64"
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
	g := wire.PullGrant{Insecure: k.spec.Insecure}
	if k.spec.Username == "" {
		return g, nil // the node asks for an anonymous token by itself
	}
	reg, err := k.registry(ref)
	if err != nil {
		return g, err
	}
	rt := k.guard(r.http)
	began := time.Now()
	challenge, err := transport.Ping(ctx, reg, rt)
	if err != nil {
		return g, k.explain(err)
	}
	switch strings.ToLower(challenge.Scheme) {
	case "":
		return g, nil // open to everybody
	case "bearer":
		auth, err := k.credentials()
		if err != nil {
			return g, err
		}
		scope := ref.Context().Scope(transport.PullScope)
		t, err := transport.Exchange(ctx, reg, auth, rt, []string{scope}, challenge)
		if err != nil {
			return g, k.explain(err)
		}
		token := cmp.Or(t.Token, t.AccessToken)
		if token == "" || strings.ContainsAny(token, "\r\n") {
			return g, outside("registry %s: its token server answers without a token", k.spec.Host)
		}
		lasts := time.Duration(t.ExpiresIn) * time.Second
		if lasts <= 0 || lasts > 24*time.Hour {
			lasts = tokenUsual
		}
		g.Authorization, g.Until = "Bearer "+token, muster.At(began.Add(lasts))
		return g, nil
	case "basic":
		if !k.spec.SendCredentials {
			return g, noAccess("registry %s takes only a username and a password, which stay with the server; "+
				"send_credentials: true in its entry under registries gives them to nodes", k.spec.Host)
		}
		password, err := k.password()
		if err != nil {
			return g, err
		}
		g.Authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(k.spec.Username+":"+password))
		g.Until = muster.At(began.Add(passwordFor))
		return g, nil
	}
	return g, outside("registry %s wants to be asked in a way (%s) that is not known here", k.spec.Host, short(challenge.Scheme))
}

// mirrored is the grant for a mirror that has the image; not ok if it has not, or
// does not answer.
func (r *Registries) mirrored(ctx context.Context, k *known, ref name.Reference) (wire.PullGrant, bool) {
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
	m := r.known[host(there)]
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
		return outside("registry %s cannot be reached: %s", k.spec.Host, way(err))
	}
	switch code := said.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		if k.spec.Username == "" {
			return noAccess("not found in registry %s, or no access: check its spelling, or give credentials under registries in the server's configuration", k.spec.Host)
		}
		return noAccess("not found in registry %s, or no access for user %s: check its spelling, and the credentials under registries in the server's configuration", k.spec.Host, k.spec.Username)
	case code == http.StatusNotFound:
		return noAccess("not found in registry %s: check its spelling", k.spec.Host)
	default:
		return outside("registry %s is out of order: it answers %d %s", k.spec.Host, code, http.StatusText(code))
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

func noAccess(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImageNotFound, Message: fmt.Sprintf(format, args...)}
}

func outside(format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonImage, Message: fmt.Sprintf(format, args...)}
}

// failureOf names the image.
func failureOf(ref string, err error) *muster.Failure {
	var f *muster.Failure
	if !errors.As(err, &f) {
		f = outside("%s", short(err.Error()))
	}
	named := *f
	named.Message = "image " + ref + ": " + f.Message
	return &named
}
