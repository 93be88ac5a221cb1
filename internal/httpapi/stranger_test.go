package httpapi

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/door"
)

// watched is a listener that notes the deadlines of its connections, as how long they left when they were set.
type watched struct {
	net.Listener

	mu          sync.Mutex
	read, write []time.Duration
}

func (l *watched) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return watchedConn{c, l}, nil
}

func (l *watched) note(list *[]time.Duration, at time.Time) {
	if !at.IsZero() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*list = append(*list, time.Until(at))
	}
}

// longest of those that were set.
func (l *watched) longest(list *[]time.Duration) (most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range *list {
		most = max(most, d)
	}
	return most
}

type watchedConn struct {
	net.Conn
	l *watched
}

func (c watchedConn) SetReadDeadline(at time.Time) error {
	c.l.note(&c.l.read, at)
	return c.Conn.SetReadDeadline(at)
}

func (c watchedConn) SetWriteDeadline(at time.Time) error {
	c.l.note(&c.l.write, at)
	return c.Conn.SetWriteDeadline(at)
}

// S-H8: a client without a token keeps a connection for a short while only, with a body that never ends or an answer that it never reads.
func TestRefusedRequestsEnd(t *testing.T) {
	b := newBench(t, 16)
	for _, path := range []string{"/v1/jobs", "/openapi.json"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := &watched{Listener: ln}
		srv := b.parts.Door.Server(b.stop)
		srv.ReadHeaderTimeout, srv.IdleTimeout = time.Second, time.Second // so that their deadlines are none of those looked for
		go func() { _ = srv.Serve(l) }()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		for what, left := range map[string]time.Duration{"the body is read": l.longest(&l.read), "the answer is written": l.longest(&l.write)} {
			if left <= time.Second || left > door.StrangerTimeout {
				t.Errorf("%s: %s for %s, want about %s", path, what, left, door.StrangerTimeout)
			}
		}
		_ = c.Close()
		_ = srv.Close()
	}
}
