package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFencesAreOrdered(t *testing.T) {
	order := []Fence{{Epoch: 1, Term: 1, Index: 9}, {Epoch: 1, Term: 2, Index: 1}, {Epoch: 1, Term: 2, Index: 2}, {Epoch: 2, Term: 1, Index: 1}}
	for i, a := range order {
		for j, b := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%v and %v: %d", a, b, got)
			}
		}
	}
}

// An agent obeys its own protocol and the one before, so a newer server must speak the agent's.
func TestProtocolIsTheLowerOne(t *testing.T) {
	for _, x := range []struct{ ours, theirs, want int64 }{{2, 1, 1}, {1, 2, 1}, {2, 2, 2}, {2, 0, 2}} {
		if got := spoken(x.ours, x.theirs); got != x.want {
			t.Errorf("server %d, agent %d: %d", x.ours, x.theirs, got)
		}
	}
	var sent string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			sent = r.Header.Get(HeaderProtocol)
		}
		_, _ = io.WriteString(w, `{"protocol": 7}`)
	})
	if h, err := c.Hello(t.Context()); err != nil || h.Protocol != 7 {
		t.Fatal(h, err)
	}
	if _, err := c.SendDesired(t.Context(), Desired{}); err != nil || sent != "1" || c.protocol.Load() != 7 {
		t.Errorf("%v: sent %q", err, sent)
	}
}

// serve answers on a socket whose path is longer than a socket address.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, SocketName)
	if err := os.WriteFile(path, nil, 0o644); err != nil { // left by an agent that was killed
		t.Fatal(err)
	}
	ln, err := ListenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	c := NewClient(func(ctx context.Context) (net.Conn, error) { return DialSocket(ctx, path) })
	t.Cleanup(func() { c.Close(); _ = srv.Close(); <-done })
	return c
}

func TestErrorsHaveKinds(t *testing.T) {
	var status int
	var body string
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	for _, x := range []struct {
		status int
		body   string
		kind   muster.FaultKind
		says   string
	}{
		{404, `{"message":"not here"}`, muster.FaultNotFound, "not here"},
		{400, `{"message":"odd"}`, muster.FaultInvalid, "odd"},
		{503, ``, muster.FaultUnavailable, "503"},
		{507, `{"message":"full"}`, muster.FaultDiskLow, "full"},
		{500, `<html>`, muster.FaultInternal, "500"},
		{409, `{}`, muster.FaultInternal, "409"},
		{200, `not json`, muster.FaultUnavailable, ""},
	} {
		status, body = x.status, x.body
		if _, err := c.Hello(t.Context()); muster.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%d %s: %v", x.status, x.body, err)
		}
		if x.status == 200 {
			continue
		}
		for _, err := range c.Reports(t.Context()) {
			if muster.KindOf(err) != x.kind {
				t.Errorf("reports, %d: %v", x.status, err)
			}
		}
		if _, err := c.Stream(t.Context(), "u-0-1", Stdout, 0, false); muster.KindOf(err) != x.kind {
			t.Errorf("output, %d: %v", x.status, err)
		}
	}
	status, body = 409, `{"code":"fence","message":"older","fence":{"cluster":"c","epoch":1,"term":2,"index":3},"later":"field"}`
	_, err := c.SendDesired(t.Context(), Desired{})
	var r *Refusal
	if !errors.As(err, &r) || r.Code != RefusedFence || r.Message != "older" || r.Fence.Index != 3 {
		t.Errorf("%v", err)
	}
}

func TestOutputThatBreaksOffIsAnError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("offset") == "7" {
			w.Header().Set(HeaderOutputStart, "many")
		}
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	out, err := c.Stream(t.Context(), "u-0-1", Stderr, 3, true)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(out); string(b) != "part" || muster.KindOf(err) != muster.FaultUnavailable || out.Start != 3 {
		t.Errorf("%q from %d: %v", b, out.Start, err)
	}
	_ = out.Close()
	if _, err := c.Stream(t.Context(), "u-0-1", Stderr, 7, false); muster.KindOf(err) != muster.FaultInternal {
		t.Errorf("%v", err)
	}
}

// D7: a ready command may take as long as its pool says; the answer begins only when it has ended.
func TestProbeThatTakesLong(t *testing.T) {
	for took, ok := range map[time.Duration]bool{31 * time.Second: true, 10 * time.Minute: true, 20 * time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			c := NewClient(func(context.Context) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer func() { _ = there.Close() }()
					r := bufio.NewReader(there)
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					time.Sleep(took)
					_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{\"ready\":true}")
				}()
				return here, nil
			})
			defer c.Close()
			a, err := c.Probe(t.Context(), Probe{Command: []string{"ready"}, TimeoutMillis: (10 * time.Minute).Milliseconds()})
			if a.Ready != ok || (err == nil) != ok {
				t.Errorf("after %v: %+v, %v", took, a, err)
			}
			time.Sleep(took) // so that the other end has ended, too
		})
	}
}

func TestNobodyListens(t *testing.T) {
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		return DialSocket(ctx, filepath.Join(t.TempDir(), "none"))
	})
	if _, err := c.Hello(t.Context()); muster.KindOf(err) != muster.FaultUnavailable {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Hello(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestUpgradeThatNobodyAskedFor: the body of such an answer is the connection, which the client must not wait for.
func TestUpgradeThatNobodyAskedFor(t *testing.T) {
	release := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		<-release
	})
	defer close(release)
	for what, ask := range map[string]func() error{
		"hello":   func() error { _, err := c.Hello(t.Context()); return err },
		"stats":   func() error { _, err := c.Stats(t.Context(), "u-0-1"); return err },
		"release": func() error { return c.Release(t.Context(), "c") },
		"output":  func() error { _, err := c.Stream(t.Context(), "u-0-1", Stdout, 0, true); return err },
		"pull": func() error {
			for _, err := range c.PullImage(t.Context(), PullImage{Ref: "a:b"}) {
				return err
			}
			return nil
		},
		"reports": func() error {
			for _, err := range c.Reports(t.Context()) {
				return err
			}
			return nil
		},
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "upgraded") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
