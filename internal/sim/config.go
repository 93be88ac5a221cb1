package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clusterconfig"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/state"
)

// How many servers take turns to lead where configurations are applied. Each has a file of its own that says
// something else: no hand-over may change anything by that.
const fileCount = 3

// servers are those of a scenario that applies configurations.
type servers struct {
	c       *Cluster
	keepers []*clusterconfig.Keeper
	// leader is the one that leads, or led last.
	leader int
	// acknowledged is the newest version that an operator was told of. The cluster's lock guards it.
	acknowledged uint64
}

func (c *Cluster) newServers() (*servers, error) {
	if err := c.propose(&state.FormatRaised{Format: state.FormatNewest}); err != nil {
		return nil, err
	}
	s := &servers{c: c, leader: fileCount - 1}
	for i := range fileCount {
		k, err := clusterconfig.New(clusterconfig.Config{
			State: c.Log, File: c.fileOf(i), Server: func() string { return fmt.Sprintf("s%d", i) },
			Alone: func() bool { return false }, Leads: func() bool { return s.leader == i }, Logger: c.cfg.Logger,
		})
		if err != nil {
			return nil, err
		}
		s.keepers = append(s.keepers, k)
	}
	return s, nil
}

// fileOf is the file of a server: the pools of the scenario, each with so many nodes more.
func (c *Cluster) fileOf(more int) *api.ServerConfig {
	out := &api.ServerConfig{DataDir: "/data"}
	for _, name := range []string{provider, second} {
		out.Providers = append(out.Providers, api.ProviderSpec{Name: name, Type: api.ProviderExec, Command: []string{"/program"}, SSH: &api.SSHSpec{KeyFile: "/key", KnownHosts: "/known"}})
	}
	for i := range c.cfg.Pools {
		p := &c.cfg.Pools[i]
		out.Pools = append(out.Pools, api.PoolSpec{Name: string(p.Name), Provider: string(p.Provider), Min: p.Min, Max: p.Max + more})
	}
	config.Defaults(out)
	return out
}

// lead is the begin of a leadership: the next server settles which configuration counts, and sets the pools by it.
func (s *servers) lead() error {
	s.leader = (s.leader + 1) % fileCount
	before := state.ConfigInForce(s.c.Log.Latest())
	s.c.mu.Lock()
	told := s.acknowledged
	s.c.mu.Unlock()
	switch {
	case before == nil && told > 0:
		return fmt.Errorf("configuration %d was acknowledged, and a new leader finds none", told)
	case before != nil && before.Version < told:
		return fmt.Errorf("configuration %d was acknowledged, and a new leader finds %d", told, before.Version)
	}
	ctx := context.Background()
	if err := s.retry(func() error { return s.keepers[s.leader].Settle(ctx, s.c.Log) }); err != nil {
		return err
	}
	if after := state.ConfigInForce(s.c.Log.Latest()); before != nil && after != before {
		return fmt.Errorf("server %d began to lead, and the configuration became %+v instead of %+v", s.leader, after, before)
	}
	return s.retry(func() error { return s.setPools(ctx, s.c.Log) })
}

// retry is for what a new leader does before its loops: a log that takes nothing ends the leadership, and the
// next one does it.
func (s *servers) retry(do func() error) error {
	for {
		err := do()
		if !muster.IsKind(err, muster.FaultDiskLow) {
			return err
		}
		time.Sleep(time.Second)
	}
}

// resign is the end of a leadership.
func (s *servers) resign() { s.keepers[s.leader].Resign() }

// setPools sets the pools by the configuration in force.
func (s *servers) setPools(ctx context.Context, p state.Proposer) error {
	for {
		now := s.keepers[s.leader].Running()
		if _, _, err := p.Propose(ctx, &state.PoolsSet{Pools: s.c.poolsBy(now)}); err != nil {
			return err
		}
		if s.keepers[s.leader].Running() == now {
			return nil
		}
	}
}

// poolsBy are the scenario's pools with as many nodes as a configuration says.
func (c *Cluster) poolsBy(in *api.ServerConfig) (out []state.Pool) {
	for _, p := range c.cfg.Pools {
		p.Max = in.Pool(string(p.Name)).Max
		out = append(out, p)
	}
	return out
}

// configure is an operator who applies a configuration in which a pool may have so many nodes. It goes on beside
// everything else, and ends with the leadership wherever it is.
func (c *Cluster) configure(pool string, most int) {
	s, ctx := c.servers, c.leadership
	c.loops.Go(func() {
		k := s.keepers[s.leader]
		next := config.Cluster(k.Running())
		next.Pool(pool).Max = most
		done, err := k.Apply(ctx, c.actor("config"), &api.ConfigApply{Config: *next}, func(*api.ServerConfig) error { return nil })
		if err == nil {
			c.mu.Lock()
			s.acknowledged = max(s.acknowledged, done.Version)
			c.mu.Unlock()
			err = s.setPools(ctx, c.actor("config"))
		}
		for _, k := range []muster.FaultKind{muster.FaultAmbiguous, muster.FaultUnavailable, muster.FaultDiskLow} {
			if muster.IsKind(err, k) {
				c.note("the operator does not know what came of it: %v", err)
				return
			}
		}
		if err != nil {
			c.fail(fmt.Errorf("apply a configuration: %w", err))
		}
	})
}

// configured checks at the end that the pools are those in force.
func (c *Cluster) configured() error {
	if c.servers == nil {
		return nil
	}
	snap := c.Log.Latest()
	for _, want := range c.poolsBy(c.servers.keepers[c.servers.leader].Running()) {
		if p := snap.Pool(want.Name); p == nil || p.Max != want.Max {
			return fmt.Errorf("pool %s is %+v, and configuration %d has a maximum of %d", want.Name, p, state.ConfigInForce(snap).Version, want.Max)
		}
	}
	return nil
}
