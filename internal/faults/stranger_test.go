package faults

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/locate"
)

// sentence fails the test unless a server that cannot start says why in one
// sentence that has all of these texts.
func (h *host) sentence(texts ...string) {
	h.t.Helper()
	if err := os.Truncate(h.path("server.log"), 0); err != nil {
		h.t.Fatal(err)
	}
	p := h.launch()
	got := p.wait()
	text := h.log()
	h.t.Logf("exit code %d: %s", got, strings.TrimSpace(text))
	// 74 is for what the disk did, 1 for what is not right otherwise.
	if got != 1 && got != 74 || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "muster: ") ||
		slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(text, s) }) {
		h.t.Errorf("exit code %d; want one sentence with %q; got\n%s", got, texts, text)
	}
}

// stopped is a host with something in its data directory, whose server is not running.
func stopped(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.start()
	h.cli("run", "--name", "before", "--", "echo", "before").says(0)
	h.idle()
	if code := h.stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	return h
}

// fine fails the test unless the server starts and has what was there before.
func (h *host) fine() {
	h.t.Helper()
	h.start()
	logs := h.cli("job", "logs", "before")
	logs.says(0)
	if logs.stdout.String() != "before\n" {
		h.t.Errorf("%q", logs.stdout)
	}
	h.cli("run", "--", "true").says(0)
	h.idle()
	h.stop()
}

func TestGarbageInDataDirectory(t *testing.T) {
	t.Parallel()
	h := stopped(t)
	logDir := filepath.Join(h.data, "log")
	segments := func() []string { return must(filepath.Glob(filepath.Join(logDir, "log", "*.wal")))(t) }
	for _, c := range []struct {
		name  string
		path  string
		spoil func(b []byte) []byte // nil: the file is deleted
		says  []string
	}{
		{"a later format", filepath.Join(logDir, "format"), func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"format":1`), []byte(`"format":7`), 1)
		}, []string{"newer version", "format 7"}},
		{"a format that makes no sense", filepath.Join(logDir, "format"), func([]byte) []byte { return []byte("hello") }, []string{"damaged", `"format"`}},
		{"an empty format", filepath.Join(logDir, "format"), func([]byte) []byte { return nil }, []string{"damaged", `"format"`}},
		{"no format", filepath.Join(logDir, "format"), nil, []string{"damaged", `no "format"`}},
		{"a segment without its head", segments()[0], func(b []byte) []byte { clear(b[:64]); return b }, []string{"damaged"}},
		{"bytes in the middle of a segment", segments()[0], func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[200:], 0x1234567890abcdef)
			return b
		}, []string{"damaged", filepath.Base(segments()[0])}},
		{"a segment cut off in the middle of what was confirmed", segments()[0], func(b []byte) []byte { return b[:len(bytes.TrimRight(b, "\x00"))/2] }, []string{"damaged"}},
		{"an empty segment", segments()[0], func(b []byte) []byte { return nil }, []string{"damaged", "log is empty and was not before"}},
		{"no segment", segments()[0], nil, []string{"damaged", "log is empty and was not before"}},
		{"no meta database", filepath.Join(logDir, "log", "wal-meta.db"), nil, []string{"damaged"}},
		{"a meta database of something else", filepath.Join(logDir, "log", "wal-meta.db"), func(b []byte) []byte { return []byte(strings.Repeat("no database ", 4000)) }, []string{"wal-meta.db"}},
		{"a token that others can read", filepath.Join(h.data, "token"), func(b []byte) []byte { return b }, []string{filepath.Join(h.data, "token"), "can be read by others", "chmod 600"}},
		{"a token that is none", filepath.Join(h.data, "token"), func([]byte) []byte { return []byte("secret\n") }, []string{filepath.Join(h.data, "token"), "holds no token"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := must(os.ReadFile(c.path))(t)
			defer func() {
				h.t = t
				_ = os.Remove(c.path)
				if err := os.WriteFile(c.path, whole, 0o600); err != nil {
					t.Fatal(err)
				}
			}()
			before := h.t
			h.t = t
			defer func() { h.t = before }()
			if c.spoil == nil {
				if err := os.Remove(c.path); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(c.path, c.spoil(slices.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(c.name, "others can read") {
				if err := os.Chmod(c.path, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			h.sentence(append(c.says, h.data)...)
			if c.spoil == nil && !strings.HasSuffix(c.path, ".wal") {
				return
			}
			// Refusing has repaired or changed nothing: the operator decides. (But for the length of what is empty.)
			if b, err := os.ReadFile(c.path); c.spoil != nil && (err != nil || !bytes.Equal(bytes.TrimRight(b, "\x00"), bytes.TrimRight(c.spoil(slices.Clone(whole)), "\x00"))) {
				t.Errorf("%s was changed: %v", c.path, err)
			}
		})
	}
	h.t = t
	h.fine()
}

func TestWrongSurroundings(t *testing.T) {
	t.Parallel()
	h := stopped(t)
	t.Run("the port is taken", func(t *testing.T) {
		ln := must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer func() { _ = ln.Close() }()
		config := h.config
		h.config.Listen = ln.Addr().String()
		defer func() { h.config = config }()
		h.sentence(h.config.Listen, "address already in use", "--listen")
	})
	t.Run("the data directory is a file", func(t *testing.T) {
		config := h.config
		h.config.DataDir = h.configFile()
		defer func() { h.config = config }()
		h.sentence(h.configFile(), "not a directory")
	})
	t.Run("the data directory is below nothing that can be made", func(t *testing.T) {
		config := h.config
		h.config.DataDir = "/proc/muster"
		defer func() { h.config = config }()
		h.sentence("/proc/muster")
	})
	t.Run("an instance directory that is garbage", func(t *testing.T) {
		// It might be a machine that costs money: it is told of, and left.
		dir := filepath.Join(h.instances(), "i-0123456789ab")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "instance.json"), "{torn")
		h.start()
		h.cli("run", "--", "true").says(0)
		h.eventually("the server tells of it", func() bool { return h.logged("i-0123456789ab") })
		h.stop()
		if n := strings.Count(h.log(), "i-0123456789ab"); n > 20 {
			t.Errorf("it is told %d times", n)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("what is beside is left alone", func(t *testing.T) {
		h.write("d/NOTES", "mine")
		h.fine()
		if h.file("d/NOTES") != "mine" {
			t.Error("it was changed")
		}
	})
}

// A directory that its user may not write is refused in words that name it.
func TestDataDirectoryWithoutPermission(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := os.Mkdir(h.data, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		// Root may everything: it is another user who tries.
		if err := os.Chmod(h.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		h.write("muster.json", "{}")
		p := newProgram(t, "dev", "--data-dir", h.data, "--listen", "127.0.0.1:0", "--node-binary", h.node)
		p.cmd.Env = h.env()
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := p.cmd.Start(); err != nil {
			t.Skipf("another user cannot run the program here: %v", err)
		}
		go func() { _ = p.cmd.Wait(); close(p.done) }()
		p.says(1, h.data, "permission denied")
		t.Logf("%s", strings.TrimSpace(p.stderr.String()))
		return
	}
	h.sentence(h.data, "permission denied")
	_ = os.Chmod(h.data, 0o700)
}

// Whatever is sent to the port is answered with a 4xx or not at all, and the server goes on.
func TestGarbageToThePort(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	address := must(locate.ReadServer(h.data))(t).Address
	token := must(locate.ReadToken(h.data))(t)
	dice := chance(t)
	auth := "Host: " + address + "\r\nAuthorization: Bearer " + token.Reveal() + "\r\n"
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(dice.Uint32())
	}
	job := "POST /v1/jobs HTTP/1.1\r\n" + auth + "Content-Type: application/json\r\n"
	for name, request := range map[string]string{
		"noise":                  string(noise),
		"nothing":                "",
		"another protocol":       "SSH-2.0-OpenSSH_9.9\r\n",
		"TLS":                    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x42", 500),
		"a line without end":     strings.Repeat("A", 1<<20),
		"headers without end":    "GET /v1/jobs HTTP/1.1\r\n" + strings.Repeat("X-Y: z\r\n", 50_000),
		"a foreign host":         "GET /v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"no token":               "GET /v1/jobs HTTP/1.1\r\nHost: " + address + "\r\n\r\n",
		"a wrong token":          "GET /v1/jobs HTTP/1.1\r\nHost: " + address + "\r\nAuthorization: Bearer " + strings.Repeat("0", 64) + "\r\n\r\n",
		"a body that breaks off": job + "Content-Length: 1000\r\n\r\n{\"spec\"",
		"a body that is too big": job + "Content-Length: 99999999999\r\n\r\n{",
		"a negative length":      job + "Content-Length: -1\r\n\r\n{}",
		"two lengths":            job + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
		"deep JSON":              job + "Connection: close\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("[", 200_000),
		"JSON that is none":      job + "Connection: close\r\nContent-Length: 5\r\n\r\nhello",
		"a path that leads out":  "GET /v1/jobs/default/..%2f..%2f..%2fetc%2fpasswd HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n",
		"a path with a zero":     "GET /v1/jobs/default/a%00b HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n",
		"an upload of nothing":   "PUT /v1/uploads/sha256:zz HTTP/1.1\r\n" + auth + "Connection: close\r\nContent-Length: 3\r\n\r\nabc",
		"a wrong digest":         "PUT /v1/uploads/sha256:" + strings.Repeat("0", 64) + " HTTP/1.1\r\n" + auth + "Connection: close\r\nContent-Length: 3\r\n\r\nabc",
		"a bad chunk":            job + "Transfer-Encoding: chunked\r\n\r\nZZZZ\r\n{}",
		"a WebSocket":            "GET /v1/events HTTP/1.1\r\nHost: " + address + "\r\nOrigin: http://evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"an unknown method":      "BREW /v1/jobs HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n",
		"an offset of nonsense":  "GET /v1/allocations/x-0-1/output/stdout?offset=-5 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n",
		"an event of nowhere":    "GET /v1/events?after=9999999999999999999999 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn := must(net.DialTimeout("tcp", address, 10*time.Second))(t)
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			go func() {
				_, _ = io.WriteString(conn, request)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return // hung up on: that is an answer to no request
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode < 400 || resp.StatusCode > 499 {
				t.Errorf("answered with %s: %s", resp.Status, tail(string(body), 5))
			}
			if strings.Contains(string(body), token.Reveal()) {
				t.Error("the answer has the token in it")
			}
		})
	}
	if h.srv.ended() {
		t.Fatal("the server has ended")
	}
	if h.logged(token.Reveal()) {
		t.Error("the log has the token in it")
	}
	h.cli("run", "--", "true").says(0)
	h.idle()
	h.quiet()
}

// Clients that open connections and say nothing, or read nothing, do not keep others from being served.
func TestSilentClients(t *testing.T) {
	// Alone: it measures what the program takes, and not what others leave it.
	h := newHost(t)
	h.start()
	address := must(locate.ReadServer(h.data))(t).Address
	token := must(locate.ReadToken(h.data))(t)
	h.cli("run", "--name", "flood", "--", "sh", "-c", floodScript(20*mib)).says(0)
	al := h.allocs("flood")[0]
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range 300 {
		c := must(net.DialTimeout("tcp", address, 10*time.Second))(t)
		conns = append(conns, c)
		auth := fmt.Sprintf(" HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", address, token.Reveal())
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, "GET /v1/jobs HTTP/1.1\r\nHost:")
		case 1:
			_, _ = io.WriteString(c, "GET /v1/events?after=oldest"+auth)
		case 2:
			_, _ = io.WriteString(c, "GET /v1/allocations/"+al.ID+"/output/stdout?follow=true"+auth)
		}
	}
	began := time.Now()
	h.cli("run", "--", "echo", "hello").says(0)
	t.Logf("a command beside 300 silent clients: %s", time.Since(began).Round(time.Millisecond))
	_, most := memory(h.srv.pid())
	t.Logf("at most in memory: %s", muster.Bytes(most))
	if most > serverMemory {
		t.Errorf("at most in memory: %s", muster.Bytes(most))
	}
	began = time.Now()
	if code := h.stop(); code != 0 || time.Since(began) > 10*time.Second {
		t.Errorf("stopping beside them: exit code %d after %s", code, time.Since(began))
	}
}

// An idle server and an idle node cost next to nothing.
func TestIdleCost(t *testing.T) {
	// Alone: it measures what the program takes, and not what others leave it.
	wait := 10 * time.Second
	if soak {
		wait = time.Minute
	}
	h := newHost(t, func(c *api.ServerConfig) { c.Pools[0].Min, c.Pools[0].IdleTimeout = 1, api.Duration(time.Hour) })
	h.start()
	h.cli("run", "--", "true").says(0)
	agent := h.theAgent(h.theInstance())
	pause(2 * time.Second) // what has just ended is cleaned away
	server0, agent0 := cpu(t, h.srv.pid()), cpu(t, agent.Pid)
	pause(wait)
	server, node := cpu(t, h.srv.pid())-server0, cpu(t, agent.Pid)-agent0
	rss, _ := memory(h.srv.pid())
	nodeRSS, _ := memory(agent.Pid)
	t.Logf("idle for %s: server %s of processor time and %s in memory, agent %s and %s", wait, server, muster.Bytes(rss), node, muster.Bytes(nodeRSS))
	if server > wait/50 || node > wait/50 {
		t.Errorf("an idle server took %s and an idle agent %s of %s", server, node, wait)
	}
	h.quiet()
}
