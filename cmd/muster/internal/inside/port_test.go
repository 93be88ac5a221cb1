package inside

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

// echo listens, and gives each connection back what it sent, in capitals, once it has sent all.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				b, _ := io.ReadAll(c)
				_, _ = io.WriteString(c, strings.ToUpper(string(b)))
			}()
		}
	}()
	return l.Addr().String()
}

func TestPort(t *testing.T) {
	s := withJob(t, 1)
	s.Inside.Ports[8000] = echo(t)
	p := s.Begin(nil, "port", "web", "0:8000", "0:9")
	clitest.Until(t, "web:9", p.Out.String)
	m := regexp.MustCompile(`^(127\.0\.0\.1:\d+) -> web:8000\n(127\.0\.0\.1:\d+) -> web:9\n$`).FindStringSubmatch(p.Out.String())
	if m == nil {
		t.Fatal(p.Out.String())
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			c, err := net.Dial("tcp", m[1])
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			want := strings.Repeat(fmt.Sprintf("hello %d ", i), 20_000)
			go func() {
				_, _ = io.WriteString(c, want)
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || string(got) != strings.ToUpper(want) {
				t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
			}
		})
	}
	wg.Wait()
	// Where nothing listens, connections are refused and it is told once.
	for range 3 {
		c, err := net.Dial("tcp", m[2])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Error("it was closed as if something had answered")
		}
		_ = c.Close()
	}
	p.Signals <- syscall.SIGINT
	if code := p.End(t); code != 130 {
		t.Error(code)
	}
	if want := "muster: nothing listens on port 9 in web yet\nmuster: port 9: nothing listens on port 9\n"; p.Errs.String() != want {
		t.Errorf("%q", p.Errs.String())
	}
	if _, err := net.Dial("tcp", m[1]); err == nil {
		t.Error("it still listens")
	}
}

func TestPortEndsWithTheAllocation(t *testing.T) {
	s := withJob(t, 1)
	s.Inside.Ports[8000] = echo(t)
	p := s.Begin(nil, "port", "web", "0:8000")
	clitest.Until(t, "web:8000\n", p.Out.String)
	s.End(0, 1, 0)
	here, _, _ := strings.Cut(p.Out.String(), " ")
	if c, err := net.Dial("tcp", here); err == nil {
		_, _ = io.ReadAll(c)
		_ = c.Close()
	}
	if code := p.End(t); code != 1 || !strings.HasPrefix(p.Errs.String(), "muster: web (allocation u-0-1) has ended ") {
		t.Errorf("code %d, %q", code, p.Errs.String())
	}
}

func TestPortMistakes(t *testing.T) {
	s := withJob(t, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, taken, _ := net.SplitHostPort(l.Addr().String())
	for args, want := range map[string]string{
		"port web http":               `"http" is no port`,
		"port web 0":                  `"0" is no port`,
		"port web x:80":               `"x" is no port here`,
		"port web 0.0.0.0:80:80":      "another address than loopback with --address",
		"port --address all web 80":   "it is an IP address of this host",
		"port web " + taken + ":8000": "port " + taken + " is in use here; take another one, as ",
	} {
		if r := s.Muster(nil, strings.Fields(args)...); r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, %q", args, r.Code, r.Stderr)
		}
	}
	s.Muster(nil, "port", "web").Check(t, 0, "", "muster: nothing listens on a TCP port in web .*\n")
	s.Inside.Ports[8000] = l.Addr().String()
	s.Muster(nil, "port", "web").Check(t, 0, "PORT  ADDRESSES  REACHABLE\n8000  127.0.0.1  yes\n", "")
}

func TestTop(t *testing.T) {
	s := withJob(t, 2)
	s.Inside.Stats["u-0-1"] = api.AllocStats{CPU: 0.5, Memory: 10 << 20, MemoryMax: 40 << 20, Pids: 3, Disk: 1 << 30}
	s.Inside.Stats["u-1-1"] = api.AllocStats{CPU: 1, CPUMax: 2, Memory: 1 << 20, MemoryMax: 40 << 20}
	r := s.Muster(nil, "top", "--every", "10ms")
	ran := regexp.MustCompile(` +(<1s|[0-9]+s)\n`)
	want := `MEMBER  NODE  CPU    CORES        MEMORY / LIMIT  MEM  PIDS  DISK  RAN
web/0   n1    50.0%  0.5          10MiB / 40MiB   25%  3     1GiB
web/1   n1    50.0%  1 (at most 2)  1MiB / 40MiB    2%   -     -
`
	if got := ran.ReplaceAllString(r.Stdout, "\n"); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") || r.Code != 0 {
		t.Errorf("%d %q\n%s", r.Code, r.Stderr, got)
	}
	if r := s.Muster(nil, "top", "--every", "10ms", "web/1", "--json"); !strings.Contains(r.Stdout, `"cpu_percent": 50`) || strings.Contains(r.Stdout, "u-0-1") {
		t.Error(r)
	}
	s.Do(func() { s.Allocs[1].Job = "env:python" }) // a runner is named as other commands take it
	if r := s.Muster(nil, "top", "--every", "10ms"); !regexp.MustCompile(`(?m)^u-1-1 \(python\) +n1 `).MatchString(r.Stdout) || !regexp.MustCompile(`(?m)^web/0 +n1 `).MatchString(r.Stdout) {
		t.Error(r)
	}
	s.Do(func() { s.Allocs[1].Job = "web" })
	s.Muster(nil, "top", "nope").Check(t, 1, "", "muster: there is no allocation or job nope; .*\n")
	s.End(0, 1, 0)
	s.End(1, 1, 0)
	s.Muster(nil, "top").Check(t, 0, "", "muster: no allocation runs\n")
}

// On a terminal it is drawn until Ctrl-C, on a screen of its own.
func TestTopLive(t *testing.T) {
	s := withJob(t, 1)
	s.Inside.Stats["u-0-1"] = api.AllocStats{CPU: 0.5, Memory: 10 << 20, MemoryMax: 40 << 20}
	t.Setenv("TERM", "xterm")
	c := s.Console(t, "top", "--every", "10ms")
	clitest.Until(t, "50.0%", c.Seen.String)
	c.Signals <- syscall.SIGINT
	if code := c.End(t); code != 130 {
		t.Error(code)
	}
	clitest.Until(t, "\x1b[?1049l", c.Seen.String)
}
