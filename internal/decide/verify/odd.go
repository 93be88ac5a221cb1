package verify

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// unchanged are those nodes of a plan where nothing has happened since it was made: the row is the
// same, and nothing that is on its way goes there. That such a node refuses its part has no good reason.
type unchanged map[muster.NodeID]bool

func (l *Ledger) unchanged(s *Submission) unchanged {
	if s.Index == 0 {
		return nil
	}
	var out unchanged
	var last muster.NodeID
	for i := range s.Placements {
		id := s.Placements[i].Node
		if id == last {
			continue
		}
		last = id
		if a := l.node(id); a.row != nil && a.row.Modified <= s.Index && !a.touched {
			if out == nil {
				out = unchanged{}
			}
			out[id] = true
		}
	}
	return out
}

// among are those that refused all the same, each once, in the order of the refusals.
func (u unchanged) among(refused []state.PlanRefusal) (odd []OddNode) {
	for i := range refused {
		r := &refused[i]
		if r.NodeFault && u[r.Placement.Node] {
			delete(u, r.Placement.Node)
			odd = append(odd, OddNode{r.Placement.Node, r.Reason})
		}
	}
	return odd
}
