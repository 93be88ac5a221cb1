package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clusterconfig"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// config is the configuration that the server runs with now: what is in force in the cluster, with
// this server's own part. Fields that need a restart have their value of the start. Nobody may
// change what it points to.
func (s *Server) config() *api.ServerConfig {
	if s.keeper == nil { // as in tests
		return &s.cfg
	}
	return s.keeper.Running()
}

// openKeeper makes the keeper of the configuration. It needs the state, and asks the log later.
func (s *Server) openKeeper() (err error) {
	s.keeper, err = clusterconfig.New(clusterconfig.Config{
		State: s.state, File: &s.cfg, Logger: s.log,
		Server: func() string { return s.raft.Self() },
		Alone:  func() bool { return len(s.raft.Members()) <= 1 },
		Leads:  func() bool { return s.raft.IsLeader() },
	})
	return err
}

// reloads reloads the configuration at each request, until ctx ends. Reloads never overlap.
func (s *Server) reloads(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-s.opts.Reload:
			if !ok {
				return nil
			}
			if err := s.reload(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("configuration not reloaded: nothing has changed", "error", err)
			}
		}
	}
}

// reload reads this server's file again. The leader applies it to the cluster; another server takes
// over its own part of it, and shows where the rest differs. An error means that nothing has
// changed.
//
// The order matters: the file is read, validated and tried before anything is stored or proposed,
// and the loops or the pools follow what the log has then (reconfigure). A crash after that is
// harmless, because the next start finds the configuration in the log.
func (s *Server) reload(ctx context.Context) error {
	next, err := s.opts.Read()
	if err != nil {
		return err
	}
	config.Defaults(next)
	if problems := config.Validate(next); len(problems) > 0 {
		return &api.Problem{Status: http.StatusUnprocessableEntity, Title: "the configuration is wrong", Detail: problems[0].String(), Errors: problems}
	}
	return s.keeper.Reload(ctx, ledgerOf(s), next, s.mayRunWith)
}

// reconfigure makes the loops of this server follow the configuration, if it has any: whoever has
// changed it, on whatever server. The keeper calls it after each change.
func (s *Server) reconfigure(ctx context.Context) {
	used, now := s.used.Load(), s.config()
	if used == nil || used == now {
		return // the next turn begins with what is in force then
	}
	changes, err := config.Changes(used, now)
	if err != nil {
		s.log.Error("configuration: what has changed is not known; the loops start again", "error", err)
		wait.Poke(s.renew)
		return
	}
	// A change of pools alone is a fact. Any other change needs new loops, as at the start of a
	// leadership: providers and times are theirs. Nodes and what they run do not notice. The new turn
	// also sets the pools.
	for _, c := range changes {
		if !c.Restart && !strings.HasPrefix(c.Field, "pools[") {
			wait.Poke(s.renew)
			return
		}
	}
	// A turn that has not set its pools yet does so with what is in force then.
	if len(changes) == 0 || !s.leading.Load() || !s.used.CompareAndSwap(used, now) {
		return
	}
	l := ledgerOf(s)
	if _, _, err := l.Propose(ctx, s.pools()); err != nil && ctx.Err() == nil {
		s.log.Error("pools not set; the next start or reload sets them", "error", err)
	}
}

// setPools sets the pools and shares of the configuration. One that comes into force meanwhile may
// have set its own before these: they are set again then.
func (s *Server) setPools(ctx context.Context, l ledger) error {
	for {
		now := s.config()
		if _, _, err := l.Propose(ctx, s.pools()); err != nil {
			return err
		}
		if _, _, err := l.Propose(ctx, clusterconfig.Shares(now)); err != nil {
			return err
		}
		if s.config() == now {
			return nil
		}
	}
}

// pools is the fact that sets the pools of the configuration.
func (s *Server) pools() *state.PoolsSet {
	meta := s.state.Latest().Meta()
	return clusterconfig.Pools(s.config(), meta.LogFormat())
}

// mayRunWith returns an error if a configuration would do harm that nobody can want, or cannot be
// used at all.
func (s *Server) mayRunWith(next *api.ServerConfig) error {
	// Without its provider nothing can destroy a node, and its instance would cost money for ever.
	names := map[muster.ProviderName]bool{}
	for i := range next.Providers {
		names[muster.ProviderName(next.Providers[i].Name)] = true
	}
	left := map[muster.ProviderName]int{}
	s.state.Latest().LiveNodes(func(n *state.Node) bool {
		if p := n.Offering.Provider; !names[p] && s.providerNow(p) != nil {
			left[p]++
		}
		return true
	})
	var errs []error
	for p, n := range left {
		errs = append(errs, fmt.Errorf("provider %s is removed and still has nodes (%d), which could not be destroyed then; remove its pools first, and the provider when the nodes are gone", p, n))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	cluster := s.state.Latest().Meta().Cluster
	if cluster == "" {
		return nil // it has not led yet: its first leadership finds out
	}
	r, err := s.reach(nil)
	if err != nil {
		return err
	}
	// Making the providers finds what the validation of the file cannot: programs and keys that are
	// missing on this host.
	_, err = s.newProviders(next, cluster, r)
	return err
}

// applied lets the API show the configuration of the cluster, and apply another one.
type applied struct{ s *Server }

func (a applied) Show() (*api.AppliedConfig, error) { return a.s.keeper.Show() }

func (a applied) Apply(ctx context.Context, r *api.ConfigApply) (*api.ConfigApplied, error) {
	// Which nodes there are, and whether the providers can be made, is for the leader to say.
	if !a.s.leading.Load() {
		return nil, muster.Faultf(muster.FaultUnavailable, "this server does not lead, and a configuration is applied by the one that does")
	}
	return a.s.keeper.Apply(ctx, a.s.users(), r, a.s.mayRunWith)
}

// measureConfig registers the metrics of the configuration.
func (s *Server) measureConfig(r prometheus.Registerer) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_config_version", Help: "Version of the configuration in force; 0: none is in the log.",
	}, func() float64 {
		if c := state.ConfigInForce(s.state.Latest()); c != nil {
			return float64(c.Version)
		}
		return 0
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "muster_config_differs", Help: "1 if the file of this server differs from the configuration in force, else 0.",
	}, func() float64 {
		if s.keeper.Differs() {
			return 1
		}
		return 0
	}))
}
