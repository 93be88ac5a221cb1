package apply

import (
	"cmp"
	"slices"

	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// heads asks the broker what is ahead of the plans of one batch, once for each priority. It is used
// for one batch only, as all answers are about one snapshot.
type heads struct {
	snap *state.Snapshot
	ask  Deliveries
	of   map[int]head
}

// head is one answer of Deliveries.Ahead.
type head struct {
	needs []verify.Need
	many  bool
}

// sort orders plans by priority, the highest first. So what they take is counted when the others
// are verified. All jobs of a plan have the same priority.
func (h *heads) sort(batch []*request) {
	for _, r := range batch {
		r.priority = h.priority(&r.Submission)
	}
	slices.SortStableFunc(batch, func(x, y *request) int { return cmp.Compare(y.priority, x.priority) })
}

// priority returns the priority of the first job of a plan that still exists; 0 if none does.
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

// yield removes from a plan the placements whose room work of higher priority needs, and returns
// them as refused.
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
	// There are too many kinds of work ahead to find room for each. Refuse all, and let the worker
	// plan again after them.
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
