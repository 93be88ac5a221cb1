package client

import (
	"context"
	"encoding/json"
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

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// serve starts a server for a handler and makes a client of it.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return dial(t, s.URL)
}

func dial(t *testing.T, address string) *Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c, err := New(Config{Address: address, Token: muster.NewSecret("the-token"), RetryFor: 10 * time.Second, HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, p api.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// cut ends the connection in the middle, as a killed server does.
func cut(t *testing.T, w http.ResponseWriter) {
	_ = http.NewResponseController(w).Flush()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestSubmitIsRepeatedWithItsKeyOnly(t *testing.T) {
	var calls atomic.Int32
	var keys []string
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		var s api.JobSubmission
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Spec.Name != "a" {
			t.Errorf("%+v, %v", s, err)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer the-token" {
			t.Error(got)
		}
		if calls.Add(1) < 3 {
			cut(t, w)
			return
		}
		answer(w, http.StatusCreated, api.JobSubmitted{Name: s.Spec.Name, Index: 7})
	}))
	s := api.JobSubmission{Spec: api.JobSpec{Name: "a", Template: api.Template{Command: []string{"true"}}}}
	got, err := c.Submit(t.Context(), s, "k1")
	if err != nil || got.Index != 7 || strings.Join(keys, " ") != "k1 k1 k1" {
		t.Errorf("%+v, %v, keys %q", got, err, keys)
	}
	calls.Store(0)
	if _, err := c.Submit(t.Context(), s, ""); !IsUnreachable(err) || calls.Load() != 1 {
		t.Errorf("without a key: %v after %d calls", err, calls.Load())
	}
}

func TestProblems(t *testing.T) {
	status, body, media := 0, "", ""
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	for _, tt := range []struct {
		status            int
		media, body, want string
		is                func(error) bool
	}{
		{404, "application/problem+json", `{"title":"Not Found","status":404,"detail":"job web: not found","code":"not-found"}`, "job web: not found", IsNotFound},
		{409, "application/problem+json; charset=utf-8", `{"title":"Conflict","status":409,"detail":"runs"}`, "runs", IsConflict},
		{422, "application/problem+json", `{"title":"T","status":422,"detail":"wrong","errors":[{"location":"body.spec.count","message":"is 0"}]}`, "wrong\n  body.spec.count: is 0", nil},
		{401, "text/plain", "go away", "go away", IsAuth},
		{403, "", "", "Forbidden", IsAuth},
		{500, "application/problem+json", "{", "{", nil},
		{302, "text/html", "", "Found", nil},
		{599, "", "", "status 599", nil},
	} {
		status, media, body = tt.status, tt.media, tt.body
		_, err := c.Job(t.Context(), muster.JobKey{Name: "web"})
		var p *api.Problem
		if !errors.As(err, &p) || p.Status != tt.status || p.Error() != tt.want || tt.is != nil && !tt.is(err) {
			t.Errorf("%d: %v", tt.status, err)
		}
	}
}

func TestNotReadyIsRepeatedWithinPatience(t *testing.T) {
	var calls atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) < 3 {
			refuse(w, api.Problem{Status: 503, Title: "x", Detail: "starting", Code: "unavailable"})
			return
		}
		answer(w, 200, api.ServerInfo{Index: 5})
	}))
	if info, err := c.Server(t.Context()); err != nil || info.Index != 5 {
		t.Errorf("%+v, %v", info, err)
	}
	calls.Store(-1 << 20)
	_, err := c.Patient(-1).Server(t.Context())
	if err == nil || err.Error() != "starting" || calls.Load() != -1<<20+1 {
		t.Errorf("without patience: %v after %d calls", err, calls.Load()+1<<20)
	}
	_, err = c.Patient(200 * time.Millisecond).Server(t.Context())
	if err == nil || err.Error() != "starting" || calls.Load() < -1<<20+3 {
		t.Errorf("with little: %v", err)
	}
}

func TestRetryAfterIsObeyed(t *testing.T) {
	var calls atomic.Int32
	var first time.Time
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			refuse(w, api.Problem{Status: 429, Title: "x", Detail: "too many"})
			return
		}
		if since := time.Since(first); since < time.Second {
			t.Errorf("came again after %v", since)
		}
		answer(w, 200, api.ServerInfo{})
	}))
	if _, err := c.Server(t.Context()); err != nil {
		t.Error(err)
	}
	calls.Store(0)
	if _, err := c.Patient(500 * time.Millisecond).Server(t.Context()); err == nil || err.Error() != "too many" {
		t.Error(err)
	}
}

func TestUnreachableNamesTheAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, err = dial(t, address).Patient(-1).Server(t.Context())
	want := fmt.Sprintf("no server answers at %s: connection refused", address)
	if !IsUnreachable(err) || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestCancelledIsNotUnreachable(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Server(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestServerThatMovesIsFoundAgain(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, 200, api.ServerInfo{Version: r.Header.Get("Authorization")})
	})
	first, second := httptest.NewServer(h), httptest.NewServer(h)
	defer second.Close()
	where := first.Listener.Addr().String()
	c, err := New(Config{Address: where, RetryFor: 10 * time.Second, Find: func() (string, muster.Secret, error) {
		return where, muster.NewSecret("new"), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := c.Server(t.Context()); err != nil || info.Version != "" {
		t.Errorf("%+v, %v", info, err)
	}
	first.Close()
	where = second.Listener.Addr().String()
	if info, err := c.Server(t.Context()); err != nil || info.Version != "Bearer new" || c.Address() != where {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestWaitReady(t *testing.T) {
	var ready atomic.Bool
	var calls atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Error(r.URL.Path)
		}
		if calls.Add(1) == 3 {
			ready.Store(true)
		}
		if !ready.Load() {
			refuse(w, api.Problem{Status: 503, Title: "x", Detail: "no leader yet"})
		}
	}))
	if err := c.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	ready.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.WaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no leader yet") {
		t.Error(err)
	}
}

func TestPagesAndPaths(t *testing.T) {
	var asked []string
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		switch r.URL.Query().Get("after") {
		case "":
			answer(w, 200, map[string]any{"jobs": []api.Job{{Name: "a"}, {Name: "b"}}, "allocs": []api.Alloc{{ID: "a"}}, "members": []api.Member{{}}, "nodes": []api.Node{{}}, "next": "p 2"})
		case "p 2":
			answer(w, 200, map[string]any{"jobs": []api.Job{{Name: "c"}}})
		default:
			refuse(w, api.Problem{Status: 400, Title: "x"})
		}
	}))
	var names string
	for j, err := range c.AllJobs(t.Context(), JobQuery{Namespace: "n", Stage: muster.JobLive, Limit: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		names += j.Name
	}
	if names != "abc" {
		t.Error(names)
	}
	for range c.AllJobs(t.Context(), JobQuery{}) {
		break
	}
	for _, err := range c.AllMembers(t.Context(), muster.JobKey{Name: "j"}, MemberQuery{Status: muster.MemberFailed}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	index := 0
	for _, err := range c.AllJobAllocs(t.Context(), muster.JobKey{Namespace: "n", Name: "j/../k"}, AllocQuery{Index: &index}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range c.AllAllocs(t.Context(), AllocQuery{Node: "n1", Live: true}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range c.AllNodes(t.Context(), NodeQuery{Pool: "p", Stage: muster.NodeServing}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := `/v1/jobs?limit=2&namespace=n&stage=live
/v1/jobs?after=p+2&limit=2&namespace=n&stage=live
/v1/jobs?limit=1000
/v1/jobs/default/j/members?limit=1000&status=failed
/v1/jobs/default/j/members?after=p+2&limit=1000&status=failed
/v1/jobs/n/j%2F..%2Fk/allocations?index=0&limit=1000
/v1/jobs/n/j%2F..%2Fk/allocations?after=p+2&index=0&limit=1000
/v1/allocations?limit=1000&live=true&node=n1
/v1/allocations?after=p+2&limit=1000&live=true&node=n1
/v1/nodes?limit=1000&pool=p&stage=serving
/v1/nodes?after=p+2&limit=1000&pool=p&stage=serving`
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, err := range c.AllJobs(t.Context(), JobQuery{After: "other"}) {
		_ = err
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var elsewhere atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) }))
	defer other.Close()
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) }))
	if _, err := c.Server(t.Context()); err == nil || elsewhere.Load() {
		t.Errorf("%v, followed: %v", err, elsewhere.Load())
	}
}

func TestUploads(t *testing.T) {
	stored := map[string]string{}
	var calls atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digest := strings.TrimPrefix(r.URL.Path, "/v1/uploads/")
		if r.Method == http.MethodHead {
			if _, ok := stored[digest]; !ok {
				w.WriteHeader(404)
			}
			return
		}
		if calls.Add(1) == 1 {
			_, _ = io.CopyN(io.Discard, r.Body, 1)
			cut(t, w)
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil || r.ContentLength != int64(len(b)) {
			t.Errorf("length %d of %d, %v", r.ContentLength, len(b), err)
		}
		stored[digest] = string(b)
		answer(w, 201, api.Upload{Digest: digest, Size: int64(len(b))})
	}))
	for digest, content := range map[string]string{"sha256:ab": "some content", "sha256:00": ""} {
		if has, err := c.HasUpload(t.Context(), digest); has || err != nil {
			t.Errorf("%v, %v", has, err)
		}
		up, err := c.Upload(t.Context(), digest, int64(len(content)), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil })
		if err != nil || up.Digest != digest || up.Size != int64(len(content)) || stored[digest] != content {
			t.Errorf("%+v, %v", up, err)
		}
		if has, err := c.HasUpload(t.Context(), digest); !has || err != nil {
			t.Errorf("%v, %v", has, err)
		}
	}
	gone := errors.New("the file is gone")
	if _, err := c.Upload(t.Context(), "sha256:ab", 3, func() (io.ReadCloser, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Error(err)
	}
}

func TestBackupThatIsCutIsNoBackup(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "half")
		cut(t, w)
	}))
	r, err := c.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if string(b) != "half" || !IsUnreachable(err) {
		t.Errorf("%q, %v", b, err)
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:4750": "127.0.0.1:4750", "http://h:1/": "h:1", "https://muster.example.org/x/": "muster.example.org", "[::1]:4750": "[::1]:4750",
	} {
		c, err := New(Config{Address: in})
		if err != nil || c.Address() != want {
			t.Errorf("%q: %v", in, err)
		}
	}
	for _, in := range []string{"", "ftp://x", "http://user:pw@h", "http://h?x", "::", "a b"} {
		if _, err := New(Config{Address: in}); err == nil {
			t.Errorf("%q is an address", in)
		}
	}
}
