package state

import (
	"slices"
	"strings"

	"github.com/musterhq/muster"
)

// historyLength bounds a node's history. Its first entries, which tell where it came
// from, are kept; then those before the newest fall out.
const historyLength, historyFirst = 48, 8

// remember puts a change of the node's dials into its history. What work does to its
// room is not among them: the allocations tell that.
func (n *Node) remember(verb string, now muster.Time) {
	e := NodeEvent{At: now, Verb: verb}
	switch {
	case verb == "", verb == "node.used", verb == "node.freed", verb == "node.images":
		return
	case verb == "node.reserved", verb == "node.released":
	case verb == "node.plans-refused":
		e.Reason = n.PlansRefused.Reason
	case strings.HasPrefix(verb, "node.intent-"), verb == "node.evicted":
		e.Reason, e.Who = n.IntentReason, n.IntentWho
	case verb == "node.health-reason", verb == "node."+string(n.Health):
		e.Reason = n.HealthReason
	default:
		e.Reason, e.Who = n.StageReason, n.StageWho
	}
	last := len(n.History) - 1
	if verb == "node.health-reason" && last >= 0 && n.History[last].Verb == verb {
		// Said again in other words: the newest are enough.
		n.History = append(slices.Clone(n.History[:last]), e)
		return
	}
	kept := n.History
	if len(kept) >= historyLength {
		kept = slices.Delete(slices.Clone(kept), historyFirst, historyFirst+1)
		n.HistoryLost++
	}
	// Clipped: rows that share the array must not see each other's entries.
	n.History = append(slices.Clip(kept), e)
}
