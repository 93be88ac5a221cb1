package servers

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/route"
	"github.com/musterhq/muster/internal/metrics"
	"github.com/musterhq/muster/internal/state"
)

// Tag is that of these operations in the description.
const Tag = "server"

// Config of the operations. All are needed, except those marked optional.
type Config struct {
	// Latest returns the newest snapshot.
	Latest func() *state.Snapshot
	// Backup writes a backup of the state.
	Backup func(ctx context.Context, w io.Writer) error
	// Ready says why the server cannot serve writes now, or nil. Leads reports whether it leads.
	Ready func() error
	Leads func() bool
	// Running returns the configuration that the server runs with now. Optional: without it there
	// is no /v1/config.
	Running func() *api.ServerConfig
	// Applied keeps the configuration of the cluster. Optional: without it there is no
	// /v1/config/applied.
	Applied AppliedConfig
	// Cluster has the servers of the cluster. Optional: without it there is no /v1/servers.
	Cluster Cluster
	// Metrics are shown on /metrics. Optional.
	Metrics *metrics.Metrics
	Version string
}

// AppliedConfig keeps the configuration of the cluster. Errors are problems and faults; fields of
// problems are named as in the body of a request.
type AppliedConfig interface {
	Show() (*api.AppliedConfig, error)
	Apply(ctx context.Context, r *api.ConfigApply) (*api.ConfigApplied, error)
}

// Routes registers the operations.
func Routes(r *route.Router, c Config) {
	h := handlers{r, c}
	h.server()
	h.health()
	h.configuration()
	h.backupRoute()
	h.metrics()
	h.members()
}

// Health is the answer of /livez and /readyz if all is well. Otherwise the answer is a problem.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

type healthOut struct{ Body Health }

// handlers handle the requests. They do not change.
type handlers struct {
	router *route.Router
	cfg    Config
}

func (h handlers) server() {
	type serverOut struct{ Body api.ServerInfo }
	route.Register(h.router, route.Operation(http.MethodGet, "/v1/server", "get-server", Tag, "Who is this", ""),
		func(context.Context, *struct{}) (*serverOut, error) {
			m := h.cfg.Latest().Meta()
			return &serverOut{api.ServerInfo{
				Version: h.cfg.Version, ClusterID: m.Cluster, Epoch: m.Epoch, Index: m.Index, Leader: h.cfg.Leads(),
			}}, nil
		})
}

func (h handlers) health() {
	route.Register(h.router, route.NoToken(route.Operation(http.MethodGet, "/livez", "get-livez", Tag, "Is the process alive",
		"Needs no token. Restart the process if this does not answer.")),
		func(context.Context, *struct{}) (*healthOut, error) {
			return &healthOut{Health{"ok"}}, nil
		})

	ready := route.NoToken(route.Operation(http.MethodGet, "/readyz", "get-readyz", Tag, "Can it serve writes",
		"Needs no token; with the right one the answer says why not."))
	ready.Errors = append(ready.Errors, http.StatusServiceUnavailable)
	route.Register(h.router, ready, h.readyz)
}

func (h handlers) backupRoute() {
	backup := route.Operation(http.MethodGet, "/v1/backup", "get-backup", Tag, "Back up the state",
		"The whole state as a file that `muster restore` reads. An answer that breaks off is no backup.")
	backup.Responses = route.RawBody("application/octet-stream", "The backup.", nil)
	route.Register(h.router, backup, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: h.backup}, nil
	})
}

func (h handlers) metrics() {
	if h.cfg.Metrics == nil {
		return
	}
	show := route.Operation(http.MethodGet, "/metrics", "get-metrics", Tag, "Metrics for Prometheus", "")
	show.Responses = route.RawBody("text/plain", "The metrics in the text format.", nil)
	handler := h.cfg.Metrics.Handler()
	route.Register(h.router, show, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			handler.ServeHTTP(w, r)
		}}, nil
	})
}

type readyzIn struct {
	Authorization string `header:"Authorization" hidden:"true"`
}

func (h handlers) readyz(_ context.Context, in *readyzIn) (*healthOut, error) {
	err := h.cfg.Ready()
	if err == nil {
		return &healthOut{Health{"ok"}}, nil
	}
	why := muster.Faultf(muster.FaultUnavailable, "the server is not ready")
	if h.router.Door.AuthorizedBy(in.Authorization) {
		why.Err = err
	}
	return nil, why
}

// backup streams the state. An error after the first byte can only break the answer off, and what
// was sent is no backup then.
func (h handlers) backup(ctx huma.Context) {
	r, w := humago.Unwrap(ctx)
	out := &lateHeader{w: w, header: func() {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", `attachment; filename="muster.backup"`)
	}}
	if r.Method == http.MethodHead {
		out.begin()
		return
	}
	if err := h.cfg.Backup(r.Context(), out); err != nil {
		p := h.router.Fail(r.Context(), "get-backup", err)
		if out.begun {
			panic(http.ErrAbortHandler)
		}
		p.Write(w)
		return
	}
	out.begin()
	door.EndWrite(w)
}

// lateHeader sets the headers with the first byte, so that an error before it still gets its own
// status.
type lateHeader struct {
	w      http.ResponseWriter
	header func()
	begun  bool
}

func (l *lateHeader) begin() {
	if !l.begun {
		l.begun = true
		l.header()
	}
}

func (l *lateHeader) Write(p []byte) (int, error) {
	l.begin()
	door.ExtendWrite(l.w)
	return l.w.Write(p)
}
