package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/musterhq/muster/internal/submit"

	"github.com/musterhq/muster/internal/metrics"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/claim"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/inside"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// State is what is read.
type State interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Blobs is the store of output and uploads. Errors are faults.
type Blobs interface {
	PutUpload(ctx context.Context, digest string, r io.Reader, limit int64) (int64, error)
	// Upload tells whether an upload is here, and keeps it for a while if it is.
	Upload(ctx context.Context, digest string) (blob.Info, error)
}

// Config of an API. All but those marked optional are needed.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	Blobs Blobs
	// Inside is what can be done in sandboxes.
	Inside *inside.Service
	// Images are of nodes' caches. Optional: without, none can be reached.
	Images Images
	// Claims hands out runners.
	Claims *claim.Service
	// Submit takes in jobs and environments.
	Submit *submit.Service
	// Planning lets those who compute where members would be placed do so one at a time.
	Planning *wait.Turn
	// Insight tells of single nodes and jobs what is not in the state. Optional.
	Insight Insight
	// Door lets requests in. The API registers its routes there.
	Door *door.Door
	// Backup writes a backup of the state.
	Backup func(ctx context.Context, w io.Writer) error
	// Ready says why the server cannot serve writes now, or nil.
	Ready func() error
	// Leads says whether this server leads; nil: it does when it is ready. Optional.
	Leads func() bool
	// Check tries a provider out: launches an instance, waits for its agent, runs one command, and
	// destroys the instance. say is called for each step. Optional.
	Check func(ctx context.Context, name muster.ProviderName, want api.ProviderCheck, say func(step, text string)) error
	// Unblock has the provider asked again for what it refused to a pool, and returns how many blocks that ended. Optional.
	Unblock func(pool muster.PoolName) int
	// Running is the configuration that the server runs with now. Optional.
	Running func() *api.ServerConfig
	// Metrics are shown on /metrics and count requests. Optional.
	Metrics *metrics.Metrics
	// UploadLimit is the most bytes that an upload may have. 0: 4 GiB.
	UploadLimit int64
	// Stopping ends streams when the server is shut down, with the cause that clients are told. Optional.
	Stopping context.Context
	Version  string
	Logger   *slog.Logger // optional
}

// Insight is what loops know beside the state: for explanations, and more.
type Insight interface {
	explain.Loops
	// Usage is what a node's agent last reported, nil if nothing is known, and what the agent says that the node cannot do.
	Usage(id muster.NodeID) (*api.NodeUsage, []string)
	// Unsold returns since when a provider's offerings cannot be listed and the error of the last list; 0 and nil if they can.
	Unsold(provider muster.ProviderName) (since muster.Time, why error)
}

type noInsight struct{}

func (noInsight) Usage(muster.NodeID) (*api.NodeUsage, []string)  { return nil, nil }
func (noInsight) Fleet() (*size.Decisions, []size.Block)          { return nil, nil }
func (noInsight) Paused() string                                  { return "" }
func (noInsight) Unstored(muster.JobUID) (int, error)             { return 0, nil }
func (noInsight) Troubles() func(*state.Node) string              { return func(*state.Node) string { return "" } }
func (noInsight) Unsold(muster.ProviderName) (muster.Time, error) { return 0, nil }
func (noInsight) Blind(muster.ProviderName) (muster.Time, error)  { return 0, nil }

const defaultUploadLimit = 4 << 30

// API serves requests.
type API struct {
	cfg     Config
	logger  *slog.Logger
	huma    huma.API
	openapi []byte
	// patience of sockets.
	patience patience
}

// New makes an API. It starts nothing.
func New(c Config) (*API, error) {
	switch {
	case c.State == nil, c.Proposer == nil, c.Blobs == nil, c.Door == nil, c.Inside == nil, c.Claims == nil, c.Submit == nil, c.Backup == nil, c.Ready == nil:
		return nil, errors.New("http api: state, proposer, blobs, door, inside, claims, submit, backup and ready are needed")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.UploadLimit == 0 {
		c.UploadLimit = defaultUploadLimit
	}
	if c.Insight == nil {
		c.Insight = noInsight{}
	}
	if c.Images == nil {
		c.Images = noImages{}
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
	a := &API{cfg: c, logger: c.Logger, patience: usualPatience()}
	a.describe()
	a.serverRoutes()
	a.jobRoutes()
	a.rolloutRoutes()
	a.allocRoutes()
	a.outputRoutes()
	a.uploadRoutes()
	a.execRoutes()
	a.fileRoutes()
	a.portRoutes()
	a.statsRoutes()
	a.environmentRoutes()
	a.runnerRoutes()
	a.nodeRoutes()
	a.imageRoutes()
	a.poolRoutes()
	a.namespaceRoutes()
	a.explainRoutes()
	a.providerRoutes()
	a.costRoutes()
	a.eventRoutes()
	if err := a.docsRoutes(); err != nil {
		return nil, fmt.Errorf("http api: %w", err)
	}
	return a, nil
}

// Handler serves the API: it is the door.
func (a *API) Handler() http.Handler { return a.cfg.Door }

// streaming is a context for an answer without end: it ends with the request,
// or when the server is shut down.
func (a *API) streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	return wait.Either(ctx, a.cfg.Stopping)
}
