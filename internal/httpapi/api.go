package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/history"
	"github.com/musterhq/muster/internal/httpapi/route"
	"github.com/musterhq/muster/internal/httpapi/servers"
	"github.com/musterhq/muster/internal/images"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/socket"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/wait"
)

// State is the part of the state that handlers read: the latest snapshot and the feed of changes.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config has the parts of an API. All are needed, except those marked optional.
type Config struct {
	State State
	// Clock is the log's clock: explanations and costs are in its time.
	Clock clock.Clock
	// Inside works in sandboxes: executions, files, ports, output.
	Inside *inside.Service
	// Claims hands out runners.
	Claims *claim.Service
	// Submit accepts jobs, environments and uploads.
	Submit *submit.Service
	// Planning lets one request at a time compute where members would be placed, because that takes
	// CPU that the scheduler needs. Optional.
	Planning *wait.Turn
	// Images keeps the images that are loaded on the server. Optional: without it there is no
	// /v1/images.
	Images *images.Service
	// History keeps ended jobs. Optional: without it /v1/history is unavailable.
	History *history.Store
	// Operate carries out what operators ask for.
	Operate *operate.Service
	// Loops returns what the loops of the present leadership know beside the state, for
	// explanations. It is called for each request, because leadership may move between two.
	Loops func() explain.Loops
	// Door receives the requests. The API registers its routes there; others may register more.
	Door *door.Door
	// Backup writes a backup of the state.
	Backup func(ctx context.Context, w io.Writer) error
	// Cluster has the servers of the cluster. Optional: without it there is no /v1/servers.
	Cluster servers.Cluster
	// Ready says why the server cannot serve writes now, or nil.
	Ready func() error
	// Leads reports whether this server leads. Optional: without it, a server that is ready leads.
	Leads func() bool
	// Running returns the configuration that the server runs with now. Optional: without it there
	// is no /v1/config.
	Running func() *api.ServerConfig
	// Applied keeps the configuration of the cluster. Optional: without it there is no
	// /v1/config/applied.
	Applied servers.AppliedConfig
	// Metrics are shown on /metrics and count requests. Optional: without them there is no
	// /metrics.
	Metrics *metrics.Metrics
	// Stopping ends when the server shuts down, and with it all streams. Its cause is what clients
	// are told. Optional.
	Stopping context.Context
	Version  string
	Logger   *slog.Logger // optional
}

// API serves requests. It does not change after New, so handlers use it without a lock.
type API struct {
	cfg     Config
	logger  *slog.Logger
	huma    huma.API
	router  *route.Router
	openapi []byte
	// patience has the time limits of WebSockets. Tests shorten them.
	patience socket.Patience
}

// New makes an API and registers its routes at the door. It starts nothing. The routes of the
// description come last, because it includes all others.
func New(c Config) (*API, error) {
	switch {
	case c.State == nil, c.Door == nil, c.Inside == nil, c.Claims == nil, c.Submit == nil, c.Operate == nil, c.Loops == nil, c.Backup == nil, c.Ready == nil:
		return nil, errors.New("http api: state, door, inside, claims, submit, operate, loops, backup and ready are needed")
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Planning == nil {
		c.Planning = wait.NewTurn()
	}
	if c.Stopping == nil {
		c.Stopping = context.Background()
	}
	if c.Leads == nil {
		c.Leads = func() bool { return c.Ready() == nil }
	}
	a := &API{cfg: c, logger: c.Logger, patience: socket.Usual()}
	a.describe()
	servers.Routes(a.router, servers.Config{
		Cluster: c.Cluster,
		Latest:  c.State.Latest, Backup: c.Backup, Ready: c.Ready, Leads: c.Leads, Running: c.Running, Applied: c.Applied, Metrics: c.Metrics, Version: c.Version,
	})
	for _, h := range []interface{ routes() }{
		jobHandlers{a}, allocHandlers{a}, outputHandlers{a}, uploadHandlers{a}, execHandlers{a}, fileHandlers{a}, portHandlers{a},
		statsHandlers{a}, environmentHandlers{a}, runnerHandlers{a}, nodeHandlers{a}, imageHandlers{a}, loadedHandlers{a}, poolHandlers{a}, namespaceHandlers{a},
		explainHandlers{a}, providerHandlers{a}, costHandlers{a}, historyHandlers{a}, eventHandlers{a},
	} {
		h.routes()
	}
	if err := a.docsRoutes(); err != nil {
		return nil, fmt.Errorf("http api: %w", err)
	}
	return a, nil
}

// Handler returns the handler of all requests, which is the door.
func (a *API) Handler() http.Handler { return a.cfg.Door }

// streaming returns a context for an answer without a known end. It ends with the request, or when
// the server shuts down: http.Server.Shutdown waits for such answers and does not end them.
func (a *API) streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	return wait.Either(ctx, a.cfg.Stopping)
}
