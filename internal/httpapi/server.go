package httpapi

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
)

// Health is the answer of /livez and /readyz if all is well. Otherwise the answer is a problem.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

type healthOut struct{ Body Health }

// serverHandlers handle the server itself: its health, configuration, backup and metrics.
type serverHandlers struct{ *API }

func (a serverHandlers) routes() {
	type serverOut struct{ Body api.ServerInfo }
	register(a.API, operation(http.MethodGet, "/v1/server", "get-server", tagServer, "Who is this", ""),
		func(context.Context, *struct{}) (*serverOut, error) {
			m := a.cfg.State.Latest().Meta()
			return &serverOut{api.ServerInfo{
				Version: a.cfg.Version, ClusterID: m.Cluster, Epoch: m.Epoch, Index: m.Index, Leader: a.cfg.Leads(),
			}}, nil
		})

	if a.cfg.Running != nil {
		// The fields are described in docs/files.md and not here.
		config := operation(http.MethodGet, "/v1/config", "get-config", tagServer, "The configuration that it runs with",
			"As a file would have it (docs/files.md), with all defaults and without secrets; what a reload has changed is in it.")
		config.Responses = rawBody("application/json", "The configuration.", nil)
		register(a.API, config, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
			return &huma.StreamResponse{Body: a.config}, nil
		})
	}

	register(a.API, noToken(operation(http.MethodGet, "/livez", "get-livez", tagServer, "Is the process alive",
		"Needs no token. Restart the process if this does not answer.")),
		func(context.Context, *struct{}) (*healthOut, error) {
			return &healthOut{Health{"ok"}}, nil
		})

	ready := noToken(operation(http.MethodGet, "/readyz", "get-readyz", tagServer, "Can it serve writes",
		"Needs no token; with the right one the answer says why not."))
	ready.Errors = append(ready.Errors, http.StatusServiceUnavailable)
	register(a.API, ready, a.readyz)

	backup := operation(http.MethodGet, "/v1/backup", "get-backup", tagServer, "Back up the state",
		"The whole state as a file that `muster restore` reads. An answer that breaks off is no backup.")
	backup.Responses = rawBody("application/octet-stream", "The backup.", nil)
	register(a.API, backup, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: a.backup}, nil
	})

	if a.cfg.Metrics != nil {
		show := operation(http.MethodGet, "/metrics", "get-metrics", tagServer, "Metrics for Prometheus", "")
		show.Responses = rawBody("text/plain", "The metrics in the text format.", nil)
		handler := a.cfg.Metrics.Handler()
		register(a.API, show, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
			return &huma.StreamResponse{Body: func(ctx huma.Context) {
				r, w := humago.Unwrap(ctx)
				handler.ServeHTTP(w, r)
			}}, nil
		})
	}
}

// config answers with the configuration that the server runs with. Secrets are shown as stars, and
// so are the environments and arguments of provider programs, which may have credentials.
func (a serverHandlers) config(ctx huma.Context) {
	_, w := humago.Unwrap(ctx)
	b, err := schema.Encode(config.Masked(a.cfg.Running()))
	if err != nil {
		a.fail(ctx.Context(), "get-config", err).Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // whoever asked may have left
}

type readyzIn struct {
	Authorization string `header:"Authorization" hidden:"true"`
}

func (a serverHandlers) readyz(_ context.Context, in *readyzIn) (*healthOut, error) {
	err := a.cfg.Ready()
	if err == nil {
		return &healthOut{Health{"ok"}}, nil
	}
	why := muster.Faultf(muster.FaultUnavailable, "the server is not ready")
	if a.cfg.Door.AuthorizedBy(in.Authorization) {
		why.Err = err
	}
	return nil, why
}

// backup streams the state. An error after the first byte can only break the answer off, and what
// was sent is no backup then.
func (a serverHandlers) backup(ctx huma.Context) {
	r, w := humago.Unwrap(ctx)
	out := &lateHeader{w: w, header: func() {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", `attachment; filename="muster.backup"`)
	}}
	if r.Method == http.MethodHead {
		out.begin()
		return
	}
	if err := a.cfg.Backup(r.Context(), out); err != nil {
		p := a.fail(r.Context(), "get-backup", err)
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
