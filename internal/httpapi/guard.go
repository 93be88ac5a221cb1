package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/problem"
)

// bodyTimeout is how long a client may take to send a JSON body.
const bodyTimeout = 30 * time.Second

// strangerTimeout is how long an answer to a client without a token may take, its request's body included.
const strangerTimeout = 15 * time.Second

// ServeHTTP guards the door and hands the request to its handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &response{ResponseWriter: w}
	began := time.Now()
	route := "none"
	defer func() {
		what := recover()
		a.recovered(rec, r, what)
		took := time.Since(began)
		a.cfg.Metrics.request(route, rec.code())
		if a.logger.Enabled(r.Context(), slog.LevelDebug) {
			a.logger.Debug("request", "method", r.Method, "path", problem.Clip(r.URL.Path), "status", rec.code(), "bytes", rec.bytes, "took", took, "remote", r.RemoteAddr)
		}
		if what == http.ErrAbortHandler {
			panic(what)
		}
	}()
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if m := a.mounted(r.URL.Path); m != nil {
		route = a.serveMount(m, rec, r)
		return
	}
	// What is told to everybody, a refusal too, waits for nobody. The server takes both deadlines back after the request.
	hurry := func() {
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(began.Add(strangerTimeout))
		_ = control.SetWriteDeadline(began.Add(strangerTimeout))
	}
	if p := a.admit(r); p != nil {
		hurry()
		p.Write(rec)
		return
	}
	if open(r.URL.Path) {
		hurry()
	} else {
		defer conns.Serving(r.Context())()
	}
	handler, pattern := a.mux.Handler(r)
	if pattern == "" {
		noRoute(rec, r, handler)
		return
	}
	route = pattern
	if p := a.checkRequest(rec, r, pattern); p != nil {
		p.Write(rec)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		if err := a.cfg.CaughtUp(); err != nil {
			problem.Of(err).Write(rec)
			return
		}
	}
	end, p := a.enterRunner(r.URL.Path)
	if p != nil {
		p.Write(rec)
		return
	}
	defer end()
	a.mux.ServeHTTP(rec, r)
}

// recovered answers for a handler that panicked: a defect of ours, or a client
// that is gone while the answer is written.
func (a *API) recovered(rec *response, r *http.Request, what any) {
	if what == nil || what == http.ErrAbortHandler {
		return
	}
	if r.Context().Err() != nil {
		rec.status = problem.StatusGone
		return
	}
	a.logger.Error("request panicked", "method", r.Method, "path", problem.Clip(r.URL.Path), "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
	if rec.status != 0 {
		// Half an answer is on its way: the only honest end is a broken one.
		panic(http.ErrAbortHandler)
	}
	p := problem.Of(muster.Faultf(muster.FaultInternal, "panic"))
	if m := a.mounted(r.URL.Path); m != nil {
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

// open are the paths that need no token: they tell nothing that is secret.
func open(path string) bool {
	switch path {
	case "/", "/livez", "/readyz", "/openapi.json", "/docs":
		return true
	}
	return strings.HasPrefix(path, "/docs/")
}

// admit lets a request in by its Host, its Origin and its token, in this order.
func (a *API) admit(r *http.Request) *problem.Problem {
	if p := a.admitFrom(r); p != nil {
		return p
	}
	if a.cfg.NoAuth || open(r.URL.Path) {
		return nil
	}
	if id, shown, right := a.holder(r); shown {
		return a.admitHolder(r, id, right)
	}
	return a.checkToken(r)
}

// admitFrom lets a request in by where it was sent to, and by which page.
func (a *API) admitFrom(r *http.Request) *problem.Problem {
	if r.RequestURI == "*" {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "ask for a path, not for *")
	}
	if !a.hostAllowed(r) {
		return problem.New(http.StatusMisdirectedRequest, api.CodeForbidden, fmt.Sprintf(
			"this server does not answer to the host name %q; use a loopback address, or add the name to allowed_hosts in its configuration", problem.Clip(r.Host)))
	}
	if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r) {
		return problem.New(http.StatusForbidden, api.CodeForbidden, fmt.Sprintf("requests of the web page %q are refused", problem.Clip(origin)))
	}
	return nil
}

// checkToken compares digests, in the same time whatever they are.
func (a *API) checkToken(r *http.Request) *problem.Problem {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") || token == "" {
		return unauthorized("a token is needed; send the header Authorization: Bearer TOKEN, with the token of the server's data directory")
	}
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(got[:], a.token[:]) != 1 {
		return unauthorized("the token is wrong")
	}
	return nil
}

// hostAllowed keeps out web pages that point a name of theirs at a loopback address.
func (a *API) hostAllowed(r *http.Request) bool {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		return true // no browser gets there
	}
	host := strings.ToLower(r.Host)
	if a.hosts[host] {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = strings.TrimSuffix(name, ".")
	if a.hosts[name] || name == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	return err == nil && ip.IsLoopback()
}

// sameOrigin reports whether an Origin is the one that the page of this very
// server has.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host)
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

// checkRequest checks what is the same for every route: the query can be read,
// and the body is whole, small, and of the one content type. It leaves a
// buffered body for the handler.
func (a *API) checkRequest(w http.ResponseWriter, r *http.Request, pattern string) *problem.Problem {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "the query cannot be read", api.ProblemField{Location: "query", Message: problem.Clip(err.Error())})
	}
	var twice []api.ProblemField
	for k, v := range query {
		if len(v) > 1 {
			twice = append(twice, api.ProblemField{Location: "query." + problem.Clip(k), Message: fmt.Sprintf("is given %d times", len(v))})
		}
	}
	if len(twice) > 0 {
		slices.SortFunc(twice, func(a, b api.ProblemField) int { return strings.Compare(a.Location, b.Location) })
		return problem.Wrong(twice)
	}
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return nil // a body says nothing there
	case a.raw[pattern] && r.Header.Get("Content-Type") == "application/x-tar":
		return checkContentType(r, "application/x-tar", false) // an archive's own name
	case a.raw[pattern]:
		return checkContentType(r, "application/octet-stream", true)
	case r.ContentLength == 0:
		r.Body = &buffered{Reader: bytes.NewReader(nil)}
		return nil
	}
	if p := checkContentType(r, "application/json", false); p != nil {
		return p
	}
	return readBody(w, r)
}

// checkContentType refuses the content types that forms of foreign web pages
// can send, and everything else but the one.
func checkContentType(r *http.Request, want string, mayMiss bool) *problem.Problem {
	given := r.Header.Get("Content-Type")
	refuse := func(what string) *problem.Problem {
		how := "-H 'Content-Type: " + want + "'"
		p := problem.New(http.StatusUnsupportedMediaType, string(muster.FaultInvalid), fmt.Sprintf("%s; this request takes %s (with curl: %s)", what, want, how))
		p.Headers.Set("Accept", want)
		return p
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return refuse(fmt.Sprintf("the body has the content encoding %q", problem.Clip(enc)))
	}
	if given == "" {
		if mayMiss {
			return nil
		}
		return refuse("the body has no content type")
	}
	kind, params, err := mime.ParseMediaType(given)
	charset := strings.ToLower(params["charset"])
	if err != nil || kind != want || len(r.Header.Values("Content-Type")) > 1 || charset != "" && charset != "utf-8" {
		return refuse(fmt.Sprintf("the body has the content type %q", problem.Clip(given)))
	}
	return nil
}

// buffered is a body that has been read whole.
type buffered struct {
	*bytes.Reader
	all []byte
}

func (*buffered) Close() error { return nil }

// readBody reads a JSON body before any handler: whatever is wrong with it on
// the wire is the client's doing and gets a 4xx.
func readBody(w http.ResponseWriter, r *http.Request) *problem.Problem {
	if r.ContentLength > maxBody {
		return problem.Of(&http.MaxBytesError{Limit: maxBody})
	}
	control := http.NewResponseController(w)
	// Not every ResponseWriter has deadlines; those of a real connection do.
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	all, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	if err == nil {
		r.Body = &buffered{Reader: bytes.NewReader(all), all: all}
		return nil
	}
	return brokenBody(err, bodyTimeout)
}

// brokenBody is the problem of a body that did not come whole, within a time for it.
func brokenBody(err error, within time.Duration) *problem.Problem {
	var late net.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problem.Of(err)
	case errors.As(err, &late) && late.Timeout():
		return problem.New(http.StatusRequestTimeout, string(muster.FaultInvalid), fmt.Sprintf("the body did not come within %s", within))
	case errors.Is(err, context.Canceled):
		return problem.Of(err)
	}
	return problem.New(http.StatusBadRequest, string(muster.FaultInvalid), "the body broke off", api.ProblemField{Location: "body", Message: problem.Clip(err.Error())})
}
