package inputs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/destinations"
)

// fetchReal makes a cache whose URLs are fetched over the network, with loopback allowed only where
// prefixes say so.
func fetchReal(t *testing.T, most int64, allow ...string) *Cache {
	t.Helper()
	d, err := destinations.Parse(allow)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := Open(ctx, Config{
		Dir: filepath.Join(t.TempDir(), "inputs"), Limit: 1 << 30, Most: most, Destinations: d, Logger: slog.New(slog.DiscardHandler),
		Spawn: func(f func()) bool { go f(); return true }, Added: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// S-H3: an input's URL read any address that the node reaches: its own services, and where clouds
// tell machines their secrets.
func TestURLInputsReachNothingOfTheNode(t *testing.T) {
	const secret = "the node's secret"
	asked := make(chan string, 100)
	serve := func(address string, h http.HandlerFunc) string {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip(err)
		}
		srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h}}
		srv.Start()
		t.Cleanup(srv.Close)
		return srv.URL
	}
	inner := serve("127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) { asked <- r.URL.Path; _, _ = io.WriteString(w, secret) })
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(inner, "http://"))
	to := ""
	outer := serve("127.0.0.2:0", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
	s := fetchReal(t, 1<<20, "127.0.0.2")
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "[64:ff9b::7f00:1]"} {
		for _, redirected := range []bool{false, true} {
			url := "http://" + net.JoinHostPort(strings.Trim(host, "[]"), port) + "/x"
			if redirected {
				to, url = url, outer
			}
			_, _, f := s.get(t.Context(), digestOf([]byte(secret)), url)
			if f == nil || f.Class != muster.FailureUser || !strings.Contains(f.Message, "allow_addresses of the pool can allow it") {
				t.Errorf("%s (redirected %v): %+v", host, redirected, f)
			}
		}
	}
	select {
	case path := <-asked:
		t.Errorf("the node's own service was asked for %s", path)
	default:
	}
}

// S-H3: a wrong digest was answered with the right one, with which the content could be had.
func TestWrongDigestIsNotAnswered(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "content") }))
	defer srv.Close()
	_, _, f := fetchReal(t, 1<<20, "127.0.0.1").get(t.Context(), digestOf([]byte("other")), srv.URL)
	if f == nil || f.Class != muster.FailureUser || strings.Contains(f.Message, digestOf([]byte("content"))[len("sha256:"):]) {
		t.Errorf("%+v", f)
	}
}

// S-H9: an input without end filled the disk of one node after the other.
func TestURLInputsAreBounded(t *testing.T) {
	for _, told := range []bool{true, false} {
		gets := 0
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			gets++
			if told {
				w.Header().Set("Content-Length", fmt.Sprint(1<<40))
			}
			for block := make([]byte, 64<<10); r.Context().Err() == nil; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}))
		s := fetchReal(t, 1<<20, "127.0.0.1")
		_, _, f := s.get(t.Context(), digestOf([]byte("other")), srv.URL)
		srv.CloseClientConnections()
		srv.Close()
		if f == nil || f.Class != muster.FailureUser || !strings.Contains(f.Message, "larger than 1MiB") {
			t.Errorf("%+v", f)
		}
		if files, err := os.ReadDir(s.cfg.Dir); len(files) > 0 || err != nil {
			t.Errorf("left: %v, %v", files, err)
		}
		if gets != 1 {
			t.Errorf("it was asked for %d times", gets)
		}
	}
}
