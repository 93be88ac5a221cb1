package fleet

import (
	"time"

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
}

// Stats says what the fleet has done and does.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Creating, s.Destroying = len(f.memory.Creating), len(f.memory.Destroying)
	return s
}

// Decisions are the last ones about the size of the fleet, with what keeps
// waiting members waiting; nil before the first pass. They must not be changed.
func (f *Fleet) Decisions() *size.Decisions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decisions
}
