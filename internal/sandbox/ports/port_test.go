package ports

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// portInside is a sandbox that serves operations on ports, and nothing else of one.
type portInside struct{ t testing.TB }

// dial is a connection whose one operation is served.
func (i portInside) dial() *os.File {
	i.t.Helper()
	client, server := sandboxtest.Pair(i.t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer func() { _ = server.Close() }()
		kind, fields, err := initwire.ReadFrame(server, initwire.MaxFrame)
		if err == nil {
			Serve(operation.New(sandboxtest.Endpoint(i.t, server), nil), nil, kind, fields)
		}
	}()
	i.t.Cleanup(func() {
		_ = client.Close()
		<-served
	})
	return client
}

func TestConnect(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		t.Run(address, func(t *testing.T) {
			i := portInside{t}
			network := "tcp4"
			if strings.Contains(address, "::") {
				network = "tcp6"
			}
			l, port := sandboxtest.ListenOn(t, network, address)
			const size = 20 << 20
			heard := make(chan error, 1)
			go func() {
				// It answers only once the client has said all: by a half-close.
				heard <- func() error {
					c, err := l.Accept()
					if err != nil {
						return err
					}
					defer func() { _ = c.Close() }()
					b, err := io.ReadAll(c)
					if err != nil || !bytes.Equal(b, sandboxtest.Written(1, size)) {
						return errors.Join(err, errors.New("heard "+strconv.Itoa(len(b))+" bytes"))
					}
					_, err = c.Write(sandboxtest.Written(2, size))
					return err
				}()
			}()
			conn := i.dial()
			if err := initwire.ConnectPort(context.Background(), conn, port); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(sandboxtest.Written(1, size)); err != nil {
				t.Fatal(err)
			}
			shut(sandboxtest.Endpoint(t, conn), syscall.SHUT_WR)
			b, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(b, sandboxtest.Written(2, size)) {
				t.Errorf("answer of %d bytes, %v", len(b), err)
			}
			if err := <-heard; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConnectServerFirst: the other half-close, and bytes that come with the request.
func TestConnectServerFirst(t *testing.T) {
	l, port := sandboxtest.ListenOn(t, "tcp4", "127.0.0.1:0")
	heard := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			heard <- err.Error()
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "bye")
		_ = c.(*net.TCPConn).CloseWrite()
		b, err := io.ReadAll(c)
		heard <- string(b) + ", " + strconv.FormatBool(err == nil)
	}()
	client, server := sandboxtest.Pair(t)
	defer func() { _ = client.Close() }()
	go func() {
		defer func() { _ = server.Close() }()
		Serve(operation.New(sandboxtest.Endpoint(t, server), []byte("early ")), nil, initwire.KindConnect, initwire.NumberFields(int64(port)))
	}()
	if kind, _, err := initwire.ReadFrame(client, initwire.MaxFrame); err != nil || kind != initwire.KindConnected {
		t.Fatal(kind, err)
	}
	if b, err := io.ReadAll(client); err != nil || string(b) != "bye" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := io.WriteString(client, "late"); err != nil {
		t.Error(err)
	}
	shut(sandboxtest.Endpoint(t, client), syscall.SHUT_WR)
	if got := <-heard; got != "early late, true" {
		t.Errorf("heard %q", got)
	}
}

// TestConnectionBreaks: when one side goes away, the other is not left waiting.
func TestConnectionBreaks(t *testing.T) {
	i := portInside{t}
	l, port := sandboxtest.ListenOn(t, "tcp4", "127.0.0.1:0")
	for _, who := range []string{"client", "program"} {
		conn := i.dial()
		if err := initwire.ConnectPort(context.Background(), conn, port); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if who == "client" {
			_ = conn.Close()
			if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
				t.Errorf("the program reads %q, %v", b, err)
			}
			// It may go on talking for a moment, but not for ever.
			testwait.Within(t, sandboxtest.Patience, "writing to nobody ends", func() bool {
				_, err := c.Write(make([]byte, 1<<16))
				return err != nil
			})
		} else {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			if b, _ := io.ReadAll(conn); len(b) > 0 {
				t.Errorf("the client reads %q", b)
			}
			testwait.Within(t, sandboxtest.Patience, "writing to nobody ends", func() bool {
				_, err := conn.Write(make([]byte, 1<<16))
				return err != nil
			})
		}
		_ = c.Close()
	}
}

func TestConnectRefused(t *testing.T) {
	i := portInside{t}
	l, port := sandboxtest.ListenOn(t, "tcp4", "127.0.0.1:0")
	_ = l.Close()
	for port, says := range map[int]string{port: "nothing listens", 0: "ports are 1 to 65535", 65536: "ports are", -1: "ports are"} {
		err := initwire.ConnectPort(context.Background(), i.dial(), port)
		if !errors.Is(err, initwire.ErrRefused) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), strconv.Itoa(port)) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

func TestPorts(t *testing.T) {
	i := portInside{t}
	_, one := sandboxtest.ListenOn(t, "tcp4", "127.0.0.1:0")
	_, two := sandboxtest.ListenOn(t, "tcp4", "127.0.0.2:0")
	_, all := sandboxtest.ListenOn(t, "tcp4", "0.0.0.0:0")
	list, err := initwire.ListPorts(context.Background(), i.dial())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		port      int
		ip        net.IP
		reachable bool
	}{{one, net.IPv4(127, 0, 0, 1), true}, {two, net.IPv4(127, 0, 0, 2), false}, {all, net.IPv4zero, true}} {
		if !slices.ContainsFunc(list, func(l initwire.Listening) bool {
			return l.Port == want.port && want.ip.Equal(l.IP) && l.UID == os.Getuid() && l.Reachable() == want.reachable
		}) {
			t.Errorf("%+v is not in %v", want, list)
		}
	}
	_, six := sandboxtest.ListenOn(t, "tcp6", "[::1]:0")
	if list, err = initwire.ListPorts(context.Background(), i.dial()); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(l initwire.Listening) bool { return l.Port == six && net.IPv6loopback.Equal(l.IP) && l.Reachable() }) {
		t.Errorf("[::1]:%d is not listed", six)
	}
}

func FuzzParseListening(f *testing.F) {
	f.Add("   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0")
	f.Add("   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2")
	f.Fuzz(func(t *testing.T, line string) {
		l, ok := parseListening(line)
		if ok && (l.Port < 1 || l.Port > 65535 || len(l.IP) != 4 && len(l.IP) != 16) {
			t.Errorf("%+v", l)
		}
		n := 0
		if err := eachLine(strings.NewReader(line), func(string) bool { n++; return true }); err != nil || n != strings.Count(line, "\n") {
			t.Errorf("%d lines, %v", n, err)
		}
	})
}

func BenchmarkPort(b *testing.B) {
	const size = 64 << 20
	i := portInside{b}
	l, port := sandboxtest.ListenOn(b, "tcp4", "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	chunk := make([]byte, 64<<10)
	b.SetBytes(size)
	for b.Loop() {
		conn := i.dial()
		if err := initwire.ConnectPort(context.Background(), conn, port); err != nil {
			b.Fatal(err)
		}
		for range size / len(chunk) {
			if _, err := conn.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
		shut(sandboxtest.Endpoint(b, conn), syscall.SHUT_WR)
		if _, err := io.ReadAll(conn); err != nil {
			b.Fatal(err)
		}
		_ = conn.Close()
	}
}
