package imagearch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images/source"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Grants make the rights by which the server pulls out of its credentials. *registry.Registries does.
type Grants interface {
	// Grant is the right to pull one image for a namespace.
	Grant(ctx context.Context, ref string, ns muster.Namespace) wire.PullGrant
	// Known reports whether the configuration has the registry of a reference for a namespace.
	Known(ref string, ns muster.Namespace) bool
}

// Config of a Finder.
type Config struct {
	Grants Grants
	// HTTP is what requests to registries go through. Optional.
	HTTP http.RoundTripper
	// Now is the clock. Optional.
	Now    func() time.Time
	Logger *slog.Logger // optional
}

const (
	// patience bounds the questions for one image: a submission waits for the answer.
	patience = 4 * time.Second
	// fresh is for how long an answer counts, and unknownFor for how long a registry that gave none is
	// not asked again.
	fresh, unknownFor = 5 * time.Minute, 30 * time.Second
	// maxKnown bounds the answers that are remembered.
	maxKnown = 4096
)

// Finder finds out architectures, and remembers them for a while. Its methods may be called from any
// goroutine.
type Finder struct {
	cfg Config

	// mu guards known, the answers by namespace and full reference: what one may read another may not.
	mu    sync.Mutex
	known map[asked]*answer
}

// asked is a question: an image, and the namespace whose credentials count.
type asked struct {
	ns  muster.Namespace
	ref string
}

// answer is what is known of an image. The rest is set when done is closed.
type answer struct {
	done          chan struct{}
	architectures []string
	until         time.Time
}

// New makes a Finder. It asks nobody.
func New(cfg Config) (*Finder, error) {
	if cfg.Grants == nil {
		return nil, errors.New("architectures of images: grants are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.HTTP == nil {
		cfg.HTTP = destinations.Allowed{}.Transport(patience)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Finder{cfg: cfg, known: map[asked]*answer{}}, nil
}

// Architectures are those that an image for Linux is for, sorted, as Go calls them; none if that is not
// known, with the credentials that a namespace has. All who ask for one image at the same time wait for one
// answer.
func (f *Finder) Architectures(ctx context.Context, ns muster.Namespace, ref string) []string {
	r, err := source.Parse(ref)
	if err != nil || r.Kind != source.FromRegistry || !f.cfg.Grants.Known(ref, ns) {
		return nil
	}
	q := asked{ns, r.Canonical}
	f.mu.Lock()
	a := f.known[q]
	if a == nil || a.over(f.cfg.Now()) {
		if len(f.known) >= maxKnown {
			clear(f.known)
		}
		a = &answer{done: make(chan struct{})}
		f.known[q] = a
		// It goes on when the one who asked first leaves: others may be waiting.
		go f.find(context.WithoutCancel(ctx), ns, r, a)
	}
	f.mu.Unlock()
	select {
	case <-a.done:
		return a.architectures
	case <-ctx.Done():
		return nil
	}
}

// over reports whether an answer is too old. One that is being found out is not.
func (a *answer) over(now time.Time) bool {
	select {
	case <-a.done:
		return !now.Before(a.until)
	default:
		return false
	}
}

// find finds out an answer.
func (f *Finder) find(ctx context.Context, ns muster.Namespace, r source.Reference, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer close(a.done)
	a.until = f.cfg.Now().Add(fresh)
	grant := func(ctx context.Context, ref string) (source.Grant, error) { return f.grant(ctx, ns, ref) }
	src := source.NewRegistry(r, grant, nil, f.cfg.HTTP, nil)
	defer src.Close()
	doc, err := src.ByTag(ctx)
	var platforms []source.Platform
	if err == nil {
		platforms, err = source.Resolver{Pace: source.FirstPause}.Platforms(ctx, src, doc)
	}
	if err != nil {
		// The node says what is wrong with the image, to the one whose job it is.
		f.cfg.Logger.Debug("the architectures of an image are not known", "image", r.Canonical, "error", err)
		a.until = f.cfg.Now().Add(unknownFor)
		return
	}
	for _, p := range platforms {
		if p.OS == "linux" && !slices.Contains(a.architectures, p.Architecture) {
			a.architectures = append(a.architectures, p.Architecture)
		}
	}
	slices.Sort(a.architectures)
}

// grant asks for the right to read an image.
func (f *Finder) grant(ctx context.Context, ns muster.Namespace, ref string) (source.Grant, error) {
	g := f.cfg.Grants.Grant(ctx, ref, ns)
	if g.Failure != nil {
		return source.Grant{}, g.Failure
	}
	return source.Grant{Ref: g.Pull, Authorization: g.Authorization, Insecure: g.Insecure, Until: g.Until.Std()}, nil
}
