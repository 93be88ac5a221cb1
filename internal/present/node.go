package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// NodeProblem says why the work on a node may be lost: the node is lost or is being destroyed. It
// returns "" if neither is so, and for nil.
func NodeProblem(n *state.Node) string {
	switch {
	case n == nil:
		return ""
	case n.Stage == muster.NodeTerminating:
		return "node " + string(n.ID) + " is being destroyed" + muster.Because(n.StageReason)
	case n.Health == muster.NodeLost:
		return "node " + string(n.ID) + " is lost" + muster.Because(n.HealthReason)
	}
	return ""
}

// Node shows a node without its history. The price is in whole units of the operator's currency,
// per hour. The reason is that of bad health, else that of the stage, else that of the intent: an
// operator should look at the first of these.
func Node(n *state.Node) api.Node {
	reason := n.StageReason
	if n.Health != muster.NodeGood && n.HealthReason != "" && n.Stage != muster.NodeGone {
		reason = n.HealthReason
	}
	if reason == "" && n.Intent != muster.NodeRun {
		reason = n.IntentReason
	}
	boot := n.BootError
	if n.Joined != 0 {
		boot = "" // the error was overcome: the agent came into service
	}
	return api.Node{
		ID: string(n.ID), Pool: string(n.Pool), Provider: string(n.Offering.Provider), Offering: string(n.Offering.Name),
		Zone: n.Offering.Zone, Market: string(n.Offering.Market), Price: float64(n.Offering.Price) / 1e6,
		Instance: string(n.Instance), Stage: string(n.Stage), Health: string(n.Health), Intent: string(n.Intent),
		Schedulable: n.Schedulable(), Reason: reason,
		Capacity: Resources(n.Capacity), Used: Resources(n.Used), Allocs: n.LiveAllocs, Taken: string(n.Taken),
		AgentVersion: n.Agent, Attributes: n.Attributes,
		StageSince: Time(n.StageSince), IntentReason: n.IntentReason, IntentWho: n.IntentWho, IntentSince: Time(n.IntentSince), IntentUntil: Time(n.IntentUntil),
		BootError: boot, Sidelined: Time(n.SidelinedUntil),
		Launched: n.Launched.Std(), Joined: Time(n.Joined), Gone: Time(n.Gone),
	}
}

// NodeWithHistory shows a node with its devices, cached data and history, and the failures that
// still count at now. Lists of nodes leave these out, because the history of each node has many
// entries.
func NodeWithHistory(n *state.Node, now muster.Time) api.Node {
	out := Node(n)
	for _, d := range n.Devices() {
		out.Devices = append(out.Devices, d.String())
	}
	for _, k := range n.Warm {
		out.Warm = append(out.Warm, string(k))
	}
	// WarmAt is when the node was last given work of one of the keys. Without keys it says nothing.
	if len(n.Warm) > 0 {
		out.WarmAt = Time(n.WarmAt)
	}
	for _, f := range n.Recent(now) {
		out.Failures = append(out.Failures, api.NodeFailure{Time: f.At.Std(), What: f.What})
	}
	out.HistoryLost = n.HistoryLost
	for _, e := range n.History {
		out.History = append(out.History, api.NodeEvent{Time: e.At.Std(), Type: string(e.Verb), Reason: e.Reason, Who: e.Who})
	}
	return out
}
