package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/testwait"
)

// host has a data directory and a file, and a server on both.
type host struct {
	*Server
	t    *testing.T
	dir  string
	file api.ServerConfig
	// among is its place among others; nil: it is alone.
	among  func() *raftlog.Cluster
	reload chan struct{}
	end    func()
	c      *client.Client
}

func newHost(t *testing.T, most int, pools ...string) *host {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	h := &host{t: t, dir: t.TempDir(), reload: make(chan struct{}, 1), among: func() *raftlog.Cluster { return nil }}
	h.write(most, pools...)
	return h
}

// write makes its file one with pools of so many nodes.
func (h *host) write(most int, pools ...string) {
	h.file = config.Dev(2, 4*muster.GiB)
	h.file.Pools = nil
	for _, p := range pools {
		h.file.Pools = append(h.file.Pools, api.PoolSpec{Name: p, Provider: api.ProviderLocal, Max: most})
	}
	h.file.DataDir, h.file.Listen, h.file.LowWater = h.dir, "127.0.0.1:0", 1
	config.Defaults(&h.file)
}

// start runs a server. It ends with the test at the latest.
func (h *host) start() {
	h.t.Helper()
	node := filepath.Join(h.t.TempDir(), "muster-node")
	if err := os.WriteFile(node, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	s, err := open(h.t.Context(), h.file, Options{
		NodeBinary: node, Version: "test", Logger: slog.New(slog.DiscardHandler), Reload: h.reload, among: h.among(),
		Read: func() (*api.ServerConfig, error) { c := h.file; return &c, nil },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.Server = s
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	handler, err := s.api()
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, ln, handler) }()
	ended := false
	h.end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("the server ended with %v", err)
		}
		if err := s.close(); err != nil {
			h.t.Error(err)
		}
	}
	h.t.Cleanup(h.end)
	token, err := locate.ReadToken(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	if h.c, err = client.New(client.Config{Address: ln.Addr().String(), Token: token, RetryFor: -1}); err != nil {
		h.t.Fatal(err)
	}
}

// leads waits until the server leads.
func (h *host) leads() {
	h.t.Helper()
	testwait.Until(h.t, "the server leads", h.leading.Load)
}

// shows waits until the server knows a version, and the pools of the state are these.
func (h *host) shows(version uint64, most int, pools ...string) {
	h.t.Helper()
	testwait.Until(h.t, fmt.Sprintf("version %d with %d nodes in pools %v", version, most, pools), func() bool {
		snap := h.state.Latest()
		var names []string
		right := true
		snap.Pools(func(p *state.Pool) bool {
			names = append(names, string(p.Name))
			right = right && p.Max == most
			return true
		})
		in := state.ConfigInForce(snap)
		return in != nil && in.Version == version && right && slices.Equal(names, pools)
	})
	if c := h.config(); len(c.Pools) != len(pools) || c.Pools[0].Max != most || c.DataDir != h.dir {
		h.t.Errorf("it runs with %+v", c)
	}
}

// A server alone follows its file as it always did, and the log has what it does.
func TestServerAloneAppliesItsFile(t *testing.T) {
	h := newHost(t, 2, "a", "b")
	h.start()
	h.leads()
	h.shows(1, 2, "a", "b")
	// Pools alone are a fact; the loops stay.
	loops := h.stats.now.Load()
	h.write(3, "a", "b")
	h.reload <- struct{}{}
	h.shows(2, 3, "a", "b")
	if h.stats.now.Load() != loops {
		t.Error("other pools have restarted the loops")
	}
	// Another retention needs new loops.
	h.file.Retention.Jobs, h.file.Blob.Retention = api.Duration(time.Hour), api.Duration(time.Hour)
	h.reload <- struct{}{}
	testwait.Until(t, "new loops", func() bool { return h.stats.now.Load() != loops })
	h.shows(3, 3, "a", "b")
	h.end()
	h.write(4, "b")
	h.start()
	h.leads()
	h.shows(4, 4, "b")
	if in := state.ConfigInForce(h.state.Latest()); in.How != state.ConfigStart || in.Server != h.raft.Self() {
		t.Errorf("%+v", in)
	}
}

// What an operator has sent stays in force over a restart and over a backup.
func TestRequestedConfigurationStays(t *testing.T) {
	h := newHost(t, 2, "a")
	h.start()
	h.leads()
	h.shows(1, 2, "a")
	part := config.Cluster(&h.file)
	part.Pools[0].Max, part.Pools[0].MaxLaunching = 7, 7
	if _, err := h.c.ApplyConfig(t.Context(), api.ConfigApply{Config: *part, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	h.shows(1, 2, "a")
	out, err := h.c.ApplyConfig(t.Context(), api.ConfigApply{Config: *part})
	if err != nil || out.Version != 2 || len(out.Changes) != 2 {
		t.Fatalf("%+v %v", out, err)
	}
	h.shows(2, 7, "a")
	backup, err := h.c.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backup.Close() }()
	saved := newHost(t, 2, "a")
	if _, err := raftlog.Restore(filepath.Join(saved.dir, "log"), backup); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(saved.dir, api.ProviderLocal), 0o700); err != nil {
		t.Fatal(err)
	}
	h.end()
	for name, h := range map[string]*host{"started again": h, "restored": saved} {
		h.start()
		h.leads()
		h.shows(2, 7, "a")
		shown, err := h.c.AppliedConfig(t.Context())
		if err != nil || shown.Version != 2 || shown.How != state.ConfigRequest || len(shown.Differs) != 2 || shown.Self != h.raft.Self() {
			t.Errorf("%s: %+v %v", name, shown, err)
		}
		metrics, err := h.metrics.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range metrics {
			if n := m.GetName(); n == "muster_config_differs" && m.Metric[0].Gauge.GetValue() == 1 || n == "muster_config_version" && m.Metric[0].Gauge.GetValue() == 2 {
				found++
			}
		}
		if found != 2 {
			t.Errorf("%s: the metrics do not show it", name)
		}
	}
}

func TestWrongConfigurationIsNotApplied(t *testing.T) {
	h := newHost(t, 2, "a")
	h.start()
	h.leads()
	part := config.Cluster(&h.file)
	part.Pools[0].Provider = "nobody"
	_, err := h.c.ApplyConfig(t.Context(), api.ConfigApply{Config: *part})
	if err == nil || !strings.Contains(err.Error(), "body.config.pools[0].provider") {
		t.Errorf("%v", err)
	}
	h.file.Pools[0].Provider = "nobody"
	if err := h.Server.reload(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a reload of a wrong file: %v", err)
	}
	h.shows(1, 2, "a")
	if h.keeper.Differs() {
		t.Error("the wrong file was taken over")
	}
}

// peers are hosts with transports in memory, so that they form a cluster.
func peers(t *testing.T, hosts ...*host) {
	t.Helper()
	transports := map[raft.ServerAddress]*raft.InmemTransport{}
	for i, h := range hosts {
		// The log closes its transport: each start needs another one.
		h.among = func() *raftlog.Cluster {
			address, tr := raft.NewInmemTransport(raft.ServerAddress(fmt.Sprintf("host%d", i)))
			for at, other := range transports {
				if at != address {
					tr.Connect(at, other)
					other.Connect(address, tr)
				}
			}
			transports[address] = tr
			return &raftlog.Cluster{Address: address, Transport: tr, Heartbeat: 2 * time.Second, Term: func(_ context.Context, m raftlog.Member) (uint64, error) {
				for j, other := range hosts {
					if m.Address == fmt.Sprintf("host%d", j) && other.Server != nil {
						return other.raft.Term(), nil
					}
				}
				return 0, fmt.Errorf("nobody is at %s", m.Address)
			}}
		}
	}
	hosts[0].start()
	hosts[0].leads()
	for i, h := range hosts[1:] {
		id, err := raftlog.SetJoining(filepath.Join(h.dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		h.start()
		if err := hosts[0].raft.AddMember(t.Context(), id, fmt.Sprintf("host%d", i+1)); err != nil {
			t.Fatal(err)
		}
		if err := hosts[0].raft.Promote(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// With three servers whose files differ, a hand-over drains nothing: the pools are those in force.
func TestHandOverBetweenServersWithOtherFiles(t *testing.T) {
	a, b, c := newHost(t, 2, "a", "b"), newHost(t, 9, "b"), newHost(t, 2, "a", "b")
	all := []*host{a, b, c}
	peers(t, all...)
	for _, h := range all {
		h.shows(1, 2, "a", "b")
	}
	if a.keeper.Differs() || !b.keeper.Differs() || c.keeper.Differs() {
		t.Errorf("who differs: %v %v %v", a.keeper.Differs(), b.keeper.Differs(), c.keeper.Differs())
	}
	index := a.raft.Applied()
	if err := a.raft.Transfer(t.Context(), b.raft.Self()); err != nil {
		t.Fatal(err)
	}
	b.leads()
	for _, h := range all {
		testwait.Until(t, "the pools of the new leader", func() bool { return h.raft.Applied() > index+1 })
		h.shows(1, 2, "a", "b")
	}
	// A follower that reloads shows its file, and applies nothing.
	a.write(5, "a")
	// Until its loops have ended it is refused as a leader that no longer leads.
	testwait.Until(t, "a follower reloads", func() bool { return a.Server.reload(t.Context()) == nil })
	if !a.keeper.Differs() {
		t.Error("the follower's file does not differ")
	}
	a.shows(1, 2, "a", "b")
	// The leader does, on all servers.
	if err := b.Server.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		h.shows(2, 9, "b")
	}
	if b.keeper.Differs() || !a.keeper.Differs() || !c.keeper.Differs() {
		t.Errorf("who differs: %v %v %v", a.keeper.Differs(), b.keeper.Differs(), c.keeper.Differs())
	}
	// One of three that is started again with another file applies nothing, even if it leads then.
	c.end()
	c.write(1, "a")
	c.start()
	c.shows(2, 9, "b")
	testwait.Until(t, "it leads", func() bool {
		if b.raft.IsLeader() {
			_ = b.raft.Transfer(t.Context(), c.raft.Self()) // as long as c has not caught up
		}
		return c.leading.Load()
	})
	c.shows(2, 9, "b")
	_, err := a.c.ApplyConfig(t.Context(), api.ConfigApply{Config: *config.Cluster(&a.file)})
	if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Status != http.StatusServiceUnavailable {
		t.Errorf("a follower applies a configuration: %v", err)
	}
	if state.ConfigInForce(a.state.Latest()).Version != 2 {
		t.Error("it was applied")
	}
}

// A log of the format before has no configuration: the first leader of this version applies its file.
func TestOlderDirectoryGetsItsConfiguration(t *testing.T) {
	all, err := filepath.Glob("testdata/format-*.tgz")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d data directories: %v", len(all), err)
	}
	for _, archive := range all {
		h := newHost(t, 6, "dev")
		extract(t, archive, h.dir)
		h.start()
		h.leads()
		in := state.ConfigInForce(h.state.Latest())
		if in == nil || in.Version == 0 || in.How != state.ConfigFirst && in.Version == 1 {
			t.Errorf("%s: %+v", archive, in)
		}
		h.shows(in.Version, 6, "dev")
		h.end()
	}
}
