package remote

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
)

// serveMany is a server in a process of its own, so that only our side is measured. It prints its address
// and the key to log in with, and ends with its input.
func serveMany() {
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	hostKey, err := ParseKey(muster.NewSecret(os.Getenv(asServer)), muster.Secret{})
	die(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	die(err)
	s := &sshServer{manner: manner{hostKeys: []ssh.Signer{hostKey}, user: hostKey.PublicKey()}, conns: map[net.Conn]*ssh.ServerConn{}}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := l.Accept()
		die(err)
		s.start(conn)
	}
}

// BenchmarkLinks says what a link costs that is idle and has one stream open: a pool, one connection, one HTTP
// answer that does not end. MUSTER_LINKS=5000 for the number of the design.
func BenchmarkLinks(b *testing.B) {
	many := 300
	if n, err := strconv.Atoi(os.Getenv("MUSTER_LINKS")); err == nil {
		many = n
	}
	private, _, err := NewKey("")
	if err != nil {
		b.Fatal(err)
	}
	key, err := ParseKey(private, muster.Secret{})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asServer+"="+private.Reveal())
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	// The socket's server is here: what it costs is subtracted by measuring it first.
	path, stop := serveHTTP(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer stop()
	for b.Loop() {
		measureLinks(b, many, path, Config{
			Address: strings.TrimSpace(address), Signers: []Signer{key}, HostKeys: []HostKey{key.PublicKey()}, Logger: slog.New(slog.DiscardHandler),
		})
	}
}

type cost struct {
	memory     uint64
	goroutines int
}

func costs() cost {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return cost{m.HeapInuse + m.StackInuse, runtime.NumGoroutine()}
}

// settled waits until what was closed is gone: it would be taken off what comes next.
func settled(b *testing.B, goroutines int) {
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines+8; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("%d goroutines are left of %d", runtime.NumGoroutine(), goroutines)
		}
	}
	debug.FreeOSMemory()
}

// measureLinks opens the same streams twice: straight at the socket, which costs the server of the socket and HTTP's client, and through SSH.
func measureLinks(b *testing.B, many int, path string, c Config) {
	open := func(dial func(ctx context.Context, name string) (net.Conn, error)) (cost, func()) {
		before := costs()
		var closers []func()
		var mu sync.Mutex
		var all sync.WaitGroup
		limit := make(chan struct{}, 32)
		for i := range many {
			all.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, strconv.Itoa(i)) }}
				resp, err := (&http.Client{Transport: tr}).Get("http://node/")
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(resp.Body, make([]byte, 6)); err != nil {
					b.Error(err)
				}
				mu.Lock()
				closers = append(closers, func() { _ = resp.Body.Close(); tr.CloseIdleConnections() })
				mu.Unlock()
			})
		}
		all.Wait()
		after := costs()
		return cost{after.memory - before.memory, after.goroutines - before.goroutines}, func() {
			for _, c := range closers {
				c()
			}
		}
	}
	base := runtime.NumGoroutine()
	straight, done := open(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	done()
	settled(b, base)

	p, err := NewPool(PoolConfig{Logger: c.Logger})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	began := time.Now()
	through, done := open(func(ctx context.Context, name string) (net.Conn, error) {
		if err := p.Set(name, c); err != nil {
			return nil, err
		}
		conn, err := p.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		return conn.DialUnix(ctx, path)
	})
	took := time.Since(began)
	done()
	cancel()
	running.Wait()
	// Of the straight one, half the memory or so is the socket's server: the rest belongs to a link as well.
	b.ReportMetric(float64(through.memory)/float64(many), "B/link+server")
	b.ReportMetric(float64(straight.memory)/float64(many), "B/server+http")
	b.ReportMetric((float64(through.memory)-float64(straight.memory))/float64(many), "B/ssh")
	b.ReportMetric(float64(through.goroutines-straight.goroutines)/float64(many), "goroutines/ssh")
	b.ReportMetric(float64(many)/took.Seconds(), "links/s")
}

// BenchmarkRequests: small requests one after the other, straight and through SSH, by a real sshd.
func BenchmarkRequests(b *testing.B) {
	c := sshd(b)
	conn := dialTest(b, c)
	path, stop := serveHTTP(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") }))
	defer stop()
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"straight": func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) },
		"ssh":      func(ctx context.Context) (net.Conn, error) { return conn.DialUnix(ctx, path) },
	} {
		b.Run(name, func(b *testing.B) {
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
			defer tr.CloseIdleConnections()
			var times []time.Duration
			for b.Loop() {
				began := time.Now()
				resp, err := (&http.Client{Transport: tr}).Get("http://node/")
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-p50")
		})
	}
}

// BenchmarkBulk: down a socket, by a real sshd.
func BenchmarkBulk(b *testing.B) {
	c := sshd(b)
	conn := dialTest(b, c)
	part := make([]byte, 1<<20)
	path := listenUnix(b, func(u *net.UnixConn) {
		for b := make([]byte, 1<<20); ; {
			if _, err := u.Write(b); err != nil {
				return
			}
		}
	})
	ways := map[string]func() (io.ReadCloser, error){
		"stream": func() (io.ReadCloser, error) { return conn.DialUnix(b.Context(), path) },
		// What the library does by itself, without deadlines.
		"bare": func() (io.ReadCloser, error) {
			ch, reqs, err := conn.ssh.OpenChannel("direct-streamlocal@openssh.com", ssh.Marshal(&struct {
				Path, Reserved string
				Reserved2      uint32
			}{Path: path}))
			if err == nil {
				go ssh.DiscardRequests(reqs)
			}
			return ch, err
		},
	}
	for name, way := range ways {
		b.Run(name, func(b *testing.B) {
			r, err := way()
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			b.SetBytes(int64(len(part)))
			for b.Loop() {
				if _, err := io.ReadFull(r, part); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
