package apply

import (
	"cmp"
	"slices"

	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// heads asks who is ahead of the plans of one batch, once for each priority.
type heads struct {
	snap *state.Snapshot
	ask  Deliveries
	of   map[int]head
}

type head struct {
	needs []verify.Need
	many  bool
}

// sort brings plans of higher priority to the front, so that what they take is counted
// in when the others are looked at. A plan is of one band.
func (h *heads) sort(batch []*request) {
	for _, r := range batch {
		r.priority = h.priority(&r.Submission)
	}
	slices.SortStableFunc(batch, func(x, y *request) int { return cmp.Compare(y.priority, x.priority) })
}

// priority is that of the first job of a plan that is still there.
func (h *heads) priority(s *verify.Submission) int {
	for i := range s.Placements {
		if j := h.snap.JobByUID(s.Placements[i].UID); j != nil {
			return j.Priority()
		}
	}
	for i := range s.Stops {
		if j := h.snap.JobByUID(s.Stops[i].For); j != nil {
			return j.Priority()
		}
	}
	return 0
}

// yield takes out of a plan what must give way.
func (h *heads) yield(ledger *verify.Ledger, priority int, s *verify.Submission) []state.PlanRefusal {
	if len(s.Placements) == 0 {
		return nil
	}
	who, asked := h.of[priority]
	if !asked {
		who.needs, who.many = h.ask.Ahead(h.snap, priority)
		h.of[priority] = who
	}
	var refused []state.PlanRefusal
	if who.many {
		for _, p := range s.Placements {
			refused = append(refused, state.PlanRefusal{Placement: p, NodeFault: true, Reason: "much other work of higher priority comes first"})
		}
		s.Placements = nil
		return refused
	}
	s.Placements, refused = ledger.Yield(s.Placements, who.needs)
	return refused
}
