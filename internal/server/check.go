package server

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/control/check"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// check launches one instance of a provider and tries it out, while this server leads. It uses the
// loops' providers and connections, so that it tests what a real node would use.
//
// Shelter tells the fleet not to adopt or destroy the instance, which belongs to no node. It is in
// the log with an end: after a crash the next fleet leaves the instance alone until then, and treats
// it afterwards like any other that no node stands for.
func (s *Server) check(ctx context.Context, name muster.ProviderName, want api.ProviderCheck, say func(step, text string)) error {
	l := s.stats.now.Load()
	if l == nil {
		return muster.Faultf(muster.FaultUnavailable, "the server does not lead now")
	}
	p, ok := l.providers[name]
	if !ok {
		var names []string
		for _, n := range slices.Sorted(maps.Keys(l.providers)) {
			names = append(names, string(n))
		}
		return muster.Faultf(muster.FaultNotFound, "provider %s: not found; configured are: %s", name, strings.Join(names, ", "))
	}
	if want.DryRun {
		ctx, cancel := context.WithTimeout(ctx, want.Timeout.Std())
		defer cancel()
		return check.Dry(ctx, p, l.reach.HasProgram, say)
	}
	return check.Run(ctx, check.Config{
		Name: name, Provider: p, Boot: func(t muster.Token) (cloud.Boot, error) { return l.fleet.Boot(name, t) },
		Dial: l.reach.Dial, StartAgent: l.reach.StartAgent, StartsItself: l.reach.StartsItself, Enter: l.reach.Enter, Leave: l.reach.Leave, Shelter: l.fleet.Shelter, Say: say, Logger: s.log,
		// The fence is read for each message: the term or the epoch may change during the check.
		Fence: func() wire.Fence {
			m := s.state.Latest().Meta()
			return wire.Fence{Cluster: m.Cluster, Epoch: m.Epoch, Term: m.Term, Index: m.Index}
		},
	}, check.Want{Offering: muster.OfferingName(want.Offering), Command: want.Command, Timeout: want.Timeout.Std()})
}
