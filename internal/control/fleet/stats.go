package fleet

import (
	"maps"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/size"
)

// Stats are counts since the server began to lead, and what is under way.
type Stats struct {
	Passes                 uint64
	PassTime               time.Duration
	Created, CreateFaults  uint64
	Destroyed              uint64
	DestroyFaults          uint64
	Lists, Adopted, Strays uint64
	Creating, Destroying   int
	// Notices are spot notices heard of. Overdue is how many nodes are to be destroyed for too long.
	Notices uint64
	Overdue int
	// Boots are the outcomes of boots, one for each instance; Disappeared counts instances
	// that were gone without being asked to, by the stage that their nodes were in. All keys are there from the start.
	Boots       map[BootOutcome]uint64
	Disappeared map[muster.NodeStage]uint64
	// Blocks are what the providers said no to, and nobody yes since.
	Blocks []size.Block
	// Operations are what was asked of each provider, by name, operation and result.
	Operations []Operation
}

// Operation is how often a provider was asked for something with one result. Result "" is success.
type Operation struct {
	Provider muster.ProviderName
	cloud.Count
}

// Stats says what the fleet has done and does.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Creating, s.Destroying = len(f.memory.Creating), len(f.memory.Destroying)
	s.Boots, s.Disappeared = maps.Clone(f.boots.outcomes), maps.Clone(f.boots.disappeared)
	s.Blocks = slices.Clone(f.blocks.now(f.cfg.Clock.Now()))
	for _, name := range f.names {
		for _, c := range f.counts[name].Counts() {
			s.Operations = append(s.Operations, Operation{name, c})
		}
	}
	return s
}

// Decisions are the last ones about the size of the fleet, with what keeps
// waiting members waiting; nil before the first pass. They must not be changed.
func (f *Fleet) Decisions() *size.Decisions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decisions
}
