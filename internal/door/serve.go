package door

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/problem"
)

// StrangerTimeout is how long an answer to a client without a token may take, from the first byte
// of its request on. Such clients could hold connections for ever otherwise.
const StrangerTimeout = 15 * time.Second

// ServeHTTP checks a request and hands it to its handler. The order counts: who asks is known
// before anything of the body is read, and the body is whole before the handler runs.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &response{ResponseWriter: w}
	began := time.Now()
	route := "none"
	// This runs for every answer, also a refused, a broken or a panicked one.
	defer func() {
		what := recover()
		d.recovered(rec, r, what)
		took := time.Since(began)
		d.cfg.Requests.Request(route, rec.code())
		if d.cfg.Logger.Enabled(r.Context(), slog.LevelDebug) {
			d.cfg.Logger.Debug("request", "method", r.Method, "path", problem.Clip(r.URL.Path), "status", rec.code(), "bytes", rec.bytes, "took", took, "remote", r.RemoteAddr)
		}
		if what == http.ErrAbortHandler {
			// net/http breaks the connection off by it.
			panic(what)
		}
	}()
	// Answers may have secrets in them: nothing keeps them, and no browser guesses what they are.
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if m := d.mounted(r.URL.Path); m != nil {
		route = d.serveMount(m, rec, r)
		return
	}
	if p := d.admit(r); p != nil {
		hurry(w)
		p.Write(rec)
		return
	}
	if open(r.URL.Path) {
		hurry(w)
	} else {
		// A connection with an admitted request is not closed to make room for another.
		defer conns.Serving(r.Context())()
	}
	r, p := takeAge(r)
	if p != nil {
		p.Write(rec)
		return
	}
	handler, pattern := d.Mux.Handler(r)
	if pattern == "" {
		noRoute(rec, r, handler)
		return
	}
	route = pattern
	if p := d.checkRequest(rec, r, pattern); p != nil {
		p.Write(rec)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		if err := d.caughtUp(r); err != nil {
			problem.Of(err).Write(rec)
			return
		}
	}
	// The use of a runner lasts as long as the request, or its claim could expire for idleness
	// under a long execution.
	end, p := d.enterRunner(r.URL.Path)
	if p != nil {
		p.Write(rec)
		return
	}
	defer end()
	d.Mux.ServeHTTP(rec, r)
}

// hurry bounds what is told to everybody, refusals too. The HTTP server takes both deadlines back after
// the request.
func hurry(w http.ResponseWriter) {
	control, end := http.NewResponseController(w), time.Now().Add(StrangerTimeout)
	_ = control.SetReadDeadline(end)
	_ = control.SetWriteDeadline(end)
}

// recovered answers for a handler that panicked. That is a defect of ours, unless the client has
// gone while the answer was written.
func (d *Door) recovered(rec *response, r *http.Request, what any) {
	if what == nil || what == http.ErrAbortHandler {
		return
	}
	if r.Context().Err() != nil {
		rec.status = problem.StatusGone
		return
	}
	d.cfg.Logger.Error("request panicked", "method", r.Method, "path", problem.Clip(r.URL.Path), "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
	if rec.status != 0 {
		// Half an answer is on its way. Only a broken connection tells the client that it is no
		// whole one.
		panic(http.ErrAbortHandler)
	}
	p := problem.Of(muster.Faultf(muster.FaultInternal, "panic"))
	if m := d.mounted(r.URL.Path); m != nil {
		m.refuse(rec, r, p)
		return
	}
	p.Write(rec)
}

// response notes the status and the size of an answer, for the log and the metrics.
type response struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader notes the status of the answer; those of 1xx are none.
func (w *response) WriteHeader(code int) {
	if w.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write notes the size. Without a status before it, net/http makes it 200.
func (w *response) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// code is the status that the client has seen, or will see.
func (w *response) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// noRoute turns what the mux says of an unknown path or method into a problem. The mux knows which
// methods a path takes, and says so only in its answer.
func noRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	said := &response{ResponseWriter: discard{http.Header{}}}
	h.ServeHTTP(said, r)
	if said.status == http.StatusMethodNotAllowed {
		allow := said.Header().Get("Allow")
		p := problem.New(http.StatusMethodNotAllowed, string(muster.FaultInvalid), fmt.Sprintf("%s is not for this path; it takes %s", problem.Clip(r.Method), allow))
		p.Headers.Set("Allow", allow)
		p.Write(w)
		return
	}
	problem.New(http.StatusNotFound, string(muster.FaultNotFound), fmt.Sprintf("there is nothing at %s; see /docs", problem.Clip(r.URL.Path))).Write(w)
}

// discard is a ResponseWriter that keeps the headers only. It lets noRoute ask the mux without an
// answer reaching the client.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
