package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/net/nettest"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/testwait"
)

// The connection behaves as net.Conn promises, in both ways that there are.
func TestStreamIsANetConn(t *testing.T) {
	for _, forbid := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbid=%v", forbid), func(t *testing.T) {
			s, c := newServer(t, false)
			s.be(func(m *manner) { m.forbid = forbid })
			c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
			conn := dialTest(t, c)
			accepted := make(chan *net.UnixConn, 1)
			path := listenUnix(t, func(u *net.UnixConn) { accepted <- u })
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				ours, err := conn.DialUnix(t.Context(), path)
				if err != nil {
					return nil, nil, nil, err
				}
				theirs := <-accepted
				if forbid && conn.Forwarding() == ForwardingUnknown {
					t.Error("it is not known how sockets are reached")
				}
				return ours, theirs, func() { _ = ours.Close(); _ = theirs.Close() }, nil
			})
		})
	}
}

func TestHalfClose(t *testing.T) {
	for _, forbid := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbid=%v", forbid), func(t *testing.T) {
			s, c := newServer(t, false)
			s.be(func(m *manner) { m.forbid = forbid })
			c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
			conn := dialTest(t, c)
			// It answers only when all has come.
			path := listenUnix(t, func(u *net.UnixConn) {
				b, _ := io.ReadAll(u)
				_, _ = u.Write(bytes.ToUpper(b))
				_ = u.CloseWrite()
			})
			for range 3 {
				u, err := conn.DialUnix(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				text := strings.Repeat("some text. ", 50_000)
				if _, err := io.WriteString(u, text); err != nil {
					t.Fatal(err)
				}
				if err := u.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if _, err := u.Write([]byte("x")); err == nil {
					t.Error("written after CloseWrite")
				}
				b, err := io.ReadAll(u)
				if err != nil || string(b) != strings.ToUpper(text) {
					t.Errorf("%d bytes came back of %d: %v", len(b), len(text), err)
				}
				_ = u.Close()
			}
		})
	}
}

// A socket's other end that reads nothing keeps nobody: neither a write nor its Close.
func TestCloseUnblocksAWrite(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	accepted := make(chan *net.UnixConn, 2)
	path := listenUnix(t, func(u *net.UnixConn) { accepted <- u })
	u, err := conn.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	<-accepted
	began, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		close(began)
		_, err := u.Write(make([]byte, 16<<20))
		wrote <- err
	}()
	<-began
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	if err := <-wrote; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	// A deadline does it as well.
	if u, err = conn.DialUnix(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := u.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := u.Write(make([]byte, 16<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	// What was taken is delivered when there is room again, and then the next.
	if err := u.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	theirs := <-accepted
	read := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(theirs)
		read <- b
	}()
	if _, err := u.Write([]byte("the end")); err != nil {
		t.Error(err)
	}
	if err := u.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	if b := <-read; len(b) != n+len("the end") || !bytes.HasSuffix(b, []byte("the end")) {
		t.Errorf("%d bytes were read, %d taken", len(b), n)
	}
	_ = u.Close()
	if r, err := conn.Run(t.Context(), Command{Args: []string{"echo", "well"}}); err != nil || string(r.Stdout) != "well\n" {
		t.Errorf("the connection is not well: %q %v", r.Stdout, err)
	}
}

// A connection that is lost is not the end of what was sent.
func TestLostIsNotTheEnd(t *testing.T) {
	s, c := newServer(t, false)
	conn := dialTest(t, c)
	path := listenUnix(t, func(u *net.UnixConn) { _, _ = u.Write([]byte("part")) })
	u, err := conn.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	b := make([]byte, 4)
	if _, err := io.ReadFull(u, b); err != nil {
		t.Fatal(err)
	}
	s.cut()
	_, err = u.Read(b)
	if err == nil || errors.Is(err, io.EOF) && !strings.Contains(err.Error(), c.Address) {
		t.Errorf("a reader saw %v", err)
	}
	wantKind(t, err, muster.FaultUnavailable)
	wantKind(t, conn.Wait(), muster.FaultUnavailable)
}

func TestSocketsThatAreNotThere(t *testing.T) {
	for _, forbid := range []bool{false, true} {
		s, c := newServer(t, false)
		s.be(func(m *manner) { m.forbid = forbid })
		conn := dialTest(t, c)
		_, err := conn.DialUnix(t.Context(), "/nowhere/at/all")
		wantKind(t, err, muster.FaultUnavailable) // nobody knows why

		c.Program = "/nowhere/muster-node"
		conn = dialTest(t, c)
		_, err = conn.DialUnix(t.Context(), "/nowhere/at/all")
		wantKind(t, err, muster.FaultNotFound)
		if !strings.Contains(err.Error(), "/nowhere/muster-node") {
			t.Error(err)
		}

		c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
		conn = dialTest(t, c)
		_, err = conn.DialUnix(t.Context(), "/nowhere/at/all")
		wantKind(t, err, muster.FaultNotFound)
		if !strings.Contains(err.Error(), "no such file") {
			t.Error(err)
		}
		dead := deadSocket(t)
		_, err = conn.DialUnix(t.Context(), dead)
		wantKind(t, err, muster.FaultUnavailable)
		if !strings.Contains(err.Error(), "refused") {
			t.Error(err)
		}
		if conn.Forwarding() != ForwardingUnknown {
			t.Errorf("forwarding %s was learnt from sockets that are not there", conn.Forwarding())
		}
	}
}

// deadSocket is one that nobody listens on.
func deadSocket(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	path := dir + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Skip(err) // the path may be too long
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	return path
}

// How sockets are reached is found out once; a socket that was reached before is not looked for in two ways.
func TestForwardingIsLearnt(t *testing.T) {
	s, c := newServer(t, false)
	c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
	path := listenUnix(t, echo)
	ask := func(conn *Conn) {
		t.Helper()
		u, err := conn.DialUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = u.Close() }()
		if _, err := u.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(u, b); err != nil || string(b) != "hello" {
			t.Fatalf("%q %v", b, err)
		}
	}
	conn := dialTest(t, c)
	for range 3 {
		ask(conn)
	}
	if conn.Forwarding() != ForwardingAllowed || s.channels("session") != 0 {
		t.Errorf("%s with %d sessions", conn.Forwarding(), s.channels("session"))
	}
	s.be(func(m *manner) { m.forbid = true }) // as if nobody listened just now
	if _, err := conn.DialUnix(t.Context(), path); err == nil || s.channels("session") != 0 {
		t.Errorf("%v with %d sessions", err, s.channels("session"))
	}
	conn = dialTest(t, c)
	before := s.channels("direct-streamlocal@openssh.com")
	for range 3 {
		ask(conn)
	}
	if n := s.channels("direct-streamlocal@openssh.com") - before; conn.Forwarding() != ForwardingRefused || n != 2 {
		t.Errorf("%s after %d tries", conn.Forwarding(), n)
	}
}

// A login shell that prints something does not get into the stream; one that prints without end is told.
func TestNoiseBeforeTheGreeting(t *testing.T) {
	s, c := newServer(t, false)
	s.be(func(m *manner) { m.forbid = true })
	program := t.TempDir() + "/node"
	write := func(noise string) {
		script := "#!/bin/sh\n" + noise + "\nexec /proc/" + fmt.Sprint(os.Getpid()) + "/exe \"$@\"\n"
		if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.Program = program
	path := listenUnix(t, func(u *net.UnixConn) { _, _ = u.Write([]byte("first")); echo(u) })
	write("echo welcome; head -c 5000 /dev/zero; echo")
	conn := dialTest(t, c)
	u, err := conn.DialUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len("firstsecond"))
	if _, err := io.ReadFull(u, b); err != nil || string(b) != "firstsecond" {
		t.Errorf("%q %v", b, err)
	}
	_ = u.Close()
	write("yes")
	conn = dialTest(t, c)
	_, err = conn.DialUnix(t.Context(), path)
	wantKind(t, err, muster.FaultUnavailable)
	if !strings.Contains(err.Error(), "greeting") {
		t.Error(err)
	}
}

// As the node link uses it: HTTP over pooled channels, many at once, with bodies both ways.
func TestHTTP(t *testing.T) {
	for _, forbid := range []bool{false, true} {
		t.Run(fmt.Sprintf("forbid=%v", forbid), func(t *testing.T) {
			s, c := newServer(t, false)
			s.be(func(m *manner) { m.forbid = forbid })
			c.Program = "/proc/" + fmt.Sprint(os.Getpid()) + "/exe"
			conn := dialTest(t, c)
			path, stop := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body) // before the answer: HTTP/1 is not meant for both at once
				_, _ = w.Write(b)
			}))
			defer stop()
			tr := &http.Transport{MaxIdleConnsPerHost: 16, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return conn.DialUnix(ctx, path) }}
			defer tr.CloseIdleConnections()
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					for range 10 {
						body := bytes.Repeat([]byte{byte(i)}, random.IntN(300_000))
						resp, err := (&http.Client{Transport: tr}).Post("http://node/", "text/plain", bytes.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if err != nil || !bytes.Equal(got, body) {
							t.Errorf("%d bytes of %d: %v", len(got), len(body), err)
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// serveHTTP serves at a socket.
func serveHTTP(t testing.TB, h http.Handler) (path string, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	return dir + "/s", func() { _ = srv.Close(); serving.Wait(); _ = os.RemoveAll(dir) }
}

// Channels come and go without end.
func TestManyChannels(t *testing.T) {
	_, c := newServer(t, false)
	conn := dialTest(t, c)
	path := listenUnix(t, func(*net.UnixConn) {})
	for range 2 * maxLeft {
		u, err := conn.DialUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		_ = u.Close()
	}
	testwait.Until(t, "all to be gone", func() bool {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return conn.open == 0 && conn.left == 0
	})
}

// What a host never answers is counted, and at last the connection is ended: it must not use up our memory.
func TestChannelsNeverLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newServer(t, true)
		s.be(func(m *manner) { m.deaf = "open" })
		conn := dialTest(t, c)
		for i := 0; conn.Err() == nil; i++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := conn.DialUnix(ctx, "/s")
			cancel()
			wantKind(t, err, muster.FaultUnavailable)
			if i > maxLeft {
				t.Fatal("the connection is still there")
			}
			synctest.Wait()
		}
		if err := conn.Wait(); !strings.Contains(err.Error(), "let go") {
			t.Error(err)
		}
	})
}

// The peer is gone without a word.
func TestPeerVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newServer(t, true)
		s.be(func(m *manner) { m.command = func(ssh.Channel, string) int { return 0 } })
		var wire *memConn
		through := c.Through
		c.Through = func(ctx context.Context, a string) (net.Conn, error) {
			n, err := through(ctx, a)
			wire, _ = n.(*memConn)
			return n, err
		}
		conn := dialTest(t, c)
		time.Sleep(10 * defaultSilence) // idle, but alive
		if err := conn.Err(); err != nil {
			t.Fatal(err)
		}
		wire.vanish()
		began := time.Now()
		// All that goes on ends, whatever it is.
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				_, err := conn.Run(t.Context(), Command{Args: []string{"true"}})
				if err == nil {
					t.Error("a command ran")
				}
			})
		}
		wantKind(t, conn.Wait(), muster.FaultUnavailable)
		if took := time.Since(began); took > defaultSilence {
			t.Errorf("noticed after %s", took)
		}
		all.Wait()
	})
}

// A peer that always says something but never answers is as good as gone.
func TestPeerNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newServer(t, true)
		s.be(func(m *manner) { m.silent = true })
		conn := dialTest(t, c)
		go func() {
			for tick := time.NewTicker(time.Second); ; {
				s.mu.Lock()
				for _, sc := range s.conns {
					if sc != nil {
						go func() { _, _, _ = sc.SendRequest("hello", false, nil) }()
					}
				}
				s.mu.Unlock()
				select {
				case <-tick.C:
				case <-conn.Done():
					tick.Stop()
					return
				}
			}
		}()
		began := time.Now()
		err := conn.Wait()
		wantKind(t, err, muster.FaultUnavailable)
		if took := time.Since(began); took > 2*defaultSilence || !strings.Contains(err.Error(), "keep-alive") {
			t.Errorf("noticed after %s: %v", took, err)
		}
	})
}

func TestBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newServer(t, true)
		conn := dialTest(t, c)
		var all sync.WaitGroup
		var mu sync.Mutex
		found := map[*Conn]bool{}
		for range 5 {
			all.Go(func() {
				b, err := conn.Bulk(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				found[b] = true
			})
		}
		all.Wait()
		if len(found) != 1 || found[conn] || s.attempts() != 2 {
			t.Fatalf("%d second connections, %d logins", len(found), s.attempts())
		}
		for b := range found {
			_ = b.Wait() // nothing uses it
		}
		b, err := conn.Bulk(t.Context())
		if err != nil || found[b] {
			t.Fatal("no new one", err)
		}
		conn.Close()
		_ = b.Wait()
		if _, err := conn.Bulk(t.Context()); err == nil {
			t.Error("a second connection without a first")
		}
	})
}
