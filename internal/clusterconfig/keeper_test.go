package clusterconfig

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// cluster is a log in memory with the servers that follow it.
type cluster struct {
	t  *testing.T
	mu sync.Mutex
	s  *state.State
	// index of the newest entry; down: nothing is taken.
	index uint64
	down  bool
}

func newCluster(t *testing.T, format state.Format) *cluster {
	t.Helper()
	s, err := state.New(256)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, s: s}
	c.must(&state.TermBegan{Term: 1, Cluster: "c"})
	c.must(&state.FormatRaised{Format: format, By: "test"})
	return c
}

func (c *cluster) must(f state.Fact) {
	c.t.Helper()
	if _, _, err := c.Propose(c.t.Context(), f); err != nil {
		c.t.Fatal(err)
	}
}

// Propose commits a fact.
func (c *cluster) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return 0, nil, muster.Faultf(muster.FaultUnavailable, "no leader")
	}
	if err := c.s.MayWrite(f); err != nil {
		return 0, nil, err
	}
	b, err := c.s.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	c.index++
	v := c.s.Apply(c.index, 1, int64(c.index)*1e6, [][]byte{b})[0]
	err, _ = v.(error)
	return c.index, v, err
}

func (c *cluster) version() uint64 {
	if in := state.ConfigInForce(c.s.Latest()); in != nil {
		return in.Version
	}
	return 0
}

// server is one with a file.
type server struct {
	*Keeper
	c    *cluster
	logs strings.Builder
	// alone and leads are what the log says of it.
	alone, leads bool
}

func (c *cluster) server(name string, file *api.ServerConfig) *server {
	c.t.Helper()
	s := &server{c: c}
	var err error
	s.Keeper, err = New(Config{
		State: c.s, File: file, Server: func() string { return name }, Alone: func() bool { return s.alone }, Leads: func() bool { return s.leads },
		Logger: slog.New(slog.NewTextHandler(&s.logs, nil)),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// lead lets a server lead from here on, and others no more.
func (s *server) lead(others ...*server) {
	s.c.t.Helper()
	for _, o := range others {
		o.leads = false
		o.Resign()
	}
	s.leads = true
	if err := s.Settle(s.c.t.Context(), s.c); err != nil {
		s.c.t.Fatal(err)
	}
}

// reload has a server read another file.
func (s *server) reload(file *api.ServerConfig) error {
	return s.Reload(s.c.t.Context(), s.c, file, func(*api.ServerConfig) error { return nil })
}

func (s *server) max() int { return s.Running().Pools[0].Max }

// file is a file with one pool of so many nodes, and credentials of a server's own.
func file(name string, nodes int) *api.ServerConfig {
	c := &api.ServerConfig{
		DataDir: "/" + name,
		Providers: []api.ProviderSpec{{
			Name: "h", Type: api.ProviderHetzner,
			CloudSpec: api.CloudSpec{Image: "debian-12", Locations: []string{"fsn1"}, Types: []string{"cx22"}, TokenFile: "/" + name + "/token"},
		}},
		Pools: []api.PoolSpec{{Name: "p", Provider: "h", Max: nodes}},
	}
	config.Defaults(c)
	return c
}

// A hand-over to a server with another file changes nothing.
func TestHandOverKeepsTheConfiguration(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	a, b := c.server("a", file("a", 3)), c.server("b", file("b", 9))
	a.lead()
	if c.version() != 1 || a.max() != 3 || b.max() != 3 {
		t.Fatalf("after the first leader: version %d, max %d and %d", c.version(), a.max(), b.max())
	}
	if in := state.ConfigInForce(c.s.Latest()); in.How != state.ConfigFirst || in.Server != "a" {
		t.Errorf("%+v", in)
	}
	b.lead(a)
	if c.version() != 1 || b.max() != 3 || !b.Differs() || a.Differs() {
		t.Errorf("after the hand-over: version %d, max %d", c.version(), b.max())
	}
	// Its own part is its own.
	if p := b.Running().Provider("h"); p.TokenFile != "/b/token" || b.Running().DataDir != "/b" {
		t.Errorf("%+v", p)
	}
	if text := b.logs.String(); !strings.Contains(text, "this server's file differs") || !strings.Contains(text, "field=pools[p].max in_force=3 file=9") {
		t.Errorf("b says %s", text)
	}
	// A reload of the server that leads is an operator's word.
	if err := b.reload(file("b", 9)); err != nil {
		t.Fatal(err)
	}
	if c.version() != 2 || a.max() != 9 || b.max() != 9 || b.Differs() || !a.Differs() {
		t.Errorf("after a reload of the leader: version %d, max %d and %d", c.version(), a.max(), b.max())
	}
	// That of another one is not.
	if err := a.reload(file("a", 5)); err != nil {
		t.Fatal(err)
	}
	if c.version() != 2 || a.max() != 9 || !strings.Contains(a.logs.String(), "file=5") {
		t.Errorf("after a reload of a follower: version %d, max %d; %s", c.version(), a.max(), a.logs.String())
	}
	// Nor is its start.
	again := c.server("a", file("a", 5))
	again.lead(b)
	if c.version() != 2 || again.max() != 9 {
		t.Errorf("after the start of a leader among others: version %d, max %d", c.version(), again.max())
	}
}

// A server alone does what its file says, at a reload and at a start.
func TestServerAloneFollowsItsFile(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	start := func(nodes int) *server {
		s := c.server("a", file("a", nodes))
		s.alone = true
		s.lead()
		return s
	}
	expect := func(what string, s *server, version uint64, most int) {
		t.Helper()
		if c.version() != version || s.max() != most {
			t.Errorf("%s: version %d, max %d; want %d, %d", what, c.version(), s.max(), version, most)
		}
	}
	s := start(3)
	expect("the first start", s, 1, 3)
	expect("a start with the same file", start(3), 1, 3)
	s = start(4)
	expect("a start with another file", s, 2, 4)
	if err := s.reload(file("a", 5)); err != nil {
		t.Fatal(err)
	}
	expect("a reload", s, 3, 5)
	if _, err := s.Apply(t.Context(), c, &api.ConfigApply{Config: *config.Cluster(file("x", 6))}, func(*api.ServerConfig) error { return nil }); err != nil {
		t.Fatal(err)
	}
	expect("a request", s, 4, 6)
	expect("a start after it with the file of before", start(5), 4, 6)
	expect("a start with a file that was edited since", start(7), 5, 7)
	// What was passed over once may be meant later.
	expect("and back", start(5), 6, 5)
}

// What was passed over counts no more once the file was right in between.
func TestFileIsPassedOverOnce(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	start := func(nodes int) *server {
		s := c.server("a", file("a", nodes))
		s.alone = true
		s.lead()
		return s
	}
	s := start(5)
	if _, err := s.Apply(t.Context(), c, &api.ConfigApply{Config: *config.Cluster(file("x", 6))}, func(*api.ServerConfig) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if start(6); c.version() != 2 || state.ConfigInForce(c.s.Latest()).Over != "" {
		t.Errorf("with the file corrected: %+v", state.ConfigInForce(c.s.Latest()))
	}
	if s := start(5); c.version() != 3 || s.max() != 5 {
		t.Errorf("edited again: version %d, max %d", c.version(), s.max())
	}
}

// As long as a server of the cluster cannot read it, leaders run with their files, as such servers do.
func TestOldFormatRunsWithFiles(t *testing.T) {
	c := newCluster(t, state.FormatConfig-1)
	a, b := c.server("a", file("a", 3)), c.server("b", file("b", 9))
	a.lead()
	b.lead(a)
	if c.version() != 0 || a.max() != 3 || b.max() != 9 || a.Differs() {
		t.Errorf("version %d, max %d and %d", c.version(), a.max(), b.max())
	}
	if err := b.reload(file("b", 10)); err != nil || b.max() != 10 || c.version() != 0 {
		t.Errorf("a reload: %v, max %d", err, b.max())
	}
	_, err := b.Apply(t.Context(), c, &api.ConfigApply{Config: *config.Cluster(file("b", 11))}, func(*api.ServerConfig) error { return nil })
	if p := problem.Of(err); p.Status != http.StatusConflict || !strings.Contains(p.Detail, "upgrade the other servers") {
		t.Errorf("a request: %v", err)
	}
	c.must(&state.FormatRaised{Format: state.FormatNewest, By: "test"})
	b.lead(a)
	if c.version() != 1 || a.max() != 10 {
		t.Errorf("with every server upgraded: version %d, max %d", c.version(), a.max())
	}
}

func TestRequestsAreRefused(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	s := c.server("a", file("a", 3))
	s.lead()
	two := uint64(2)
	part := func(change func(*api.ServerConfig)) api.ConfigApply {
		p := config.Cluster(file("x", 4))
		change(p)
		return api.ConfigApply{Config: *p}
	}
	for name, r := range map[string]struct {
		q      api.ConfigApply
		status int
		want   string
	}{
		"a wrong field": {part(func(c *api.ServerConfig) { c.Pools[0].Provider = "nobody" }), 422, "body.config.pools[0].provider"},
		"a path":        {part(func(c *api.ServerConfig) { c.Providers[0].TokenFile = "/etc/shadow" }), 422, "body.config.providers[0].token_file: is each server's own"},
		"an address":    {part(func(c *api.ServerConfig) { c.Listen = "0.0.0.0:1" }), 422, "body.config.listen: is each server's own"},
		"what the server's file lacks": {part(func(c *api.ServerConfig) {
			c.Providers = append(c.Providers, api.ProviderSpec{Name: "e", Type: api.ProviderExec})
		}), 422, "put it into the files of all servers"},
		"another version": {api.ConfigApply{Config: *config.Cluster(file("x", 4)), IfVersion: &two}, 409, "has version 1, not 2"},
	} {
		_, err := s.Apply(t.Context(), c, &r.q, func(*api.ServerConfig) error { return nil })
		p := problem.Of(err)
		if err == nil || p.Status != r.status || !strings.Contains(p.Error(), r.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	q := part(func(*api.ServerConfig) {})
	if _, err := s.Apply(t.Context(), c, &q, func(*api.ServerConfig) error { return errors.New("provider h still has nodes") }); problem.Of(err).Status != 409 {
		t.Errorf("what the server may not run with: %v", err)
	}
	q.DryRun = true
	out, err := s.Apply(t.Context(), c, &q, func(*api.ServerConfig) error { return nil })
	if err != nil || out.Version != 1 || len(out.Changes) != 2 || out.Changes[0].Field != "pools[p].max" {
		t.Errorf("a dry run: %+v %v", out, err)
	}
	c.down = true
	q.DryRun = false
	if _, err := s.Apply(t.Context(), c, &q, func(*api.ServerConfig) error { return nil }); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Errorf("without a log: %v", err)
	}
	if c.version() != 1 || s.max() != 3 {
		t.Errorf("something was applied: version %d", c.version())
	}
}

// A file that a reload refuses changes nothing, not even the server's own part.
func TestRefusedReloadChangesNothing(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	s := c.server("a", file("a", 3))
	s.lead()
	before := s.Running()
	next := file("other", 9)
	if err := s.Reload(t.Context(), c, next, func(*api.ServerConfig) error { return errors.New("no") }); err == nil {
		t.Error("not refused")
	}
	if s.Running() != before || c.version() != 1 {
		t.Errorf("%+v", s.Running())
	}
	// Without a log only the server's own part counts, and the difference shows.
	c.down = true
	if err := s.reload(next); err == nil {
		t.Error("applied without a log")
	}
	if s.max() != 3 || !s.Differs() || s.Running().Provider("h").TokenFile != "/other/token" {
		t.Errorf("%+v", s.Running())
	}
}

// A provider that the file has no more keeps its credentials as long as it is in force.
func TestCredentialsOfRemovedProvider(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	a, b := c.server("a", file("a", 3)), c.server("b", file("b", 3))
	a.lead()
	none := file("b", 3)
	none.Providers, none.Pools = nil, nil
	for range 2 {
		if err := b.reload(none); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Running().Provider("h").TokenFile; got != "/b/token" {
		t.Errorf("token file of a provider in force: %q", got)
	}
	b.lead(a)
	if err := b.reload(none); err != nil || len(b.Running().Providers) != 0 {
		t.Errorf("applied: %v, %+v", err, b.Running().Providers)
	}
}

// A configuration that cannot be read ends a leadership. Pools by the file would drain nodes.
func TestUnreadableConfigurationEndsTheLeadership(t *testing.T) {
	c := newCluster(t, state.FormatNewest)
	c.must(&state.ConfigApplied{Content: "[]", Server: "z", How: state.ConfigReload})
	s := c.server("a", file("a", 3))
	s.alone, s.leads = true, true
	if err := s.Settle(t.Context(), c); err == nil || !strings.Contains(err.Error(), "version 1 of the cluster's configuration, which server z has applied") {
		t.Errorf("%v", err)
	}
	if c.version() != 1 {
		t.Error("it was replaced")
	}
}

// Watch tells of each change, wherever it was made, and warns a follower whose file differs.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, state.FormatNewest)
		a, b := c.server("a", file("a", 3)), c.server("b", file("b", 9))
		ctx, cancel := context.WithCancel(t.Context())
		var seen []int
		done := make(chan error, 1)
		go func() { done <- b.Watch(ctx, func(context.Context) { seen = append(seen, b.max()) }) }()
		synctest.Wait()
		if b.logs.Len() > 0 {
			t.Errorf("before there is a leader: %s", b.logs.String())
		}
		a.lead()
		synctest.Wait()
		if len(seen) != 1 || seen[0] != 3 || strings.Count(b.logs.String(), "this server's file differs") != 1 {
			t.Errorf("after the first leader: %v; %s", seen, b.logs.String())
		}
		// Nothing about the configuration.
		c.must(&state.TermBegan{Term: 2, Cluster: "c"})
		synctest.Wait()
		if err := a.reload(file("a", 4)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(seen) != 2 || seen[1] != 4 || !strings.Contains(b.logs.String(), "configuration changed\" version=2 field=pools[p].max from=3 to=4") {
			t.Errorf("after a reload of another server: %v; %s", seen, b.logs.String())
		}
		// Its own part, as of a rotated key.
		next := file("b", 9)
		next.Providers[0].TokenFile = "/new"
		if err := b.reload(next); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(seen) != 3 || b.Running().Provider("h").TokenFile != "/new" {
			t.Errorf("after a reload of its own part: %v", seen)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
