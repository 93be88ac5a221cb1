package clouds

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// gate stands before the API of a cloud and passes calls on. It strikes at one of them: whatever is to
// happen then happens before the cloud gets the call, or after the cloud has done it and before its
// answer comes back. The call itself ends without an answer.
type gate struct {
	// URL is where the server finds the cloud.
	URL string

	next http.Handler

	mu     sync.Mutex
	strike *strike
}

// strike is what a gate does to one of the calls to come.
type strike struct {
	// left is how many calls that count are yet to pass before.
	left int
	// counts selects the calls that are counted.
	counts func(r *http.Request, body []byte) bool
	// answered: the cloud does the call first.
	answered bool
	do       func()
	done     chan struct{}
}

// newGate opens a gate before the API at an address.
func newGate(t *testing.T, api string) *gate {
	t.Helper()
	to, err := url.Parse(api)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{next: &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = to.Scheme, to.Host
			// Signatures cover the host that the caller named.
			p.Out.Host = p.In.Host
		},
		// A cloud that ends a connection without an answer is passed on as what it is.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	g.URL = s.URL + to.Path
	return g
}

// at lets something happen at the nth call from now, of those that count, and returns what is closed
// after it has happened. There is one such call at a time.
func (g *gate) at(n int, counts func(*http.Request, []byte) bool, answered bool, do func()) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strike = &strike{left: n, counts: counts, answered: answered, do: do, done: make(chan struct{})}
	return g.strike.done
}

// struck counts a call and returns the strike if it is at this one.
func (g *gate) struck(r *http.Request, body []byte) *strike {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.strike
	if s == nil || !s.counts(r, body) {
		return nil
	}
	if s.left--; s.left > 0 {
		return nil
	}
	g.strike = nil
	return s
}

// ServeHTTP is http.Handler's.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s := g.struck(r, body)
	if s == nil {
		g.next.ServeHTTP(w, r)
		return
	}
	defer close(s.done)
	if s.answered {
		// The caller is gone before the answer; the cloud does the call all the same.
		g.next.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
	}
	s.do()
	panic(http.ErrAbortHandler)
}

// any counts all calls.
func anyCall(*http.Request, []byte) bool { return true }
