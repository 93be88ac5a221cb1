package faults

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/remote/remotetest"
)

// cable is what lies between the server and a host: connections go through it, and it can be cut.
type cable struct {
	listener net.Listener
	to       string

	mu sync.Mutex
	// up is closed while bytes pass; what waits for them takes it anew each time.
	up chan struct{}
	// broken: who comes is turned away.
	broken bool
	conns  map[net.Conn]bool
	all    sync.WaitGroup
}

// newCable listens on loopback, and carries to an address.
func newCable(t *testing.T, to string) *cable {
	t.Helper()
	w := &cable{listener: must(net.Listen("tcp", "127.0.0.1:0"))(t), to: to, up: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(w.up)
	w.all.Go(w.serve)
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.mend()
		w.breakAll(false)
		w.all.Wait()
	})
	return w
}

func (w *cable) address() string { return w.listener.Addr().String() }

func (w *cable) serve() {
	for {
		in, err := w.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", w.to)
		if err != nil || !w.keep(in, out) {
			_ = in.Close()
			if err == nil {
				_ = out.Close()
			}
			continue
		}
		w.all.Go(func() { w.carry(in, out) })
		w.all.Go(func() { w.carry(out, in) })
	}
}

// keep takes connections into the books; false if it is broken.
func (w *cable) keep(both ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range both {
		if !w.broken {
			w.conns[c] = true
		}
	}
	return !w.broken
}

func (w *cable) carry(to, from net.Conn) {
	defer func() {
		_, _ = to.Close(), from.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.conns, to)
		delete(w.conns, from)
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		w.mu.Lock()
		up := w.up
		w.mu.Unlock()
		<-up
		if n > 0 {
			if _, werr := to.Write(b[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// silence has no byte pass, as a switch that is off does: nobody is told.
func (w *cable) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = make(chan struct{})
}

// breakAll ends all connections, and turns new ones away from then on if so asked.
func (w *cable) breakAll(andNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = andNew
	for c := range w.conns {
		_ = c.Close()
	}
}

// mend lets pass again what was held up, and whoever comes.
func (w *cable) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = false
	select {
	case <-w.up:
	default:
		close(w.up)
	}
}

// overSSH has the host's instances on this machine as one host of the operator's own, behind a cable.
func (h *host) overSSH() *cable {
	h.t.Helper()
	sshd := remotetest.SSHD(h.t)
	w := newCable(h.t, sshd.Address)
	base := h.path("b") // short: the path of a socket is bounded
	h.config.Providers = []api.ProviderSpec{{
		Name: providerName, Type: api.ProviderStatic,
		SSH:       &api.SSHSpec{User: sshd.User, KeyFile: sshd.KeyFile, Dir: base},
		Offerings: []api.OfferingSpec{{Name: "rack", CPU: 8, Memory: 8 << 30, Disk: 8 << 30}},
		Hosts:     []api.HostSpec{{Name: "r1", Address: w.address(), HostKeys: []string{sshd.HostKey}, Offering: "rack"}},
	}}
	h.t.Cleanup(func() {
		if h.srv != nil {
			h.srv.kill() // it would start the agent again
		}
		nodes, _ := filepath.Glob(filepath.Join(base, "nodes", "*"))
		for _, dir := range nodes {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				if err := destroyInstance(dir); err != nil {
					h.t.Errorf("clean: %v", err)
				}
			}
		}
	})
	return w
}

// The link to a node with twenty warm runners drops for a second and a half, in silence or with its connections: claims
// go on meanwhile, all of them, and their holders work in them as soon as the link is back.
func TestClaimsWhileALinkDrops(t *testing.T) {
	t.Parallel()
	const warm, drop = 20, 1500 * time.Millisecond
	h, image := newContainerHost(t)
	w := h.overSSH()
	h.start()
	h.environment("e", image, warm)
	h.environment("still", image, 2, func(s *api.EnvironmentSpec) { s.Frozen = true })
	for _, c := range []struct {
		name string
		drop func()
	}{
		{"silent", w.silence},
		{"broken", func() { w.breakAll(true) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.warm("e", warm)
			h.warm("still", 2)
			links := h.metric("muster_links_up")
			began := time.Now()
			c.drop()
			claims := make([]*api.Claim, warm+2)
			var all sync.WaitGroup
			for i := range claims {
				all.Go(func() {
					q := api.ClaimRequest{Environment: "e"} // no wait: one that is warm, or a refusal
					if i >= warm {
						q.Environment = "still"
					}
					claim, err := h.client().Patient(-1).Claim(t.Context(), q, "")
					if err != nil {
						t.Errorf("claim %d while the link is down: %v", i, err)
						return
					}
					claims[i] = claim
				})
			}
			all.Wait()
			t.Logf("%d claims in %s", len(claims), time.Since(began).Round(time.Millisecond))
			if t.Failed() {
				w.mend()
				return
			}
			// What is asked of a runner now is answered when it can be.
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			early := make(chan error, 1)
			go func() {
				_, err := h.client().RunExec(ctx, muster.AllocID(claims[0].Runner), api.ExecRequest{Command: []string{"true"}})
				early <- err
			}()
			pause(time.Until(began.Add(drop)))
			w.mend()
			t.Logf("asked while the link was down: %v", <-early)

			h.eventually("the link is back", func() bool { return h.metric("muster_links_up") == links })
			given := map[string]bool{}
			for _, claim := range claims {
				if given[claim.Runner] {
					t.Errorf("runner %s was given to two", claim.Runner)
				}
				given[claim.Runner] = true
				if got := h.execute(api.Alloc{ID: claim.Runner}, api.ExecRequest{Command: []string{"echo", "mine"}}); got.Stdout != "mine\n" {
					t.Errorf("runner %s: %+v", claim.Runner, got)
				}
			}
			h.warm("e", warm)
			if n := h.counts("e"); n.Claimed != warm || n.Gone != n.Created-2*warm {
				t.Errorf("runners are %+v", n)
			}
			for _, claim := range claims {
				if err := h.client().Release(t.Context(), muster.AllocID(claim.Runner)); err != nil {
					t.Error(err)
				}
			}
			h.eventually("all are given back", func() bool { return h.counts("e").Claimed+h.counts("still").Claimed == 0 })
		})
	}
	for _, n := range h.nodes() {
		if n.Stage != string(muster.NodeServing) || n.Health != string(muster.NodeGood) {
			t.Errorf("%+v", n)
		}
	}
	if n := len(h.nodes()); n != 1 {
		t.Errorf("there were %d nodes", n)
	}
	for _, name := range []string{"e", "still"} {
		if err := h.client().DeleteEnvironment(t.Context(), "default", name, true); err != nil {
			t.Error(err)
		}
	}
	h.eventually("the host is given back", func() bool {
		left := must(os.ReadDir(h.path("b/nodes")))(t)
		return !slices.ContainsFunc(left, os.DirEntry.IsDir)
	})
	for _, line := range h.traces(nil) {
		t.Errorf("left: %s", line)
	}
}
