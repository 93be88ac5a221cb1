package httpapi

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// Mount is another system's API below a path of its own. The guard checks Host and Origin, holds requests until the
// server has started, counts, and answers for a handler that panics. Tokens, bodies, and who may use which runner are the
// mounted API's own business.
type Mount struct {
	// Prefix of its paths, with a slash at both ends.
	Prefix string
	// Handler sets the request's Pattern, as http.ServeMux does.
	Handler http.Handler
	// Refuse answers what the guard refuses, in the form that clients of this API read.
	Refuse func(w http.ResponseWriter, r *http.Request, p *api.Problem)
}

// Mount adds an API. Before the first request only.
func (a *API) Mount(m Mount) { a.mounts = append(a.mounts, m) }

// mounted is the API that a path belongs to, or nil.
func (a *API) mounted(path string) *Mount {
	for i := range a.mounts {
		if strings.HasPrefix(path, a.mounts[i].Prefix) {
			return &a.mounts[i]
		}
	}
	return nil
}

// serveMount answers with the pattern that took the request.
func (a *API) serveMount(m *Mount, w http.ResponseWriter, r *http.Request) (route string) {
	if p := a.admitFrom(r); p != nil {
		m.refuse(w, r, p)
		return "none"
	}
	a.awaitStart(r.Context())
	if err := a.cfg.CaughtUp(); err != nil {
		m.refuse(w, r, problem.Of(err))
		return "none"
	}
	m.Handler.ServeHTTP(w, r)
	return cmp.Or(r.Pattern, "none")
}

// maxStartWait is how long a request to a mounted API waits for a server that starts.
const maxStartWait = 30 * time.Second

// awaitStart waits until the server has started. The clients of other systems do not retry, so a restart must look to them
// like a slow request.
func (a *API) awaitStart(ctx context.Context) {
	select {
	case <-a.cfg.Started:
		return
	default:
	}
	if a.cfg.Started == nil {
		return
	}
	late := time.NewTimer(maxStartWait)
	defer late.Stop()
	select {
	case <-a.cfg.Started:
	case <-late.C:
	case <-ctx.Done():
	}
}

func (m *Mount) refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) {
	for k, v := range p.Headers {
		w.Header()[k] = v
	}
	m.Refuse(w, r, &p.Problem)
}

// What follows is for mounted APIs, which do what they do by the same functions as the handlers of this one.

// Snapshot is the state as it is now.
func (a *API) Snapshot() *state.Snapshot { return a.cfg.State.Latest() }

// Version of the server.
func (a *API) Version() string { return a.cfg.Version }

// Authorized reports whether a token is the server's own. With NoAuth everybody's is.
func (a *API) Authorized(token string) bool {
	return a.cfg.NoAuth || a.checkToken(&http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}) == nil
}

// Open reports whether no token is asked for.
func (a *API) Open() bool { return a.cfg.NoAuth }

// Problem is an error of one of this API's functions as it is told to a client, with a line in the log for what is a defect of ours.
func (a *API) Problem(ctx context.Context, what string, err error) *api.Problem {
	return &a.fail(ctx, what, err).Problem
}

// Streaming is a context for an answer without end: it ends with ctx, or when the server is shut down.
func (a *API) Streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	return a.streaming(ctx)
}

// Download sends bytes whose headers are set. One that is not whole breaks off.
func (a *API) Download(w http.ResponseWriter, r *http.Request, from io.ReadCloser) {
	a.download(w, r, http.StatusOK, from)
}

// EachStep gives a client some time for the next piece of an answer.
func EachStep(w http.ResponseWriter) { extendWrite(w) }

// EndSteps takes the time away again: the connection may serve other requests.
func EndSteps(w http.ResponseWriter) { endWrite(w) }
