package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func host(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }

func TestGuard(t *testing.T) {
	b := newBench(t, 100)
	none := func(r *http.Request) { r.Header.Del("Authorization") }
	for name, c := range map[string]struct {
		method, path, body string
		edit               []func(*http.Request)
		status             int
		code               string
	}{
		"loopback v4":       {"GET", "/v1/server", "", []func(*http.Request){host("127.0.0.1:4750")}, 200, ""},
		"another loopback":  {"GET", "/v1/server", "", []func(*http.Request){host("127.8.9.10")}, 200, ""},
		"loopback v6":       {"GET", "/v1/server", "", []func(*http.Request){host("[::1]:4750")}, 200, ""},
		"loopback v6 bare":  {"GET", "/v1/server", "", []func(*http.Request){host("[::1]")}, 200, ""},
		"localhost":         {"GET", "/v1/server", "", []func(*http.Request){host("LocalHost:1")}, 200, ""},
		"localhost dot":     {"GET", "/v1/server", "", []func(*http.Request){host("localhost.")}, 200, ""},
		"allowed":           {"GET", "/v1/server", "", []func(*http.Request){host("Muster.Example.com:99")}, 200, ""},
		"allowed with port": {"GET", "/v1/server", "", []func(*http.Request){host("odd.example.com:8080")}, 200, ""},
		"other port":        {"GET", "/v1/server", "", []func(*http.Request){host("odd.example.com:8081")}, 421, "forbidden"},
		"rebinding":         {"GET", "/v1/server", "", []func(*http.Request){host("evil.example")}, 421, "forbidden"},
		"lookalike":         {"GET", "/v1/server", "", []func(*http.Request){host("127.0.0.1.evil.example")}, 421, "forbidden"},
		"localhost suffix":  {"GET", "/v1/server", "", []func(*http.Request){host("x.localhost")}, 421, "forbidden"},
		"private address":   {"GET", "/v1/server", "", []func(*http.Request){host("10.0.0.1:4750")}, 421, "forbidden"},
		"any address":       {"GET", "/v1/server", "", []func(*http.Request){host("0.0.0.0:4750")}, 421, "forbidden"},
		"no host":           {"GET", "/v1/server", "", []func(*http.Request){host("")}, 421, "forbidden"},
		"rebinding, open":   {"GET", "/docs", "", []func(*http.Request){host("evil.example")}, 421, "forbidden"},

		"same origin":      {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "http://127.0.0.1:4750")}, 200, ""},
		"foreign origin":   {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "http://evil.example")}, 403, "forbidden"},
		"foreign port":     {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "http://127.0.0.1:3000")}, 403, "forbidden"},
		"null origin":      {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "null")}, 403, "forbidden"},
		"odd origin":       {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "http://127.0.0.1:4750@evil.example")}, 403, "forbidden"},
		"file origin":      {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "file://127.0.0.1:4750")}, 403, "forbidden"},
		"broken origin":    {"GET", "/v1/server", "", []func(*http.Request){header("Origin", "http://%zz")}, 403, "forbidden"},
		"foreign, open":    {"GET", "/livez", "", []func(*http.Request){header("Origin", "http://evil.example")}, 403, "forbidden"},
		"foreign, no auth": {"POST", "/v1/jobs", simple, []func(*http.Request){none, header("Origin", "http://evil.example")}, 403, "forbidden"},

		"no token":      {"GET", "/v1/server", "", []func(*http.Request){none}, 401, "auth"},
		"no token, 404": {"GET", "/nothing", "", []func(*http.Request){none}, 401, "auth"},
		"basic":         {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", "Basic "+token)}, 401, "auth"},
		"bare":          {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", token)}, 401, "auth"},
		"empty bearer":  {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", "Bearer ")}, 401, "auth"},
		"wrong":         {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", "Bearer x")}, 401, "auth"},
		"nearly":        {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", "Bearer "+token+"x")}, 401, "auth"},
		"lower case":    {"GET", "/v1/server", "", []func(*http.Request){header("Authorization", "bearer "+token)}, 200, ""},
		"metrics":       {"GET", "/metrics", "", []func(*http.Request){none}, 401, "auth"},
		"backup":        {"GET", "/v1/backup", "", []func(*http.Request){none}, 401, "auth"},
		"events":        {"GET", "/v1/events", "", []func(*http.Request){none}, 401, "auth"},
		"upload":        {"PUT", "/v1/uploads/x", "x", []func(*http.Request){none}, 401, "auth"},
		"live":          {"GET", "/livez", "", []func(*http.Request){none}, 200, ""},
		"ready":         {"GET", "/readyz", "", []func(*http.Request){none}, 200, ""},
		"docs":          {"GET", "/docs", "", []func(*http.Request){none}, 200, ""},
		"docs script":   {"GET", "/docs/docs.js", "", []func(*http.Request){none}, 200, ""},
		"openapi":       {"GET", "/openapi.json", "", []func(*http.Request){none}, 200, ""},
		"root":          {"GET", "/", "", []func(*http.Request){none}, 302, ""},
		"docs climb":    {"GET", "/docs/../v1/server", "", []func(*http.Request){none}, 307, ""},

		"nothing there":  {"GET", "/v2/jobs", "", nil, 404, "not-found"},
		"below a route":  {"GET", "/v1/jobs/a/b/c/d", "", nil, 404, "not-found"},
		"trailing slash": {"GET", "/v1/jobs/", "", nil, 404, "not-found"},
		"other method":   {"DELETE", "/v1/jobs", "", nil, 405, "invalid"},
		"odd method":     {"BREW", "/v1/jobs", "", nil, 405, "invalid"},
		"options":        {"OPTIONS", "/v1/jobs", "", nil, 405, "invalid"},
		"post docs":      {"POST", "/docs", "", nil, 405, "invalid"},

		"no type":    {"POST", "/v1/jobs", simple, []func(*http.Request){func(r *http.Request) { r.Header.Del("Content-Type") }}, 415, "invalid"},
		"form":       {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/x-www-form-urlencoded")}, 415, "invalid"},
		"text":       {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "text/plain")}, 415, "invalid"},
		"yaml":       {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/yaml")}, 415, "invalid"},
		"json-ish":   {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/x+json")}, 415, "invalid"},
		"broken":     {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/json; charset")}, 415, "invalid"},
		"utf-16":     {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/json; charset=utf-16")}, 415, "invalid"},
		"gzip":       {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Encoding", "gzip")}, 415, "invalid"},
		"two types":  {"POST", "/v1/jobs", simple, []func(*http.Request){func(r *http.Request) { r.Header.Add("Content-Type", "text/plain") }}, 415, "invalid"},
		"charset":    {"POST", "/v1/jobs", simple, []func(*http.Request){header("Content-Type", "application/json; charset=UTF-8")}, 201, ""},
		"no body":    {"POST", "/v1/jobs", "", nil, 400, "invalid"},
		"stop, text": {"POST", "/v1/jobs/a/b/stop", "x", []func(*http.Request){header("Content-Type", "text/plain")}, 415, "invalid"},
		"get a body": {"GET", "/v1/jobs", "ignored", []func(*http.Request){header("Content-Type", "text/plain")}, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b.TB = t
			a := b.do(c.method, c.path, c.body, c.edit...)
			if c.code != "" {
				p := b.problem(a, c.status, c.code)
				switch c.status {
				case 401:
					if !strings.HasPrefix(a.Header.Get("Www-Authenticate"), "Bearer") {
						t.Errorf("headers %v", a.Header)
					}
				case 405:
					if a.Header.Get("Allow") == "" {
						t.Errorf("headers %v", a.Header)
					}
				case 415:
					if !strings.Contains(p.Detail, "-H 'Content-Type: application/json'") {
						t.Errorf("%q", p.Detail)
					}
				}
			} else if a.StatusCode != c.status {
				t.Errorf("%d %s", a.StatusCode, a.body)
			}
			if a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers %v", a.Header)
			}
			if strings.Contains(a.body, token) {
				t.Error("the token is told back")
			}
		})
	}
	if l := b.logged.String(); strings.Contains(l, token) || strings.Count(l, "msg=request") < 50 {
		t.Errorf("log:\n%.2000s", l)
	}
}

func TestNoAuth(t *testing.T) {
	b := newBench(t, 100, func(c *parts) { c.NoAuth, c.Token = true, muster.Secret{} })
	none := func(r *http.Request) { r.Header.Del("Authorization") }
	if a := b.do("GET", "/v1/server", "", none); a.StatusCode != 200 {
		t.Errorf("%d", a.StatusCode)
	}
	b.problem(b.do("GET", "/v1/server", "", none, host("evil.example")), 421, "forbidden")
	b.problem(b.do("POST", "/v1/jobs", simple, none, header("Origin", "http://evil.example")), 403, "forbidden")
	b.problem(b.do("POST", "/v1/jobs", simple, none, header("Content-Type", "text/plain")), 415, "invalid")
}

func TestNewNeeds(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("of nothing")
	}
	b := newBench(t, 100)
	b.parts.Token = muster.Secret{}
	if _, err := b.parts.door(); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("without a token: %v", err)
	}
}

func TestServerAndHealth(t *testing.T) {
	b := newBench(t, 100)
	s := get[api.ServerInfo](b, "/v1/server")
	if s != (api.ServerInfo{Version: "v-test", ClusterID: "c1", Epoch: 1, Index: 1, Leader: true}) {
		t.Errorf("%+v", s)
	}
	none := func(r *http.Request) { r.Header.Del("Authorization") }
	b.mu.Lock()
	b.ready = errors.New("replaying the log, 10 of 20 segments")
	b.mu.Unlock()
	a := b.do("GET", "/readyz", "", none)
	p := b.problem(a, 503, "unavailable")
	if strings.Contains(p.Detail, "segments") || a.Header.Get("Retry-After") == "" {
		t.Errorf("tells a stranger %q", p.Detail)
	}
	if p := b.problem(b.do("GET", "/readyz", ""), 503, "unavailable"); !strings.Contains(p.Detail, "segments") {
		t.Errorf("tells the operator %q", p.Detail)
	}
	if p := b.problem(b.do("GET", "/readyz", "", header("Authorization", "Bearer x")), 503, "unavailable"); strings.Contains(p.Detail, "segments") {
		t.Errorf("tells a wrong token %q", p.Detail)
	}
	if a := b.do("GET", "/livez", "", none); a.StatusCode != 200 || a.body != `{"status":"ok"}`+"\n" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if s := get[api.ServerInfo](b, "/v1/server"); s.Leader {
		t.Error("leads and is not ready")
	}
}

// TestPanic: a defect is logged and answered, and the server lives on.
func TestPanic(t *testing.T) {
	b := newBench(t, 100, func(c *parts) {
		c.Fits = func(*api.JobSpec, *state.Snapshot) (bool, string) { panic("fits: " + errSecret.Error()) }
	})
	a := b.do("POST", "/v1/jobs/validate", simple)
	p := b.problem(a, 500, "internal")
	if strings.Contains(a.body, "hunter2") || !strings.Contains(p.Detail, "log") {
		t.Errorf("%s", a.body)
	}
	if l := b.logged.String(); !strings.Contains(l, "hunter2") || !strings.Contains(l, "guard_test.go") {
		t.Errorf("the log has no stack: %s", l)
	}
	if a := b.do("GET", "/v1/server", ""); a.StatusCode != 200 {
		t.Errorf("afterwards: %d", a.StatusCode)
	}
}

func TestUnixSocketNeedsNoHost(t *testing.T) {
	b := newBench(t, 100)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := b.parts.Door.Server(b.stop)
	served := make(chan error)
	go func() { served <- srv.Serve(l) }()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for auth, want := range map[string]int{"": 401, "Authorization: Bearer " + token + "\r\n": 200} {
		_, _ = fmt.Fprintf(conn, "GET /v1/server HTTP/1.1\r\nHost: whatever\r\n%s\r\n", auth)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != want {
			t.Errorf("%q: %s", auth, resp.Status)
		}
	}
	_ = conn.Close()
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	<-served
}

// TestBrokenBodies: what breaks on the wire is the client's doing.
func TestBrokenBodies(t *testing.T) {
	b := newBench(t, 100)
	srv := b.serve()
	head := "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct {
		request string
		close   bool
		status  int
	}{
		"chunk size": {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", false, 400},
		"chunk cut":  {head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{}", true, 400},
		"length":     {head + "Content-Length: 100\r\n\r\n{}", true, 400},
		"upload": {"PUT /v1/uploads/sha256:" + strings.Repeat("0", 64) + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token +
			"\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nx", true, 422},
		"bad length": {head + "Content-Length: -1\r\n\r\n{}", false, 400},
		"too large":  {head + "Content-Length: 99999999999\r\n\r\n{}", false, 413},
		"headers":    {head + "X: " + strings.Repeat("x", 100<<10) + "\r\n\r\n", false, 431},
		"no host":    {"GET / HTTP/1.1\r\n\r\n", false, 400},
		"two hosts":  {"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", false, 400},
		"garbage":    {"\x16\x03\x01\x02\x00\x01\r\n\r\n", false, 400},
		"old":        {"GET /livez HTTP/1.0\r\n\r\n", false, 421},
		"star":       {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", false, 200},
		"connect":    {"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", false, 421},
		"absolute":   {"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", false, 421},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, c.request); err != nil {
				t.Fatal(err)
			}
			if c.close {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != c.status {
				t.Errorf("%s %v, want %d", resp.Status, err, c.status)
			}
		})
	}
}

// FuzzRequests posts garbage of every kind; nothing may make it a 5xx or a panic.
func FuzzRequests(f *testing.F) {
	f.Add("POST", "/v1/jobs", "", "application/json", "", []byte(simple))
	f.Add("POST", "/v1/jobs/validate", "", "application/json", "", []byte(`{"spec":{"resources":{"memory":-1,"cpu":"x"},"inputs":[{"mode":"99999"}],"constraints":[{"op":"in"}]}}`))
	f.Add("POST", "/v1/jobs", "", "application/json", "", []byte(`{"spec":{"command":["\ud800\u0000"],"env":{"":"","=":"\u0000"},"workdir":"../..","timeout":"-1s","restart":{"on":["300-1"]}},"if_version":18446744073709551616}`))
	f.Add("POST", "/v1/jobs/default/j/stop", "", "application/json", "", []byte(`{"reason":7}`))
	f.Add("GET", "/v1/jobs/%ff/%2e%2e", "after=%ff&limit=99999999999999999999", "", "k", []byte{})
	f.Add("GET", "/v1/allocations", "after=\x00&live=2&node=%00", "", "", []byte{})
	f.Add("GET", "/v1/allocations/uabcdef-0-1/output/stdout", "offset=9223372036854775807", "", "", []byte{})
	f.Add("GET", "/v1/allocations/uabcdef-0-1/output/stdout", "tail=1048577", "", "", []byte{})
	f.Add("GET", "/v1/allocations/x/outputs/-0", "", "", "", []byte{})
	f.Add("GET", "/v1/events", "after=18446744073709551615.99&follow=false", "", "", []byte{})
	f.Add("GET", "/v1/events", "follow=false&job=\xff", "", "1.2", []byte{})
	f.Add("PUT", "/v1/uploads/sha256:"+strings.Repeat("0", 64), "", "application/octet-stream", "", []byte("x"))
	f.Add("HEAD", "/v1/uploads/..%2f..%2fx", "", "", "", []byte{})
	f.Add("GET", "//v1///jobs/../jobs", "", "", "", []byte{})
	f.Add("TRACE", "/metrics", "=&&;", "text/plain", "", []byte{0})
	for _, bad := range badJSON() {
		f.Add("POST", "/v1/jobs", "", "application/json", "key", []byte(bad))
	}
	shared := newBench(f, 1000)
	_, id := shared.running()
	shared.nodes.stream(id, "stdout").write("x")
	shared.nodes.stream(id, "stderr").end()
	f.Add("GET", "/v1/allocations/"+string(id)+"/output/stderr", "offset=9223372036854775807", "", "", []byte{})
	f.Add("GET", "/v1/allocations/"+string(id)+"/output/stdout", "tail=0", "", "", []byte{})
	f.Fuzz(func(t *testing.T, method, path, query, contentType, head string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://localhost", bytes.NewReader(body))
		if err != nil {
			return // the HTTP server would not have let it in
		}
		req.URL.Path, req.URL.RawPath, req.URL.RawQuery = path, path, query
		if u, err := req.URL.Parse(path); err == nil {
			req.URL.Path, req.URL.RawPath = u.Path, u.RawPath
		}
		if req.URL.Path == "" || req.URL.Path[0] != '/' {
			req.URL.Path = "/" + req.URL.Path
		}
		req.RequestURI = req.URL.RequestURI()
		req.Header.Set("Authorization", "Bearer "+token)
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		req.Header.Set("Idempotency-Key", head)
		req.Header.Set("Last-Event-ID", head)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if strings.HasPrefix(req.URL.Path, "/v1/events") || strings.Contains(query, "follow") {
			cancel() // endless by design: it is what comes before that counts
		}
		rec := httptest.NewRecorder()
		func() {
			defer func() {
				if r := recover(); r != nil && r != http.ErrAbortHandler {
					panic(r)
				}
			}()
			shared.api.Handler().ServeHTTP(rec, req.WithContext(ctx))
		}()
		if rec.Code >= 500 || strings.Contains(shared.logged.String(), "panicked") {
			t.Fatalf("%s %q?%q: %d %s\n%s", method, path, query, rec.Code, rec.Body, shared.logged.String())
		}
		if rec.Code >= 400 && method != "HEAD" && rec.Header().Get("Content-Type") != "application/problem+json" {
			t.Fatalf("%s %q: %d as %s: %s", method, path, rec.Code, rec.Header().Get("Content-Type"), rec.Body)
		}
		if rec.Body.Len() > 64<<10 && rec.Code >= 400 {
			t.Fatalf("a problem of %d bytes", rec.Body.Len())
		}
	})
}

func badJSON() []string {
	return []string{
		``, ` `, `{`, `}`, `[]`, `""`, `null`, `true`, `0`, `-`, `1e`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"spec":[]}`, `{"spec":{}}{`, "\ufeff{}", "\x00", `{"spec":{"env":{"a":"b","a":"c"}}}`,
		`{"spec":{"inputs":[[]]}}`, `{"spec":{"inputs":{"a":1}}}`, `{"spec":{"command":[1,{},[],null,true,"x"]}}`, `{"spec":{"count":9223372036854775808}}`, `{"spec":{"count":-9223372036854775809}}`,
		`{"spec":{"priority":1e400}}`, `{"spec":{"resources":{"memory":1e30}}}`, `{"spec":{"resources":{"memory":"99999999999999999999TiB"}}}`, `{"spec":{"timeout":"9999999999999999999h"}}`,
		strings.Repeat(`{"spec":`, 10_000), strings.Repeat("[", 100_000), `{"` + strings.Repeat("x", 100_000) + `":1}`,
	}
}
