package poseidon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

// exposed claims a runner of an environment with one exposed port, over a real connection.
func (b *bench) exposed(port int) (path, address string) {
	b.Helper()
	spec := api.EnvironmentSpec{Name: "8", Template: api.Template{Image: "busybox", Network: "bridge", Ports: []int{port}, Resources: api.ResourcesSpec{CPU: 0.01, Memory: 1 << 20}}}
	if _, err := b.own.Submit.SetEnvironment(context.Background(), &api.EnvironmentSetting{Spec: spec}); err != nil {
		b.Fatal(err)
	}
	b.stock("8", 1)
	q, _ := http.NewRequest("POST", "http://"+b.host+"/api/v1/runners", strings.NewReader(`{"executionEnvironmentId": 8}`))
	q.Header.Set(tokenHeader, token)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		b.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = resp.Body.Close() }()
	var r runner
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || resp.StatusCode != 200 || len(r.MappedPorts) != 1 || r.MappedPorts[0].ExposedPort != port {
		b.Fatalf("%d %+v %v", resp.StatusCode, r, err)
	}
	return "runners/" + r.RunnerID, r.MappedPorts[0].HostAddress
}

func TestExposedPorts(t *testing.T) {
	b, _, _, _ := inRunner(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				all, _ := io.ReadAll(c) // to the end of what the client says
				_, _ = c.Write(append([]byte("heard "), all...))
				_ = c.Close()
			}()
		}
	}()
	defer func() { _ = l.Close() }()
	path, address := b.exposed(l.Addr().(*net.TCPAddr).Port)
	if host, _, _ := net.SplitHostPort(address); host != "127.0.0.1" {
		t.Errorf("opened on %s", address)
	}
	before := b.uses()
	large := bytes.Repeat([]byte("0123456789"), 100_000)
	for range 3 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = c.Write(large); _ = c.(*net.TCPConn).CloseWrite() }()
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "heard "+string(large) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		_ = c.Close()
	}
	if n := b.uses() - before; n != 3 {
		t.Errorf("%d uses were noted", n)
	}
	// With its runner it goes, and what is connected as well.
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	b.want(b.do("DELETE", path, ""), 204, "")
	b.eventually("the port is closed", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("what was connected still is: %v", err)
	}
}

// P9: a client that has closed its connection does not use the runner, whether or not the program inside closes the other side.
func TestHalfClosedConnectionIsNoUse(t *testing.T) {
	b, _, _, _ := inRunner(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept() // and never closes it
		if err == nil {
			accepted <- c
		}
	}()
	_, address := b.exposed(l.Addr().(*net.TCPAddr).Port)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	leaked := <-accepted
	defer func() { _ = leaked.Close() }()
	b.eventually("the connection is use", func() bool { return b.usedNow() == 1 })
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the connection is no use any more", func() bool { return b.usedNow() == 0 })
	// What the program says late still comes.
	if _, err := leaked.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "late" {
		t.Errorf("%q, %v", buf, err)
	}
}

// P9: connections that only the program inside holds are ended after some time, so that they do not use up all that a port may have.
func TestHalfClosedConnectionEnds(t *testing.T) {
	b, _, _, _ := inRunner(t)
	b.p.patience.halfClosed = 20 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept() // and never closes it
		if err == nil {
			accepted <- c
		}
	}()
	_, address := b.exposed(l.Addr().(*net.TCPAddr).Port)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
	_ = (<-accepted).Close()
}

func TestPortOnWhichNothingListens(t *testing.T) {
	b, _, _, _ := inRunner(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	_, address := b.exposed(l.Addr().(*net.TCPAddr).Port)
	c, err := net.Dial("tcp", address)
	if err != nil {
		return // it was refused before it was there
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d %v", n, err)
	}
}
