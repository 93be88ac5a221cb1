package place

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// A member of a system job belongs to its node: one that waits for another attempt goes back there, and
// nowhere else, and no other member of the job takes its place meanwhile.

const never muster.Time = 1<<63 - 1

// homes finds the nodes of members that wait, and takes them out of sight of those that were never placed.
func (p *pass) homes(s *setting) {
	s.homes = map[int]*seat{}
	p.snap.Retries(s.job.UID).Due(never, func(m *state.Member) bool {
		if a := p.snap.Alloc(m.Alloc()); a != nil && !a.Live() {
			if home := p.view.nodes[a.Node]; home != nil && home.row != nil {
				s.homes[m.Index] = home
				if !home.lifted {
					p.view.lift(home)
					home.lifted = true
					s.lifted = append(s.lifted, home)
				}
			}
		}
		return true
	})
}

// home is the node that a member comes back to; nil: there is no room, or the node must not be used.
func (s *setting) home(m *state.Member) *seat {
	home := s.homes[m.Index]
	shape := s.field.shape
	if home == nil || !home.row.Schedulable() || fit.Feasible(shape, home.row) != "" || shape.Short(home.space, home.row.Devices()) != "" {
		return nil
	}
	return home
}
