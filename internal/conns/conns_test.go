package conns

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// served is a server behind a bounded listener: /stay is admitted and stays until the test ends, all else is for everybody.
func served(t *testing.T, total int) (l *Listener, staying chan struct{}) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = New(inner, Config{Total: total})
	staying = make(chan struct{}, total)
	release := make(chan struct{})
	srv := &http.Server{ConnContext: Context, ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stay" {
			defer Serving(r.Context())()
			staying <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "hello")
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { close(release); _ = srv.Close() })
	return l, staying
}

func dial(t *testing.T, l *Listener, say string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, say); err != nil {
		t.Fatal(err)
	}
	return c
}

func answers(t *testing.T, l *Listener) error {
	t.Helper()
	c := dial(t, l, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "HTTP/1.1 200 OK\r\n" {
		err = fmt.Errorf("answer %q", line)
	}
	return err
}

// S-H8: whoever holds many connections, idle or with requests that never end, keeps nobody out and takes no more than the bound.
func TestConnectionsThatServeNobodyMakeRoom(t *testing.T) {
	l, _ := served(t, minimum)
	for i := range 10 * minimum {
		say := ""
		switch i % 3 {
		case 1:
			say = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
		case 2:
			say = "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "
		}
		dial(t, l, say)
	}
	for range 5 {
		if err := answers(t, l); err != nil {
			t.Fatal(err)
		}
	}
	if l.Open() > minimum || l.Closed() == 0 {
		t.Errorf("%d open, %d closed", l.Open(), l.Closed())
	}
}

// A connection that serves an admitted request is never closed for another one.
func TestConnectionsThatServeStay(t *testing.T) {
	l, staying := served(t, minimum)
	for range minimum {
		dial(t, l, "GET /stay HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	for range minimum {
		<-staying
	}
	if err := answers(t, l); err == nil {
		t.Error("there is room for one more than the bound")
	}
	if l.Refused() == 0 || l.Closed() != 0 || l.Open() != minimum {
		t.Errorf("%d refused, %d closed, %d open", l.Refused(), l.Closed(), l.Open())
	}
}

// One address takes its own connections' room only.
func TestConnectionsOfOneAddress(t *testing.T) {
	l := &Listener{total: 100, perAddress: 3, addresses: map[netip.Addr]int{}}
	conn := func(address string) *Conn { return &Conn{l: l, address: netip.MustParseAddr(address)} }
	other := conn("192.0.2.2")
	l.add(other)
	first := conn("192.0.2.1")
	l.add(first)
	for range 2 {
		l.add(conn("192.0.2.1"))
	}
	if old, ok := l.add(conn("192.0.2.1")); old != first || !ok {
		t.Errorf("%v made room, %v", old, ok)
	}
	for c := l.first; c != nil; c = c.next {
		c.serving.Store(1)
	}
	if old, ok := l.add(conn("192.0.2.1")); old != nil || ok {
		t.Errorf("%v made room for a fourth, %v", old, ok)
	}
	for range 10 {
		if old, ok := l.add(conn("127.0.0.1")); old != nil || !ok {
			t.Errorf("%v made room for one of loopback, %v", old, ok)
		}
	}
	l.mu.Lock()
	for c := l.first; c != nil; c = l.first {
		l.removeLocked(c)
	}
	l.mu.Unlock()
	if l.Open() != 0 || len(l.addresses) != 0 {
		t.Errorf("%d open, %v", l.Open(), l.addresses)
	}
}
