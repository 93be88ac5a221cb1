package registry

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Config of a Registries.
type Config struct {
	Registries []api.RegistrySpec
	// Transport of requests; nil: one of its own.
	Transport http.RoundTripper
	// OpenIdentity makes the identities of entries that name one; nil in a program without the
	// libraries of clouds.
	OpenIdentity Opener
	Logger       *slog.Logger // optional
}

// Registries makes grants. All methods may be called at once.
type Registries struct {
	hosts map[string]*entries // by host, as images name it
	http  http.RoundTripper
	log   *slog.Logger

	mu sync.Mutex
	// recent are grants that may be given again, making those on their way.
	recent map[grantKey]recent
	making map[grantKey]*making
}

// grantKey is what a grant depends on: the reference, and the credentials that stand behind it.
type grantKey struct{ ref, scope string }

// known is an entry of the configuration: a registry, for all namespaces or for some.
type known struct {
	spec api.RegistrySpec
	host string
	// scope stands for its credentials; see Scope.
	scope string
	// session has the login of the entry's identity; nil if it names none.
	session *session
}

// recent is a grant that was made.
type recent struct {
	wire.PullGrant
	made time.Time
}

// making is a grant on its way.
type making struct {
	done  chan struct{} // closed with the rest set
	grant wire.PullGrant
	// off: its maker was called off, and the grant says nothing of the image.
	off bool
}

const (
	// patience bounds the making of a grant: less than an agent waits for it.
	patience = 20 * time.Second
	// reuseUntil is how long before its end a grant is last reused.
	reuseUntil = time.Minute
	// passwordFor is how long a node may use a password before it asks again.
	passwordFor = 5 * time.Minute
	// youngest is how old a grant must be for a node's word that it is refused to count: a new one
	// would be refused as well, and no node is to have a registry asked without end.
	youngest    = 10 * time.Second
	maxRecent   = 4096
	maxPassword = 64 << 10
)

// New makes one; it speaks to nobody before Grant.
func New(c Config) (*Registries, error) {
	r := &Registries{hosts: map[string]*entries{}, http: c.Transport, log: c.Logger, recent: map[grantKey]recent{}, making: map[grantKey]*making{}}
	r.log = cmp.Or(r.log, slog.New(slog.DiscardHandler))
	if r.http == nil {
		r.http = newTransport()
	}
	for i := range c.Registries {
		k := &known{spec: c.Registries[i]}
		reg, err := name.NewRegistry(k.spec.Host)
		if err != nil {
			return nil, fmt.Errorf("registry %s: %w", k.spec.Host, err)
		}
		// Docker's has three names.
		k.host, k.scope = strings.ToLower(reg.RegistryStr()), scopeOf(&k.spec)
		if r.hosts[k.host] == nil {
			r.hosts[k.host] = &entries{of: map[muster.Namespace]*known{}}
		}
		if err := r.hosts[k.host].add(k); err != nil {
			return nil, err
		}
		if k.session, err = openSession(&k.spec, c.OpenIdentity); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// ForServer makes the rights by which the server itself pulls: passwords that are not for nodes count
// too. Logins of identities are shared with r.
func (r *Registries) ForServer() *Registries {
	out := &Registries{hosts: map[string]*entries{}, http: r.http, log: r.log, recent: map[grantKey]recent{}, making: map[grantKey]*making{}}
	for host, e := range r.hosts {
		own := &entries{of: map[muster.Namespace]*known{}}
		for ns, k := range e.of {
			own.of[ns] = k.forServer()
		}
		if e.rest != nil {
			own.rest = e.rest.forServer()
		}
		out.hosts[host] = own
	}
	return out
}

// forServer is an entry whose password counts although it is not for nodes.
func (k *known) forServer() *known {
	own := *k
	own.spec.SendCredentials = own.spec.Username != ""
	return &own
}

// openSession opens the identity of an entry; nil if it names none.
func openSession(spec *api.RegistrySpec, open Opener) (*session, error) {
	if spec.Identity == "" {
		return nil, nil
	}
	if open == nil {
		return nil, fmt.Errorf("registry %s: identity %s needs the libraries of clouds, which this program was built without (tag lean)", spec.Host, spec.Identity)
	}
	identity, err := open(spec)
	if err != nil {
		return nil, fmt.Errorf("registry %s: %w", spec.Host, err)
	}
	return newSession(identity), nil
}

func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 4
	t.ResponseHeaderTimeout = patience
	return t
}

// Grant is the right to pull one image for a member of a namespace, or with Failure set why there
// is none. The empty namespace has the entries that name none. A grant is made once for all who ask
// at the same time and have the same credentials, and given again while it lasts.
func (r *Registries) Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant {
	g := r.grantFor(ctx, grantKey{ref, r.Scope(ref, ns)}, ns)
	g.Namespace = ns
	return g
}

func (r *Registries) grantFor(ctx context.Context, key grantKey, ns muster.Namespace) wire.PullGrant {
	ref := key.ref
	for {
		r.mu.Lock()
		if g, ok := r.recent[key]; ok && time.Until(g.Until.Std()) > reuseUntil {
			r.mu.Unlock()
			return g.PullGrant
		}
		m := r.making[key]
		if m == nil {
			m = &making{done: make(chan struct{})}
			r.making[key] = m
			r.mu.Unlock()
			r.finish(ctx, key, ns, m)
			return m.grant
		}
		r.mu.Unlock()
		select {
		case <-m.done:
		case <-ctx.Done():
			return wire.PullGrant{Ref: ref, Failure: Outside("image %s: %v", ref, context.Cause(ctx))}
		}
		if !m.off {
			return m.grant
		}
	}
}

// finish makes a grant for everybody who waits for it.
func (r *Registries) finish(ctx context.Context, key grantKey, ns muster.Namespace, m *making) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g, err := r.grant(bounded, key.ref, ns)
	if err != nil {
		g = wire.PullGrant{Failure: failureOf(key.ref, err)}
	}
	g.Ref, g.Scope = key.ref, key.scope
	m.grant, m.off = g, ctx.Err() != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.making, key)
	if err == nil && g.Until != 0 {
		r.rememberLocked(key, g)
	}
	close(m.done)
}

func (r *Registries) rememberLocked(key grantKey, g wire.PullGrant) {
	if len(r.recent) >= maxRecent {
		now := time.Now()
		for key, old := range r.recent {
			if old.Until.Std().Before(now) {
				delete(r.recent, key)
			}
		}
	}
	if len(r.recent) < maxRecent {
		r.recent[key] = recent{g, time.Now()}
	}
}

// Refused takes in that a node asks again for what it was given this authorization
// for. If it would be reused, another one is made.
func (r *Registries) Refused(ref string, ns muster.Namespace, authorization string) {
	key := grantKey{ref, r.Scope(ref, ns)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok := r.recent[key]; ok && g.Authorization == authorization && time.Since(g.made) >= youngest {
		delete(r.recent, key)
		if k := r.knownOf(ref, ns); k != nil && k.session != nil {
			k.session.stale.Store(true)
		}
	}
}

// FullName is the same for all ways to write one reference: with its registry,
// and a digest or a tag. What is not of a registry is given back as it is.
func (r *Registries) FullName(ref string) string {
	n, err := name.ParseReference(ref)
	if err != nil {
		return ref
	}
	return n.Name()
}

// grant makes one. An error is a *muster.Failure, or of a registry or the way to it.
func (r *Registries) grant(ctx context.Context, ref string, ns muster.Namespace) (wire.PullGrant, error) {
	from, err := name.ParseReference(ref)
	if err != nil {
		// Not of a registry, or malformed: the node says which.
		return wire.PullGrant{}, nil
	}
	k := r.entry(host(from), ns)
	if k == nil {
		return wire.PullGrant{}, nil
	}
	if k.spec.Mirror != "" {
		if g, ok := r.mirrored(ctx, k, from, ns); ok {
			return g, nil
		}
	}
	return r.authorize(ctx, k, from)
}

// Known reports whether the configuration has the registry of a reference for a namespace.
func (r *Registries) Known(ref string, ns muster.Namespace) bool { return r.knownOf(ref, ns) != nil }

// knownOf is the entry that a namespace has for the registry of a reference; nil if it has none.
func (r *Registries) knownOf(ref string, ns muster.Namespace) *known {
	n, err := name.ParseReference(ref)
	if err != nil {
		return nil
	}
	return r.entry(host(n), ns)
}

func host(ref name.Reference) string { return strings.ToLower(ref.Context().RegistryStr()) }

// password is read whenever it is needed: whoever changes the file need not restart the server.
func (k *known) password() (string, error) {
	if k.spec.PasswordFile == "" {
		return k.spec.Password.Reveal(), nil
	}
	f, err := os.Open(k.spec.PasswordFile)
	if err != nil {
		return "", Outside("password file of registry %s: %v", k.spec.Host, err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	switch {
	case err != nil:
		return "", Outside("password file of registry %s: %v", k.spec.Host, err)
	case len(b) > maxPassword:
		return "", Outside("password file %s of registry %s: has more than %d bytes", k.spec.PasswordFile, k.spec.Host, maxPassword)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// credentials of the configuration; anonymous if there are none.
func (k *known) credentials() (authn.Authenticator, error) {
	if k.spec.Username == "" {
		return authn.Anonymous, nil
	}
	p, err := k.password()
	if err != nil {
		return nil, err
	}
	return &authn.Basic{Username: k.spec.Username, Password: p}, nil
}
