package state

import (
	"slices"

	"github.com/musterhq/muster"
)

// historyLength bounds a node's history. Its first entries, which tell where it came
// from, are kept; then those before the newest fall out.
const historyLength, historyFirst = 48, 8

// remember adds a change to the node's history, with the reason that belongs to it.
func (n *Node) remember(verb Verb, now muster.Time) {
	if !verb.isHistory() {
		return
	}
	e := NodeEvent{At: now, Verb: verb}
	switch {
	case verb == VerbNodeReserved, verb == VerbNodeReleased:
	case verb == VerbNodePlansRefused:
		e.Reason = n.PlansRefused.Reason
	case verb.isIntent(), verb == VerbNodeEvicted:
		e.Reason, e.Who = n.IntentReason, n.IntentWho
	case verb == VerbNodeHealthReason, verb == verbOfHealth(n.Health):
		e.Reason = n.HealthReason
	default:
		e.Reason, e.Who = n.StageReason, n.StageWho
	}
	last := len(n.History) - 1
	if verb == VerbNodeHealthReason && last >= 0 && n.History[last].Verb == verb {
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
