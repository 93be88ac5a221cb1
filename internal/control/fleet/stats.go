package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/size"
)

// Stats holds counts since this server began to lead, and the current number of calls under way.
type Stats struct {
	// PassTime is the total time of the passes.
	Passes                 uint64
	PassTime               time.Duration
	Created, CreateFaults  uint64
	Destroyed              uint64
	DestroyFaults          uint64
	Lists, Adopted, Strays uint64
	Creating, Destroying   int
	// Notices counts spot notices. Overdue is how many nodes have been terminating for too long.
	Notices uint64
	Overdue int
	// Leftovers is how many things were attached to no instance at the last sweeps of all providers,
	// LeftoversRemoved counts those that were removed.
	Leftovers        int
	LeftoversRemoved uint64
	// Boots counts boots by outcome, one for each instance. Disappeared counts instances that were
	// gone without being destroyed by the fleet, by the stage of their node. All keys exist from
	// the start.
	Boots       map[BootOutcome]uint64
	Disappeared map[muster.NodeStage]uint64
	// Blocks are the refusals of providers that no success has ended.
	Blocks []size.Block
	// Operations counts the calls to each provider, by operation and result.
	Operations []Operation
}

// Metrics calls gauge or counter with each figure that is a metric without labels. A server that
// does not lead calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	counter("muster_spot_notices_total", "Notices of the cloud that it will reclaim an instance.", float64(s.Notices))
	gauge("muster_cloud_leftovers", "Disks, addresses and other things of this cluster at its providers that belong to no instance.", float64(s.Leftovers))
	counter("muster_cloud_leftovers_removed_total", "Such things that were removed.", float64(s.LeftoversRemoved))
	gauge("muster_nodes_overdue", "Nodes whose destruction takes too long.", float64(s.Overdue))
}

// Operation is how often one operation of a provider had one result. An empty result means success.
type Operation struct {
	Provider muster.ProviderName
	cloud.Count
}

// Stats returns the current figures, as copies.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Creating, s.Destroying = len(f.memory.Creating), len(f.memory.Destroying)
	s.Boots, s.Disappeared = maps.Clone(f.boots.outcomes), maps.Clone(f.boots.disappeared)
	s.Blocks = slices.Clone(f.blocks.now(f.cfg.Clock.Now()))
	for _, n := range f.leftovers {
		s.Leftovers += n
	}
	for _, name := range f.names {
		for _, c := range f.counts[name].Counts() {
			s.Operations = append(s.Operations, Operation{name, c})
		}
	}
	return s
}

// Decisions returns the last decisions about the size of the fleet, with the reasons why members
// wait; nil before the first pass. The caller must not change them.
func (f *Fleet) Decisions() *size.Decisions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decisions
}
