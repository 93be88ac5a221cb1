package poseidon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/wait"
)

// prefix of all paths.
const prefix = "/api/v1/"

// tokenHeader is where clients show their token.
const tokenHeader = "Poseidon-Token"

// Config of the API.
type Config struct {
	// State is what is read.
	State State
	// Door lets requests in, and ends streams.
	Door *door.Door
	// Claims hands out runners.
	Claims *claim.Service
	// Inside is what can be done in runners.
	Inside *inside.Service
	// Submit takes in environments.
	Submit *submit.Service
	// Token that clients send; if there is none, they send the server's own.
	Token muster.Secret
	// Namespace of its environments.
	Namespace string
	// Wait is how long a client may wait for a runner when none is warm.
	Wait time.Duration
	// MemoryReserve is what is set aside for a runner, of its limit at most. 0:
	// api.DefaultMemoryReserve.
	MemoryReserve api.Size
	// Stopping ends what goes on for as long as its client stays, when the server is shut down.
	// Optional.
	Stopping context.Context
	// Version of the server; empty: it does not know.
	Version string
	Logger  *slog.Logger // optional
}

// State is what is read.
type State interface {
	Latest() *state.Snapshot
}

// Poseidon serves the API.
type Poseidon struct {
	cfg     Config
	logger  *slog.Logger
	token   [sha256.Size]byte
	mux     *http.ServeMux
	open    map[string]bool // patterns that need no token
	bodies  *bodies
	pending pending
	// patience of conversations.
	patience patience
}

// New makes one. It starts nothing.
func New(c Config) (*Poseidon, error) {
	if c.State == nil || c.Door == nil || c.Claims == nil || c.Inside == nil || c.Submit == nil || c.Namespace == "" {
		return nil, errors.New("poseidon: state, a door, claims, the inside of runners, submissions and a namespace are needed")
	}
	if c.Stopping == nil {
		c.Stopping = context.Background()
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	p := &Poseidon{
		cfg: c, logger: c.Logger, token: sha256.Sum256([]byte(c.Token.Reveal())), mux: http.NewServeMux(), open: map[string]bool{},
		bodies: newBodies(), patience: usualPatience(),
	}
	p.openRoute("GET", "health", p.health)
	p.openRoute("GET", "version", p.version)
	p.route("GET", "statistics/execution-environments", p.statistics)
	p.route("GET", "execution-environments", p.listEnvironments)
	p.route("GET", "execution-environments/{id}", p.getEnvironment)
	p.route("PUT", "execution-environments/{id}", p.setEnvironment)
	p.route("DELETE", "execution-environments/{id}", p.deleteEnvironment)
	p.route("POST", "runners", p.provide)
	p.route("DELETE", "runners/{runner}", p.held(p.release))
	p.route("GET", "runners/{runner}/files", p.held(p.listFiles))
	p.route("PATCH", "runners/{runner}/files", p.held(p.changeFiles))
	p.route("GET", "runners/{runner}/files/raw", p.held(p.readFile))
	p.route("POST", "runners/{runner}/execute", p.held(p.execute))
	p.route("GET", "runners/{runner}/websocket", p.held(p.connect))
	return p, nil
}

// Mount is how the door takes it in.
func (p *Poseidon) Mount() door.Mount {
	return door.Mount{Prefix: prefix, Handler: p, Refuse: func(w http.ResponseWriter, _ *http.Request, pr *api.Problem) { p.refuse(w, pr) }}
}

// problem is an error of a service as a client is told it, with a line in the log for what is a
// defect of ours.
func (p *Poseidon) problem(ctx context.Context, what string, err error) *api.Problem {
	return &p.cfg.Door.Fail(ctx, what, err).Problem
}

// streaming is a context for what goes on for as long as its client stays: it ends with ctx, or
// when the server is shut down.
func (p *Poseidon) streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	return wait.Either(ctx, p.cfg.Stopping)
}

// handler answers, or returns what is wrong: an *answer, or an error of a service.
type handler func(w http.ResponseWriter, r *http.Request) error

func (p *Poseidon) route(method, path string, h handler) {
	pattern := method + " " + prefix + path
	p.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			p.fail(w, r, err)
		}
	})
}

func (p *Poseidon) openRoute(method, path string, h handler) {
	p.route(method, path, h)
	p.open[method+" "+prefix+path] = true
}

// ServeHTTP lets in by the token and hands on.
func (p *Poseidon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, pattern := p.mux.Handler(r)
	if !p.open[pattern] && !p.authorized(r) {
		tell(w, http.StatusUnauthorized, message{Message: "a token is needed, and the right one: send the header " + tokenHeader})
		return
	}
	if pattern == "" {
		p.noRoute(w, r, h)
		return
	}
	if !p.open[pattern] {
		defer conns.Serving(r.Context())()
	}
	p.mux.ServeHTTP(w, r)
}

// authorized reports whether a request shows the token, in the same time whatever it shows.
func (p *Poseidon) authorized(r *http.Request) bool {
	shown := r.Header.Get(tokenHeader)
	if p.cfg.Token.IsZero() {
		return p.cfg.Door.Authorized(shown)
	}
	got := sha256.Sum256([]byte(shown))
	return subtle.ConstantTimeCompare(got[:], p.token[:]) == 1
}

// anyone reports whether requests need no token at all.
func (p *Poseidon) anyone() bool { return p.cfg.Token.IsZero() && p.cfg.Door.Unlocked() }

// noRoute tells an unknown path from a method that it does not take.
func (p *Poseidon) noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	said := &discard{header: http.Header{}}
	h.ServeHTTP(said, r)
	if said.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", said.header.Get("Allow"))
		tell(w, said.status, message{Message: fmt.Sprintf("%s is not for this path; it takes %s", clip(r.Method), said.header.Get("Allow"))})
		return
	}
	tell(w, http.StatusNotFound, message{Message: "there is nothing at " + clip(r.URL.Path)})
}

// discard is a ResponseWriter that keeps the head only.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

func (p *Poseidon) health(w http.ResponseWriter, r *http.Request) error {
	var low []string
	for id, j := range p.environments() {
		if j.Env.Alert != 0 {
			low = append(low, fmt.Sprint(id))
		}
	}
	if len(low) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	text := fmt.Sprintf("too few runners are idle in %s", muster.Counted(len(low), "execution environment"))
	if p.authorized(r) {
		text += ": " + strings.Join(low, ", ")
	}
	tell(w, http.StatusServiceUnavailable, message{Message: text, ErrorCode: codeDepleting})
	return nil
}

func (p *Poseidon) version(w http.ResponseWriter, _ *http.Request) error {
	v := p.cfg.Version
	if v == "" {
		return refused(http.StatusNotFound, "this server does not know its release")
	}
	tell(w, http.StatusOK, v) // a JSON string: clients parse it
	return nil
}
