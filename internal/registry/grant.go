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
	known map[string]*known // by host, as images name it
	http  http.RoundTripper
	log   *slog.Logger

	mu sync.Mutex
	// recent are grants that may be given again, making those on their way; by reference.
	recent map[string]recent
	making map[string]*making
}

// known is a registry of the configuration.
type known struct {
	spec api.RegistrySpec
	host string
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
	// anew is how long before its end a grant is not given again.
	anew = time.Minute
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
	r := &Registries{known: map[string]*known{}, http: c.Transport, log: c.Logger, recent: map[string]recent{}, making: map[string]*making{}}
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
		k.host = strings.ToLower(reg.RegistryStr())
		if r.known[k.host] != nil {
			return nil, fmt.Errorf("registry %s: is the same as %s", k.spec.Host, r.known[k.host].spec.Host)
		}
		if k.session, err = openSession(&k.spec, c.OpenIdentity); err != nil {
			return nil, err
		}
		r.known[k.host] = k
	}
	return r, nil
}

// ForServer makes the rights by which the server itself pulls: passwords that are not for nodes count
// too. Logins of identities are shared with r.
func (r *Registries) ForServer() *Registries {
	out := &Registries{known: map[string]*known{}, http: r.http, log: r.log, recent: map[string]recent{}, making: map[string]*making{}}
	for host, k := range r.known {
		own := *k
		own.spec.SendCredentials = own.spec.Username != ""
		out.known[host] = &own
	}
	return out
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

// Grant is the right to pull one image, or with Failure set why there is none.
// A grant is made once for all who ask at the same time, and given again while it lasts.
func (r *Registries) Grant(ctx context.Context, ref string) wire.PullGrant {
	for {
		r.mu.Lock()
		if g, ok := r.recent[ref]; ok && time.Until(g.Until.Std()) > anew {
			r.mu.Unlock()
			return g.PullGrant
		}
		m := r.making[ref]
		if m == nil {
			m = &making{done: make(chan struct{})}
			r.making[ref] = m
			r.mu.Unlock()
			r.finish(ctx, ref, m)
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
func (r *Registries) finish(ctx context.Context, ref string, m *making) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g, err := r.grant(bounded, ref)
	g.Ref = ref
	if err != nil {
		g = wire.PullGrant{Ref: ref, Failure: failureOf(ref, err)}
	}
	m.grant, m.off = g, ctx.Err() != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.making, ref)
	if err == nil && g.Until != 0 {
		r.rememberLocked(g)
	}
	close(m.done)
}

func (r *Registries) rememberLocked(g wire.PullGrant) {
	if len(r.recent) >= maxRecent {
		now := time.Now()
		for ref, old := range r.recent {
			if old.Until.Std().Before(now) {
				delete(r.recent, ref)
			}
		}
	}
	if len(r.recent) < maxRecent {
		r.recent[g.Ref] = recent{g, time.Now()}
	}
}

// Refused takes in that a node asks again for what it was given this authorization
// for. If it would be given again, it is made anew.
func (r *Registries) Refused(ref, authorization string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok := r.recent[ref]; ok && g.Authorization == authorization && time.Since(g.made) >= youngest {
		delete(r.recent, ref)
		if k := r.knownOf(ref); k != nil && k.session != nil {
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
func (r *Registries) grant(ctx context.Context, ref string) (wire.PullGrant, error) {
	from, err := name.ParseReference(ref)
	if err != nil {
		// Not of a registry, or malformed: the node says which.
		return wire.PullGrant{}, nil
	}
	k := r.known[host(from)]
	if k == nil {
		return wire.PullGrant{}, nil
	}
	if k.spec.Mirror != "" {
		if g, ok := r.mirrored(ctx, k, from); ok {
			return g, nil
		}
	}
	return r.authorize(ctx, k, from)
}

// Known reports whether the configuration has the registry of a reference.
func (r *Registries) Known(ref string) bool { return r.knownOf(ref) != nil }

// knownOf is the registry of a reference, if the configuration has it; else nil.
func (r *Registries) knownOf(ref string) *known {
	n, err := name.ParseReference(ref)
	if err != nil {
		return nil
	}
	return r.known[host(n)]
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
