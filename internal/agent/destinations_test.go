package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

func TestDestinationsRefuse(t *testing.T) {
	allowed, err := ParseDestinations([]string{"127.0.0.2", "169.254.9.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	for address, refused := range map[string]bool{
		"169.254.169.254": true, "fd00:ec2::254": true, "fd20:ce::254": true, "100.100.100.200": true, "168.63.129.16": true, "127.0.0.1": true, "::1": true,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "0.0.0.0": true, "::": true, "0.1.2.3": true, "127.255.0.9": true,
		"fe80::1": true, "224.0.0.1": true, "ff02::1": true, "255.255.255.255": true,
		"64:ff9b::a9fe:a9fe": true, "64:ff9b:1::7f00:1": true, "2002:7f00:1::": true, "::7f00:1": true, "fe80::1%eth0": true,
		"192.0.2.1": false, "10.0.0.1": false, "192.168.1.1": false, "2001:db8::1": false, "64:ff9b::c000:201": false, "fd12::1": false,
		"127.0.0.2": false, "::ffff:127.0.0.2": false, "169.254.9.7": false, "127.0.0.3": true,
	} {
		if got := allowed.Refuses(netip.MustParseAddr(address)); got != refused {
			t.Errorf("%s: refused %v, want %v", address, got, refused)
		}
	}
	for _, text := range []string{"localhost", "10.0.0.0/33", "", "10.0.0.1:80"} {
		if _, err := ParseDestinations([]string{text}); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// fetchReal makes a cache whose URLs are fetched over the network, with loopback allowed only where prefixes say so.
func fetchReal(t *testing.T, most int64, allow ...string) *inputs {
	t.Helper()
	d, err := ParseDestinations(allow)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	s, err := newInputs(ctx, inputsConfig{
		dir: filepath.Join(t.TempDir(), "inputs"), limit: 1 << 30, most: most, destinations: d, log: slog.New(slog.DiscardHandler),
		spawn: func(f func()) bool { go f(); return true }, added: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// S-H3: an input's URL read any address that the node reaches: its own services, and where clouds tell machines their secrets.
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
		if files, err := os.ReadDir(s.dir); len(files) > 0 || err != nil {
			t.Errorf("left: %v, %v", files, err)
		}
		if gets != 1 {
			t.Errorf("it was asked for %d times", gets)
		}
	}
}
