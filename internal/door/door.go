package door

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Claims knows who may use which runner.
type Claims interface {
	// Holder is the claim whose secret a token is, if it is meant to be one: shown. It is not right
	// if the secret is wrong.
	Holder(token string) (id muster.ClaimID, shown, right bool)
	// Claimed is the claim that has a runner now; a problem says why there is none.
	Claimed(runner string) (*state.Claim, error)
	// Use notes that a claim's runner is used until end is called.
	Use(id muster.ClaimID) (end func())
}

// Requests counts requests.
type Requests interface {
	// Request counts one by the pattern of its route, "none" if it had none, and by the status code
	// of its answer.
	Request(route string, code int)
}

// State is what is read: claims, and which allocation is a runner.
type State interface {
	Latest() *state.Snapshot
}

// Config of a Door. All but those marked optional are needed.
type Config struct {
	State  State
	Claims Claims
	// Token that every request has to carry, unless NoAuth.
	Token  muster.Secret
	NoAuth bool
	// AllowedHosts are host names beside loopback ones under which the API may be asked, with or
	// without a port. Optional.
	AllowedHosts []string
	// CaughtUp says why what is read here may be older than what this server confirmed before it
	// was started again, or nil. Until then nothing under /v1 is answered: a job that was accepted
	// must never be "not found". Optional.
	CaughtUp func() error
	// Started is closed when the server serves for the first time. Requests to mounted APIs wait
	// for it, for 30 s at most, and only then ask CaughtUp. Optional: without it they do not wait.
	Started <-chan struct{}
	// Requests may be nil: then nothing is counted.
	Requests Requests
	Logger   *slog.Logger // optional
}

// Door lets requests in to their handlers. Routes and mounted APIs are added before the first
// request only.
type Door struct {
	// Mux has the routes of the server's own API.
	Mux *http.ServeMux

	cfg    Config
	token  [sha256.Size]byte
	hosts  map[string]bool
	bytes  map[string]bool // patterns whose body is bytes, read by the handler
	mounts []Mount
}

// New makes a Door without routes. It starts nothing.
func New(c Config) (*Door, error) {
	switch {
	case c.State == nil, c.Claims == nil:
		return nil, errors.New("http api: state and claims are needed")
	case c.Token.IsZero() && !c.NoAuth:
		return nil, errors.New("http api: there is no token, and no-auth is not set")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.CaughtUp == nil {
		c.CaughtUp = func() error { return nil }
	}
	if c.Requests == nil {
		c.Requests = uncounted{}
	}
	d := &Door{Mux: http.NewServeMux(), cfg: c, token: sha256.Sum256([]byte(c.Token.Reveal())), hosts: map[string]bool{}, bytes: map[string]bool{}}
	for _, h := range c.AllowedHosts {
		d.hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	return d, nil
}

type uncounted struct{}

func (uncounted) Request(string, int) {}

// Server is an HTTP server with the time-outs that the door needs. Its Shutdown calls stop, which
// should end streams (events, followed output); other requests are waited for.
func (d *Door) Server(stop func()) *http.Server {
	s := &http.Server{
		Handler: d,
		// No read or write time-out for the whole of a request: streams and uploads may take hours.
		// Handlers set a deadline for each step instead.
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       conns.Context,
		ErrorLog:          slog.NewLogLogger(d.cfg.Logger.Handler(), slog.LevelDebug),
	}
	s.RegisterOnShutdown(stop)
	return s
}

// TakeBytes marks a route, by its pattern, as one whose body is bytes that its handler reads as
// they come.
func (d *Door) TakeBytes(pattern string) { d.bytes[pattern] = true }

// TakesBytes reports whether a route was marked so.
func (d *Door) TakesBytes(pattern string) bool { return d.bytes[pattern] }

// Fail makes a problem of the error of a request, and logs what is a defect of ours: the client is
// not told what it was. what names the operation in the log.
func (d *Door) Fail(ctx context.Context, what string, err error) *problem.Problem {
	p := problem.Of(err)
	switch p.Status {
	case http.StatusBadGateway:
		// A sandbox or its node died under the request: that is life, and the client is told.
		d.cfg.Logger.InfoContext(ctx, "request broken off", "request", what, "error", err)
	case http.StatusInternalServerError:
		d.cfg.Logger.ErrorContext(ctx, "request failed", "request", what, "error", err)
	}
	return p
}
