package door

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// Mount is another system's API below a path of its own. The door checks Host and Origin, holds
// requests until the server has started, counts them, and answers for a handler that panics.
// Tokens, bodies, and who may use which runner are the mounted API's own business.
type Mount struct {
	// Prefix of its paths, with a slash at both ends.
	Prefix string
	// Handler sets the request's Pattern, as http.ServeMux does.
	Handler http.Handler
	// Refuse answers what the door refuses, in the form that clients of this API read.
	Refuse func(w http.ResponseWriter, r *http.Request, p *api.Problem)
}

// Mount adds an API. It must be called before the first request.
func (d *Door) Mount(m Mount) { d.mounts = append(d.mounts, m) }

// mounted returns the API that a path belongs to, or nil.
func (d *Door) mounted(path string) *Mount {
	for i := range d.mounts {
		if strings.HasPrefix(path, d.mounts[i].Prefix) {
			return &d.mounts[i]
		}
	}
	return nil
}

// serveMount serves a request to a mounted API, and returns the pattern of its route for the
// metrics.
func (d *Door) serveMount(m *Mount, w http.ResponseWriter, r *http.Request) (route string) {
	if p := d.admitFrom(r); p != nil {
		m.refuse(w, r, p)
		return "none"
	}
	d.awaitStart(r.Context())
	if err := d.caughtUp(r); err != nil {
		m.refuse(w, r, problem.Of(err))
		return "none"
	}
	m.Handler.ServeHTTP(w, r)
	return cmp.Or(r.Pattern, "none")
}

// maxStartWait is how long a request to a mounted API waits for a server that starts.
const maxStartWait = 30 * time.Second

// awaitStart waits until the server has started. The clients of other systems do not retry, so a
// restart must look to them like a slow request.
func (d *Door) awaitStart(ctx context.Context) {
	select {
	case <-d.cfg.Started:
		return
	default:
	}
	if d.cfg.Started == nil {
		return
	}
	late := time.NewTimer(maxStartWait)
	defer late.Stop()
	select {
	case <-d.cfg.Started:
	case <-late.C:
	case <-ctx.Done():
	}
}

// refuse answers with a problem in the mounted API's own form, with the headers that belong to it.
func (m *Mount) refuse(w http.ResponseWriter, r *http.Request, p *problem.Problem) {
	for k, v := range p.Headers {
		w.Header()[k] = v
	}
	m.Refuse(w, r, &p.Problem)
}
