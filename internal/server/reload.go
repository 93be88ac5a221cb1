package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// config is the configuration that the server runs with now. Fields that need a restart have their
// value of the start. Nobody may change what it points to: a reload stores a new one.
func (s *Server) config() *api.ServerConfig {
	if c := s.current.Load(); c != nil {
		return c
	}
	return &s.cfg
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

// reload applies what may change while the server runs. An error means that nothing has changed.
//
// The order matters: the new configuration is read, validated and tried before it is stored, and
// the loops or the pools follow only then. A crash after that is harmless, because the next start
// reads the file again.
func (s *Server) reload(ctx context.Context) error {
	next, err := s.opts.Read()
	if err != nil {
		return err
	}
	config.Defaults(next)
	if problems := config.Validate(next); len(problems) > 0 {
		return &api.Problem{Status: http.StatusUnprocessableEntity, Title: "the configuration is wrong", Detail: problems[0].String(), Errors: problems}
	}
	was := s.config()
	changes, err := config.Changes(was, next)
	if err != nil {
		return err
	}
	running := config.Running(was, *next)
	if err := s.mayRunWith(&running); err != nil {
		return err
	}
	// A change of pools alone is a fact. Any other change needs new loops.
	pools, loops := false, false
	for _, c := range changes {
		what, level := "configuration changed", s.log.Info
		if c.Restart {
			what, level = "configuration: this needs a restart", s.log.Warn
		}
		level(what, "field", c.Field, "from", c.From, "to", c.To)
		if c.Warning != "" {
			s.log.Warn("configuration: effects", "field", c.Field, "warning", c.Warning)
		}
		pools = pools || strings.HasPrefix(c.Field, "pools[")
		loops = loops || !c.Restart && !strings.HasPrefix(c.Field, "pools[")
	}
	s.current.Store(&running)
	switch {
	case len(changes) == 0:
		s.log.Info("configuration read again: nothing has changed")
	case loops:
		// New providers or times need new loops, as at the start of a leadership. Nodes and what
		// they run do not notice. The new turn also sets the pools.
		wait.Poke(s.renew)
	case pools && s.leading.Load():
		// A server that does not lead must not propose. The pools of its configuration apply when
		// it leads.
		if _, _, err := (ledger{s.state, s.raft.Propose, s.times.commits}).Propose(ctx, s.pools()); err != nil {
			s.log.Error("pools not set; the next start or reload sets them", "error", err)
		}
	}
	return nil
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
