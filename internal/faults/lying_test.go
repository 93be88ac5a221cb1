package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/remote/remotetest"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// liar stands between the server and the agent of a node, and says other things of it than the agent does.
type liar struct {
	proxy *httputil.ReverseProxy
	told  atomic.Int64

	mu   sync.Mutex
	lie  func(w io.Writer, seq uint64) // nil: the truth
	over chan struct{}                 // closed when there is another lie: what was being said ends
}

// say begins with another lie. What is told to the server meanwhile breaks off, so that it asks again.
func (l *liar) say(lie func(w io.Writer, seq uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		close(l.over)
	}
	l.lie, l.over = lie, make(chan struct{})
	l.told.Store(0)
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/reports" {
		l.proxy.ServeHTTP(w, r)
		return
	}
	l.mu.Lock()
	lie, over := l.lie, l.over
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-over:
		case <-ctx.Done():
		}
		cancel()
	}()
	if lie == nil {
		l.proxy.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	w.WriteHeader(http.StatusOK)
	for seq := uint64(1); ctx.Err() == nil && seq < 20; seq++ {
		lie(w, seq)
		l.told.Add(1)
		_ = http.NewResponseController(w).Flush()
	}
}

// between puts the liar in the place of an agent's socket.
func (l *liar) between(t *testing.T, socket string) {
	real := socket + "-real"
	if err := os.Rename(socket, real); err != nil {
		t.Fatal(err)
	}
	l.proxy = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "agent" },
		FlushInterval: -1,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return wire.DialSocket(ctx, real)
		}},
	}
	listener := must(net.Listen("unix", socket))(t)
	s := &http.Server{Handler: l}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() {
		_ = s.Close()
		_ = os.Rename(real, socket) // for what clears the node away
	})
}

// S-H5: a node that was taken over exhausted the server by reports: hundreds of thousands of digests or of allocations that
// nobody knows, and one that never ends. The server refuses them, stays quick and small, and ends when it is told to.
func TestLyingNode(t *testing.T) {
	t.Parallel()
	items, asks := 30_000, 20
	if *attackFlag {
		items, asks = 200_000, 300
	}
	h := newHost(t, func(c *api.ServerConfig) {
		c.Pools[0].Min, c.Pools[0].Max, c.Pools[0].IdleTimeout = 1, 1, api.Duration(time.Hour)
	})
	h.start()
	h.eventually("a node serves", func() bool { n := h.nodes(); return len(n) == 1 && n[0].Stage == string(muster.NodeServing) })
	h.stop()
	sockets := must(filepath.Glob(filepath.Join(h.instances(), "*", wire.SocketName)))(t)
	if len(sockets) != 1 {
		t.Fatalf("sockets: %q", sockets)
	}
	l := &liar{}
	l.say(nil)
	l.between(t, sockets[0])
	allocs := make([]wire.AllocReport, items)
	needs := make([]string, items)
	for i := range items {
		allocs[i] = wire.AllocReport{ID: muster.NewAllocID("nobody", i, 1), Status: muster.AllocRunning}
		needs[i] = fmt.Sprintf("sha256:%064x", i)
	}
	one := func(r wire.Report) func(io.Writer, uint64) {
		return func(w io.Writer, seq uint64) {
			r.Run, r.Seq, r.Whole = "b", seq, true
			_ = json.NewEncoder(w).Encode(r)
		}
	}
	lies := map[string]func(io.Writer, uint64){
		"allocations that nobody knows": one(wire.Report{Allocs: allocs}),
		"digests":                       one(wire.Report{Needs: needs}),
		"images":                        one(wire.Report{NeedGrants: needs}),
		"one report without an end": func(w io.Writer, _ uint64) {
			_, _ = io.WriteString(w, `{"boot":"`)
			word := make([]byte, 1<<20)
			for i := range word {
				word[i] = 'x'
			}
			for range 300 {
				if _, err := w.Write(word); err != nil {
					return
				}
			}
		},
	}
	h.start()
	for name, lie := range lies {
		l.say(lie)
		h.eventually(name+" is told", func() bool { return l.told.Load() > 0 })
		h.quick(name, asks, func(int) {})
	}
	if h.srv.ended() {
		t.Fatalf("the server ended:\n%s", h.log())
	}
	l.say(nil)
	h.eventually("the node is in contact again once it tells the truth", func() bool {
		n := h.nodes()
		return len(n) == 1 && n[0].Health == string(muster.NodeGood)
	})
	h.muster("run", "--name", "after", "--", "true").says(0, "")
	if code := h.stop(); code != 0 {
		t.Errorf("the server ended with %d when it was told to end", code)
	}
	h.start()
}

// A host whose sshd answers each command with bytes without end, on one stream or the other, costs the server neither its memory
// nor its answers, and is told as what it is: a host on which no agent comes to life.
func TestHostileSSHD(t *testing.T) {
	t.Parallel()
	asks := 50
	if *attackFlag {
		asks = 1000
	}
	for name, command := range map[string]string{"zeros": "cat /dev/zero", "lines": "yes", "errors": "cat /dev/zero >&2", "silence": "sleep 1000"} {
		t.Run(name, func(t *testing.T) {
			sshd := remotetest.SSHD(t, "ForceCommand "+command)
			h := newHost(t, func(c *api.ServerConfig) {
				c.Providers = []api.ProviderSpec{{
					Name: providerName, Type: api.ProviderStatic, SSH: &api.SSHSpec{User: sshd.User, KeyFile: sshd.KeyFile, Dir: sshd.Dir + "/b"},
					Offerings: []api.OfferingSpec{{Name: "rack", CPU: 8, Memory: 8 << 30, Disk: 8 << 30}},
					Hosts:     []api.HostSpec{{Name: "r1", Address: sshd.Address, HostKeys: []string{sshd.HostKey}, Offering: "rack"}},
				}}
				c.Pools[0].Min, c.Pools[0].Max = 1, 1
			})
			h.start()
			h.eventually("the host is a node that boots", func() bool { n := h.nodes(); return len(n) == 1 && n[0].Stage == string(muster.NodeBooting) })
			h.quick(name, asks, func(int) { h.nodes() })
			if n := h.nodes(); n[0].Stage == string(muster.NodeServing) {
				t.Errorf("the host serves: %+v", n[0])
			}
			if code := h.stop(); code != 0 {
				t.Errorf("the server ended with %d when it was told to end", code)
			}
		})
	}
}
