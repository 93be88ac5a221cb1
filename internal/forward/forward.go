package forward

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/conns"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// patience is how long a request waits for a leader: longer than an election takes, and short enough that
	// the client of a server that is cut off tries another one.
	patience = 4 * time.Second
	// lookEvery is how often a waiting request looks for a leader.
	lookEvery = 20 * time.Millisecond
	// wholeBody is the size up to which a body is kept, so that the request can be sent to another server.
	// Larger ones are sent only after the server that gets them has asked for them. It is in bytes.
	wholeBody = 256 << 10
	// indexTime is how long a stale read waits for the index that it wants.
	indexTime = 10 * time.Second
)

// Headers of answers.
const (
	// NotLeading is in a server's refusal of a request that another server has passed on to it. The request
	// was not looked at.
	NotLeading = "Muster-Not-Leading"
	// HeaderIndex is the index of the log that the answer's state has at least.
	HeaderIndex = "Muster-Index"
	// HeaderAge is in the answers of followers: how long ago, in milliseconds, this server heard from the
	// leader, or unknown. What the leader has confirmed since may be missing.
	HeaderAge = "Muster-Age-Ms"
)

// Servers is what a Forwarder needs of the cluster. Its methods are safe for concurrent use.
type Servers interface {
	// Self is the id of this server, Leader that of the leader as far as this server knows; empty: none.
	Self() string
	Leader() string
	// ReadIndex returns when this server is known to lead now. It is an error if it does not.
	ReadIndex(ctx context.Context) error
	// Applied is the index of the newest entry that this server's state has. Wait blocks until it has one.
	Applied() uint64
	Wait(ctx context.Context, index uint64) error
	// LastContact is when this server last heard from the leader.
	LastContact() time.Time
}

// Config is what a Forwarder is made of. All fields but the logger are needed.
type Config struct {
	// Local answers requests on this server.
	Local http.Handler
	// Refuse answers a request that this server would not admit, and says whether it did.
	Refuse  func(w http.ResponseWriter, r *http.Request) bool
	Servers Servers
	// Serving reports whether the loops of the leader run here, so that requests can be answered.
	Serving func() bool
	// From is the id of the server that has passed a request on; empty: it came from a client.
	From func(context.Context) string
	// Transport sends a request to the server whose id is the URL's host. An error that is ErrNotSent says
	// that nothing of the request was sent.
	Transport http.RoundTripper
	Logger    *slog.Logger
}

// ErrNotSent says that the server could not be connected to.
var ErrNotSent = errors.New("no connection to the server")

// errNotLeading says that the server that got a request does not lead, and did not look at it.
var errNotLeading = errors.New("the server does not lead")

// Forwarder is the handler of all requests of a server that is one of several. It does not change after New.
type Forwarder struct{ cfg Config }

// New makes a Forwarder. It starts nothing.
func New(c Config) *Forwarder {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Forwarder{c}
}

// ServeHTTP answers a request here, or passes it on to the leader.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := f.cfg.From(r.Context())
	if from != "" {
		r = r.WithContext(door.FromServer(r.Context()))
	}
	switch {
	case here(r):
		f.cfg.Local.ServeHTTP(w, r.WithContext(door.MayBeStale(r.Context())))
		return
	case maybeStale(r):
		f.stale(w, r)
		return
	}
	if from == "" && f.cfg.Servers.Leader() != f.cfg.Servers.Self() {
		// The leader trusts what this server passes on as regards Host and Origin.
		if f.cfg.Refuse(w, r) {
			return
		}
		defer conns.Serving(r.Context())()
	}
	f.answer(w, r, from != "")
}

// answer answers a request on the server that leads. passed says that another server has passed it on: it
// is not passed on again, so that no request goes in circles.
func (f *Forwarder) answer(w http.ResponseWriter, r *http.Request, passed bool) {
	var body *keptBody
	for began := time.Now(); ; {
		self, leader := f.cfg.Servers.Self(), f.cfg.Servers.Leader()
		switch {
		case leader == self && f.cfg.Serving():
			if f.cfg.Servers.ReadIndex(r.Context()) == nil {
				if body != nil {
					body.rewind(r)
				}
				f.cfg.Local.ServeHTTP(&indexed{ResponseWriter: w, applied: f.cfg.Servers.Applied}, r)
				return
			}
		case passed && leader != self:
			w.Header().Set(NotLeading, "1")
			problem.Of(muster.Faultf(muster.FaultUnavailable, "this server does not lead")).Write(w)
			return
		case leader != "" && leader != self:
			if body == nil {
				var p *problem.Problem
				if body, p = keepBody(w, r); p != nil {
					p.Write(w)
					return
				}
			}
			if f.pass(w, r, body, leader) {
				return
			}
		}
		if r.Context().Err() != nil {
			return // the client has gone
		}
		if time.Since(began) > patience || !wait.For(r.Context(), lookEvery) {
			f.noLeader(w, r)
			return
		}
	}
}

// noLeader answers a request that has waited in vain.
func (f *Forwarder) noLeader(w http.ResponseWriter, r *http.Request) {
	problem.Of(&muster.Fault{
		Kind: muster.FaultUnavailable, After: time.Second,
		Message: fmt.Sprintf("the cluster has had no leader for %s: a majority of its servers has to run and reach each other (muster servers list --stale)", patience),
	}).Write(w)
	f.cfg.Logger.Debug("request refused: the cluster has no leader", "path", problem.Clip(r.URL.Path))
}

// pass sends a request to another server and its answer to the client. done is false if that server has
// not looked at the request, or if asking again does no harm and nothing was answered yet.
func (f *Forwarder) pass(w http.ResponseWriter, r *http.Request, body *keptBody, leader string) (done bool) {
	var failed error
	proxy := &httputil.ReverseProxy{
		Transport: f.cfg.Transport,
		// Events and output are to arrive when they happen.
		FlushInterval: -1,
		BufferPool:    buffers{},
		ErrorLog:      slog.NewLogLogger(f.cfg.Logger.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", leader
			p.Out.Host = r.Host
			p.Out.URL.RawQuery = r.URL.RawQuery // as it came: the door says what is wrong with it
			p.SetXForwarded()
			if !keyed(r) {
				// Package http repeats requests with this header by itself.
				p.Out.Header.Del(keyHeader)
			}
			body.send(p.Out)
		},
		ModifyResponse: func(res *http.Response) error {
			if res.Header.Get(NotLeading) != "" {
				return errNotLeading
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(patient{w}, r)
	if failed == nil {
		door.EndWrite(w)
		return true
	}
	f.cfg.Logger.Debug("a request could not be passed on", "to", leader, "path", problem.Clip(r.URL.Path), "error", failed)
	switch {
	case r.Context().Err() != nil:
		return true // the client has gone
	case body.broken != nil:
		problem.Of(body.broken).Write(w)
		return true
	case !body.whole && body.sent:
		// The rest of the body cannot be had from its beginning.
	case errors.Is(failed, errNotLeading), errors.Is(failed, ErrNotSent), harmless(r):
		return false
	}
	problem.Of(&muster.Fault{
		Kind: muster.FaultAmbiguous, After: time.Second,
		Message: "the server that leads the cluster was lost while it worked on this request, which may have been carried out; look before you repeat it",
	}).Write(w)
	return true
}

// harmless reports whether a request may be sent twice: it changes nothing, or the server recognizes it by
// its key.
func harmless(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" || r.Method == http.MethodHead || keyed(r) && r.Header.Get(keyHeader) != ""
}

// keyHeader has the key by which a server recognizes a request that comes again.
const keyHeader = "Idempotency-Key"

// keyed reports whether the route of a request knows such keys. On others the header means nothing, and a
// request that has it must not be repeated either.
func keyed(r *http.Request) bool {
	path := r.URL.Path
	return r.Method == http.MethodPost && (path == "/v1/jobs" || path == "/v1/claims" || strings.HasPrefix(path, "/v1/jobs/") && strings.HasSuffix(path, "/retry"))
}

// here reports whether every server answers a request by itself: it is about that server.
func here(r *http.Request) bool {
	path := r.URL.Path
	switch path {
	case "/v1/config", "/v1/config/applied":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	case "/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/server":
		return true
	}
	return strings.HasPrefix(path, "/docs/")
}

// maybeStale reports whether a request can be answered by any server: it reads, and its client has said
// that the answer may be old, or reads events, which come in the same order everywhere.
func maybeStale(r *http.Request) bool {
	return door.Reads(r) && (r.URL.Path == eventsPath || r.URL.Query().Get(door.StaleParameter) == "true")
}

const eventsPath = "/v1/events"

// stale answers a request from the state of this server, once it has the index that the client has seen.
func (f *Forwarder) stale(w http.ResponseWriter, r *http.Request) {
	least, p := leastIndex(r)
	if p == nil && f.cfg.Servers.Applied() < least {
		// Only whom the server admits may wait.
		if f.cfg.Refuse(w, r) {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), indexTime)
		err := f.cfg.Servers.Wait(ctx, least)
		cancel()
		// Events after an index that the cluster never reaches have their own refusal.
		if err != nil && r.URL.Path != eventsPath {
			p = problem.Of(&muster.Fault{
				Kind: muster.FaultUnavailable, After: time.Second,
				Message: fmt.Sprintf("this server has the log up to index %d, and min_index is %d; ask another server, or without stale=true", f.cfg.Servers.Applied(), least),
			})
		}
	}
	if p != nil {
		p.Write(w)
		return
	}
	age := "unknown" // no leader was heard since this server was started
	if at := f.cfg.Servers.LastContact(); !at.IsZero() {
		age = strconv.FormatInt(max(0, time.Since(at).Milliseconds()), 10)
	}
	w.Header().Set(HeaderAge, age)
	f.cfg.Local.ServeHTTP(&indexed{ResponseWriter: w, applied: f.cfg.Servers.Applied}, r.WithContext(door.MayBeStale(r.Context())))
}

// leastIndex is the index of the log that the client has seen already; 0 if it says nothing.
func leastIndex(r *http.Request) (uint64, *problem.Problem) {
	query := r.URL.Query()
	if n, p := door.LeastIndex(query); n > 0 || p != nil {
		return n, p
	}
	if r.URL.Path == eventsPath {
		if at, ok := present.ParseEventID(cmp.Or(r.Header.Get("Last-Event-ID"), query.Get("after"))); ok {
			return at.Index, nil
		}
	}
	return 0, nil
}

// indexed adds the index of the log to an answer.
type indexed struct {
	http.ResponseWriter
	applied func() uint64
	begun   bool
}

func (w *indexed) WriteHeader(code int) {
	if !w.begun && code >= 200 {
		w.begun = true
		w.Header().Set(HeaderIndex, strconv.FormatUint(w.applied(), 10))
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *indexed) Write(p []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController flush and set deadlines.
func (w *indexed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// patient gives the client a minute for each piece of an answer. One that takes nothing would hold the
// connection to the leader for ever.
type patient struct{ http.ResponseWriter }

func (w patient) Write(p []byte) (int, error) {
	door.ExtendWrite(w.ResponseWriter)
	return w.ResponseWriter.Write(p)
}

func (w patient) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// buffers lets the proxy share the door's.
type buffers struct{}

func (buffers) Get() []byte  { return door.Buffers.Get().(*[32 << 10]byte)[:] }
func (buffers) Put(b []byte) { door.Buffers.Put((*[32 << 10]byte)(b)) }

// keptBody is the body of a request that may be sent to more than one server.
type keptBody struct {
	// all is the body if it is whole; else rest is what the client still sends.
	whole bool
	all   []byte
	rest  io.Reader
	size  int64
	// sent says that some of the rest was read, broken why it could not be.
	sent   bool
	broken error
}

// keepBody reads a small body to its end.
func keepBody(w http.ResponseWriter, r *http.Request) (*keptBody, *problem.Problem) {
	b := &keptBody{size: r.ContentLength}
	if r.ContentLength < 0 || r.ContentLength > wholeBody {
		b.rest = door.ClientBody{Patient: door.NewPatient(w, r)}
		return b, nil
	}
	b.whole = true
	if r.ContentLength == 0 {
		return b, nil
	}
	var p *problem.Problem
	b.all, p = door.ReadWhole(w, r)
	return b, p
}

// send gives the body to a request that goes out.
func (b *keptBody) send(out *http.Request) {
	out.ContentLength = b.size
	switch {
	case b.whole && len(b.all) == 0:
		out.Body = http.NoBody
	case b.whole:
		out.Body = io.NopCloser(bytes.NewReader(b.all))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.all)), nil }
	default:
		out.Body = io.NopCloser(b)
		// A server that does not lead refuses before anything is read.
		out.Header.Set("Expect", "100-continue")
	}
}

// rewind restores the body of a request that is answered here after all.
func (b *keptBody) rewind(r *http.Request) {
	if b.whole {
		r.Body = io.NopCloser(bytes.NewReader(b.all))
	}
}

// Read is of the rest. It notes why it failed: that is the client's doing, and not the other server's.
func (b *keptBody) Read(p []byte) (int, error) {
	b.sent = true
	n, err := b.rest.Read(p)
	if err != nil && err != io.EOF {
		b.broken = err
	}
	return n, err
}

// DialError marks an error of a connection that could not be made.
func DialError(err error) error { return &dialError{err} }

type dialError struct{ err error }

func (e *dialError) Error() string   { return e.err.Error() }
func (e *dialError) Unwrap() []error { return []error{ErrNotSent, e.err} }

var _ net.Error = (*dialError)(nil)

// Timeout and Temporary are those of a net.Error, which the transport may ask for.
func (e *dialError) Timeout() bool   { return errors.Is(e.err, context.DeadlineExceeded) }
func (e *dialError) Temporary() bool { return false }
