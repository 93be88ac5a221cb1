package faults

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/locate"
)

// attackFlag: attacks by numbers have their full size, and tell what they came to.
var attackFlag = flag.Bool("faults.attack", false, "floods of their full size")

// S-H8: without any token, whoever opened a few hundred connections ended the server, which stayed down.
func TestConnectionsWithoutToken(t *testing.T) {
	t.Parallel()
	idle, slow, asks := 400, 40, 50
	h := newHost(t, func(c *api.ServerConfig) { c.Limits.Connections = 64 })
	if *attackFlag {
		idle, slow, asks = 2000, 200, 1000
		h.config.Limits.Connections = 0
	}
	h.start()
	pid := h.srv.cmd.Process.Pid
	if !*attackFlag {
		// As few descriptors as where it was seen. Those kept for the log must suffice.
		limit := unix.Rlimit{Cur: 384, Max: 384}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			t.Fatal(err)
		}
	}
	s := must(locate.ReadServer(h.data))(t)
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for i := range idle + slow {
		c, err := net.Dial("tcp", s.Address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		switch {
		case i >= idle && i%2 == 0:
			_, _ = io.WriteString(c, "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{")
		case i >= idle:
			_, _ = io.WriteString(c, "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		default:
			_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
		}
	}
	h.quick(fmt.Sprintf("%d idle and %d slow connections", idle, slow), asks, func(n int) {
		// Who is slow goes on.
		_, _ = io.WriteString(held[idle+n%slow], "x")
	})
	// The log goes on, and takes its snapshots.
	h.muster("run", "--name", "after", "--", "true").says(0, "")
	if h.srv.ended() {
		t.Fatalf("the server ended:\n%s", h.log())
	}
}

// quick asks whether the server lives, so often and with something in between, tells how long that took, and fails the test if it
// had more memory than it may need by then.
func (h *host) quick(what string, asks int, between func(n int)) {
	h.t.Helper()
	address := must(locate.ReadServer(h.data))(h.t).Address
	var took []time.Duration
	for n := range asks {
		began := time.Now()
		if err := livez(address); err != nil {
			h.t.Fatalf("%s: ask %d: %v", what, n, err)
		}
		took = append(took, time.Since(began))
		between(n)
	}
	slices.Sort(took)
	now, most := memory(h.srv.cmd.Process.Pid)
	h.t.Logf("%s: /livez p50 %v, p99 %v; the server has %d MiB, at most %d MiB", what, took[len(took)/2], took[len(took)*99/100], now>>20, most>>20)
	if most > 300<<20 {
		h.t.Errorf("%s: the server had %d MiB", what, most>>20)
	}
}

// livez asks over a connection of its own, as a probe does.
func livez(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer func() { _ = a.Body.Close() }()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("/livez: %s", a.Status)
	}
	return nil
}
