package httpapi

import (
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
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/operate"
	"github.com/musterhq/muster/internal/socket"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/submit"
	"github.com/musterhq/muster/internal/wait"
)

// State is what is read.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Config of an API. All but those marked optional are needed.
type Config struct {
	State State
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	// Inside is what can be done in sandboxes.
	Inside *inside.Service
	// Claims hands out runners.
	Claims *claim.Service
	// Submit takes in jobs and environments.
	Submit *submit.Service
	// Planning lets those who compute where members would be placed do so one at a time.
	Planning *wait.Turn
	// Operate is what operators do.
	Operate *operate.Service
	// Loops is what the loops of the present leadership know beside the state, for explanations.
	Loops func() explain.Loops
	// Door lets requests in. The API registers its routes there.
	Door *door.Door
	// Backup writes a backup of the state.
	Backup func(ctx context.Context, w io.Writer) error
	// Ready says why the server cannot serve writes now, or nil.
	Ready func() error
	// Leads says whether this server leads; nil: it does when it is ready. Optional.
	Leads func() bool
	// Running is the configuration that the server runs with now. Optional.
	Running func() *api.ServerConfig
	// Metrics are shown on /metrics and count requests. Optional.
	Metrics *metrics.Metrics
	// Stopping ends streams when the server is shut down, with the cause that clients are told.
	// Optional.
	Stopping context.Context
	Version  string
	Logger   *slog.Logger // optional
}

// API serves requests.
type API struct {
	cfg     Config
	logger  *slog.Logger
	huma    huma.API
	openapi []byte
	// patience of sockets.
	patience socket.Patience
}

// New makes an API. It starts nothing.
func New(c Config) (*API, error) {
	switch {
	case c.State == nil, c.Door == nil, c.Inside == nil, c.Claims == nil, c.Submit == nil, c.Operate == nil, c.Loops == nil, c.Backup == nil, c.Ready == nil:
		return nil, errors.New("http api: state, door, inside, claims, submit, operate, loops, backup and ready are needed")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
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
	for _, h := range []interface{ routes() }{
		serverHandlers{a}, jobHandlers{a}, allocHandlers{a}, outputHandlers{a}, uploadHandlers{a}, execHandlers{a}, fileHandlers{a}, portHandlers{a},
		statsHandlers{a}, environmentHandlers{a}, runnerHandlers{a}, nodeHandlers{a}, imageHandlers{a}, poolHandlers{a}, namespaceHandlers{a},
		explainHandlers{a}, providerHandlers{a}, costHandlers{a}, eventHandlers{a},
	} {
		h.routes()
	}
	if err := a.docsRoutes(); err != nil {
		return nil, fmt.Errorf("http api: %w", err)
	}
	return a, nil
}

// Handler serves the API: it is the door.
func (a *API) Handler() http.Handler { return a.cfg.Door }

// streaming is a context for an answer without end: it ends with the request, or when the server is
// shut down.
func (a *API) streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	return wait.Either(ctx, a.cfg.Stopping)
}
