package door

import (
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

// StrangerTimeout is how long an answer to a client without a token may take, its request's body included.
const StrangerTimeout = 15 * time.Second

// ServeHTTP guards the door and hands the request to its handler.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &response{ResponseWriter: w}
	began := time.Now()
	route := "none"
	defer func() {
		what := recover()
		d.recovered(rec, r, what)
		took := time.Since(began)
		d.cfg.Requests.Request(route, rec.code())
		if d.cfg.Logger.Enabled(r.Context(), slog.LevelDebug) {
			d.cfg.Logger.Debug("request", "method", r.Method, "path", problem.Clip(r.URL.Path), "status", rec.code(), "bytes", rec.bytes, "took", took, "remote", r.RemoteAddr)
		}
		if what == http.ErrAbortHandler {
			panic(what)
		}
	}()
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if m := d.mounted(r.URL.Path); m != nil {
		route = d.serveMount(m, rec, r)
		return
	}
	// What is told to everybody, a refusal too, waits for nobody. The server takes both deadlines back after the request.
	hurry := func() {
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(began.Add(StrangerTimeout))
		_ = control.SetWriteDeadline(began.Add(StrangerTimeout))
	}
	if p := d.admit(r); p != nil {
		hurry()
		p.Write(rec)
		return
	}
	if open(r.URL.Path) {
		hurry()
	} else {
		defer conns.Serving(r.Context())()
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
		if err := d.cfg.CaughtUp(); err != nil {
			problem.Of(err).Write(rec)
			return
		}
	}
	end, p := d.enterRunner(r.URL.Path)
	if p != nil {
		p.Write(rec)
		return
	}
	defer end()
	d.Mux.ServeHTTP(rec, r)
}

// recovered answers for a handler that panicked: a defect of ours, or a client
// that is gone while the answer is written.
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
		// Half an answer is on its way: the only honest end is a broken one.
		panic(http.ErrAbortHandler)
	}
	p := problem.Of(muster.Faultf(muster.FaultInternal, "panic"))
	if m := d.mounted(r.URL.Path); m != nil {
		m.refuse(rec, r, p)
		return
	}
	p.Write(rec)
}

// response notes what was answered.
type response struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *response) WriteHeader(code int) {
	if w.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// noRoute turns what the mux says of an unknown path or method into a problem.
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

// discard is a ResponseWriter that keeps the headers only.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
