package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a server of a cluster whose members agree on who leads.
type fake struct {
	id      string
	cluster *fakes
	http    *httptest.Server
	// serves counts the requests that were answered here.
	serves  atomic.Int64
	applied atomic.Uint64
	// deposed makes ReadIndex fail: the server believes that it leads, and does not.
	deposed atomic.Bool
	handler http.HandlerFunc
}

// fakes are the servers of one cluster, by id.
type fakes struct {
	all    map[string]*fake
	leader atomic.Value // string
}

func (f *fake) Self() string   { return f.id }
func (f *fake) Leader() string { return f.cluster.leader.Load().(string) }
func (f *fake) ReadIndex(context.Context) error {
	if f.deposed.Load() {
		return errors.New("deposed")
	}
	return nil
}
func (f *fake) Applied() uint64 { return f.applied.Load() }
func (f *fake) Wait(ctx context.Context, index uint64) error {
	for f.applied.Load() < index {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
func (f *fake) LastContact() time.Time { return time.Now().Add(-50 * time.Millisecond) }

type fromKey struct{}

// newFakes starts servers; the first leads.
func newFakes(t *testing.T, ids ...string) *fakes {
	t.Helper()
	c := &fakes{all: map[string]*fake{}}
	c.leader.Store(ids[0])
	for _, id := range ids {
		f := &fake{id: id, cluster: c}
		f.handler = func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s?%s %s", id, r.Method, r.URL.Path, r.URL.RawQuery, b)
		}
		transport := &http.Transport{ExpectContinueTimeout: 5 * time.Second, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			to, _, _ := net.SplitHostPort(address)
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.all[to].http.Listener.Addr().String())
			if err != nil {
				return nil, DialError(err)
			}
			return conn, nil
		}}
		t.Cleanup(transport.CloseIdleConnections)
		handler := New(Config{
			Local: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serves.Add(1); f.handler(w, r) }),
			Refuse: func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get("Authorization") == "" {
					w.WriteHeader(http.StatusUnauthorized)
					return true
				}
				return false
			},
			Servers: f, Serving: func() bool { return true }, Transport: markFrom{transport, id},
			From: func(ctx context.Context) string { s, _ := ctx.Value(fromKey{}).(string); return s },
		})
		f.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if from := r.Header.Get("From-Server"); from != "" {
				r = r.WithContext(context.WithValue(r.Context(), fromKey{}, from))
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(f.http.Close)
		c.all[id] = f
	}
	return c
}

// markFrom stands for the certificate by which a server knows another one.
type markFrom struct {
	http.RoundTripper
	id string
}

func (m markFrom) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("From-Server", m.id)
	return m.RoundTripper.RoundTrip(r)
}

// do sends a request with a token to a server.
func (f *fake) do(t *testing.T, method, path, body string, headers ...string) (status int, text string, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.http.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer token")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func TestFollowersPassRequestsOn(t *testing.T) {
	c := newFakes(t, "a", "b")
	b := c.all["b"]
	c.all["a"].applied.Store(7)
	status, text, header := b.do(t, http.MethodPost, "/v1/jobs?x=1&x=2", "body")
	if status != 200 || text != "a POST /v1/jobs?x=1&x=2 body" || header.Get(HeaderIndex) != "7" {
		t.Errorf("%d %q %v", status, text, header)
	}
	large := strings.Repeat("x", wholeBody+1)
	if status, text, _ = b.do(t, http.MethodPut, "/v1/uploads", large); status != 200 || !strings.HasSuffix(text, " "+large) {
		t.Errorf("a large body: %d, %d bytes", status, len(text))
	}
	// What each server answers by itself.
	for _, path := range []string{"/livez", "/metrics", "/docs/docs.js", "/v1/server", "/v1/config", "/v1/events", "/v1/jobs?stale=true"} {
		if _, text, _ := b.do(t, http.MethodGet, path, ""); !strings.HasPrefix(text, "b ") {
			t.Errorf("%s is answered by %q", path, text)
		}
	}
	if _, text, _ := b.do(t, http.MethodPost, "/v1/jobs?stale=true", ""); !strings.HasPrefix(text, "a ") {
		t.Errorf("a stale write is answered by %q", text)
	}
	if b.serves.Load() != 7 {
		t.Errorf("%d requests were answered by the follower", b.serves.Load())
	}
	res, err := http.Get(b.http.URL + "/v1/jobs")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %d", res.StatusCode)
	}
}

// A server that is asked as leader and does not lead refuses before it looks at the request, and the request
// goes to the next.
func TestRequestsFollowTheLeader(t *testing.T) {
	for _, size := range []int{1, wholeBody + 1} {
		c := newFakes(t, "a", "b", "c")
		// b believes for a moment that c leads; c knows that a does.
		var asked atomic.Int64
		views := map[string]func() string{"b": func() string {
			if asked.Add(1) < 4 {
				return "c"
			}
			return "a"
		}}
		b := c.all["b"]
		view := New(Config{
			Local: b.handler, Refuse: func(http.ResponseWriter, *http.Request) bool { return false }, Servers: viewed{b, views["b"]}, Serving: func() bool { return true },
			From: func(context.Context) string { return "" }, Transport: markFrom{&http.Transport{ExpectContinueTimeout: 5 * time.Second, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
				to, _, _ := net.SplitHostPort(address)
				return (&net.Dialer{}).DialContext(ctx, "tcp", c.all[to].http.Listener.Addr().String())
			}}, "b"},
		})
		w := httptest.NewServer(view)
		defer w.Close()
		body := strings.Repeat("x", size)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/v1/jobs", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer token")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || string(text) != "a POST /v1/jobs? "+body {
			t.Errorf("%d bytes: %d %.60q", size, res.StatusCode, text)
		}
		if n := c.all["c"].serves.Load(); n != 0 {
			t.Errorf("the server that does not lead looked at %d requests", n)
		}
	}
}

// viewed is a server with a view of its own of who leads.
type viewed struct {
	*fake
	leader func() string
}

func (v viewed) Leader() string { return v.leader() }

// What may have been carried out is not repeated, unless that does no harm.
func TestLostLeaderIsAmbiguous(t *testing.T) {
	for _, c := range []struct {
		method  string
		headers []string
		status  int
		most    int64
	}{
		{http.MethodPost, nil, http.StatusServiceUnavailable, 1},
		{http.MethodDelete, nil, http.StatusServiceUnavailable, 1},
		{http.MethodPost, []string{"Idempotency-Key", "k"}, http.StatusOK, 2},
		{http.MethodGet, nil, http.StatusOK, 3}, // package http repeats a read by itself as well
	} {
		servers := newFakes(t, "a", "b")
		a, b := servers.all["a"], servers.all["b"]
		answer := a.handler
		var lost atomic.Bool
		a.handler = func(w http.ResponseWriter, r *http.Request) {
			if !lost.Swap(true) {
				panic(http.ErrAbortHandler) // after it was carried out
			}
			answer(w, r)
		}
		status, text, _ := b.do(t, c.method, "/v1/jobs", "", c.headers...)
		if status != c.status || c.status != 200 && !strings.Contains(text, "ambiguous") {
			t.Errorf("%s %v: %d %s", c.method, c.headers, status, text)
		}
		if n := a.serves.Load(); n > c.most {
			t.Errorf("%s %v: sent %d times", c.method, c.headers, n)
		}
	}
}

// A leader that was deposed does not answer from its old state.
func TestDeposedLeaderDoesNotAnswer(t *testing.T) {
	c := newFakes(t, "a", "b")
	a := c.all["a"]
	a.deposed.Store(true)
	time.AfterFunc(50*time.Millisecond, func() { c.leader.Store("b") })
	if status, text, _ := a.do(t, http.MethodPost, "/v1/jobs", "body"); status != 200 || !strings.HasPrefix(text, "b POST") || !strings.HasSuffix(text, " body") {
		t.Errorf("%d %q", status, text)
	}
	if a.serves.Load() != 0 {
		t.Error("it was answered by the deposed leader")
	}
}

func TestStaleReadsWaitForTheirIndex(t *testing.T) {
	c := newFakes(t, "a", "b")
	b := c.all["b"]
	time.AfterFunc(50*time.Millisecond, func() { b.applied.Store(9) })
	status, text, header := b.do(t, http.MethodGet, "/v1/jobs?stale=true&min_index=9", "")
	if status != 200 || !strings.HasPrefix(text, "b ") || header.Get(HeaderIndex) != "9" || header.Get(HeaderAge) == "" {
		t.Errorf("%d %q %v", status, text, header)
	}
	if status, text, _ := b.do(t, http.MethodGet, "/v1/jobs?stale=true&min_index=soon", ""); status != http.StatusUnprocessableEntity || !strings.Contains(text, "min_index") {
		t.Errorf("%d %s", status, text)
	}
	// Events that a follower has not got yet are waited for, too.
	time.AfterFunc(50*time.Millisecond, func() { b.applied.Store(20) })
	if _, _, header := b.do(t, http.MethodGet, "/v1/events", "", "Last-Event-ID", "20.1"); header.Get(HeaderIndex) != "20" {
		t.Errorf("events from %s", header.Get(HeaderIndex))
	}
}
