package httpapi

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/musterhq/muster/api"
)

// listen serves TCP connections on the loopback that this test shares with its sandbox.
func listen(t *testing.T, serve func(c *net.TCPConn)) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serve(c.(*net.TCPConn))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().(*net.TCPAddr).Port
}

func TestPorts(t *testing.T) {
	in := newInside(t)
	port := listen(t, func(c *net.TCPConn) {
		// Everything is read to its end before a word is said: half-closes have to pass.
		b, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(bytes.ToUpper(b))
	})
	l := get[api.PortList](in.bench, in.path+"/ports")
	if !slices.ContainsFunc(l.Ports, func(p api.Port) bool {
		return p.Port == port && p.Reachable && slices.Contains(p.Addresses, "127.0.0.1")
	}) {
		t.Errorf("%d is not in %+v", port, l)
	}
	c, _, err := in.dial(t, "/ports/"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := bytes.Repeat([]byte("some bytes "), 500_000)
	go func() {
		for chunk := range slices.Chunk(sent, 100_000) {
			if err := c.Write(ctx, websocket.MessageBinary, chunk); err != nil {
				t.Error(err)
			}
		}
		if err := c.Write(ctx, websocket.MessageText, []byte(`{"type":"close-write"}`)); err != nil {
			t.Error(err)
		}
	}()
	var got bytes.Buffer
	for {
		kind, b, err := c.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageText {
			if string(b) != `{"type":"close-write"}` {
				t.Errorf("%s", b)
			}
			break
		}
		got.Write(b)
	}
	if !bytes.Equal(got.Bytes(), bytes.ToUpper(sent)) {
		t.Errorf("%d bytes of %d", got.Len(), len(sent))
	}
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Error(err)
	}
}

func TestPortRefused(t *testing.T) {
	in := newInside(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := ln.Addr().(*net.TCPAddr).Port
	_ = ln.Close()
	_, resp, err := in.dial(t, "/ports/"+strconv.Itoa(free))
	if err == nil || resp == nil || resp.StatusCode != http.StatusBadGateway {
		t.Fatalf("%v %v", resp, err)
	}
	b, _ := io.ReadAll(resp.Body)
	if !strings.Contains(string(b), api.CodeNoListener) || !strings.Contains(string(b), strconv.Itoa(free)) {
		t.Errorf("%s", b)
	}
	for _, bad := range []string{"0", "65536", "http"} {
		if _, resp, err := in.dial(t, "/ports/"+bad); err == nil || resp == nil || resp.StatusCode != 422 {
			t.Errorf("%s: %v %v", bad, resp, err)
		}
	}
}

// TestPortEnds: whoever ends first, in whatever way, leaves nothing behind.
func TestPortEnds(t *testing.T) {
	in := newInside(t)
	in.api.patience.Quiet, in.api.patience.Pong = 50*time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 10)
	waits := listen(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	dial := func(port int) *websocket.Conn {
		c, _, err := in.dial(t, "/ports/"+strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// The client vanishes; leaves politely; says what it must not.
	_ = dial(waits).CloseNow()
	<-ended
	_ = dial(waits).Close(websocket.StatusNormalClosure, "")
	<-ended
	for _, bad := range []string{`{"type":"hello"}`, `nonsense`} {
		c := dial(waits)
		if err := c.Write(ctx, websocket.MessageText, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusInternalError {
			t.Errorf("%s: %v", bad, err)
		}
		<-ended
	}
	// After its close-write, and while what is inside does not read.
	c := dial(waits)
	if err := c.Write(ctx, websocket.MessageText, []byte(`{"type":"close-write"}`)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	release := make(chan struct{})
	deaf := listen(t, func(*net.TCPConn) { <-release })
	c = dial(deaf)
	short, stop := context.WithTimeout(ctx, 500*time.Millisecond)
	for c.Write(short, websocket.MessageBinary, make([]byte, 1<<20)) == nil {
	}
	stop()
	in.eventually("the connection of a client that has left is closed", func() bool { return in.inits.open.Load() == 0 })
	close(release)

	// The server stops.
	c = dial(waits)
	in.stop()
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Error(err)
	}
	<-ended
}
