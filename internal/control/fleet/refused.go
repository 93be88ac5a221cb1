package fleet

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
)

// failureOf is the text of a failure; empty if there is none.
func failureOf(f *muster.Fault) string {
	if f == nil {
		return ""
	}
	return f.Error()
}

// refusal is an instance that its provider accepted and then could not make run.
type refusal struct {
	node     muster.NodeID
	instance muster.InstanceID
	fault    *muster.Fault
	// again is for how long nothing is launched in the scope of the fault.
	again time.Duration
}

// refusedLocked blocks the scopes of instances that are listed as failed for the first time, as a
// refused create would have. Package mend ends their nodes. f.mu is held.
func (f *Fleet) refusedLocked(name muster.ProviderName, seen []cloud.Instance, snap *state.Snapshot) (out []refusal) {
	var failed map[muster.Token]*cloud.Instance
	for i := range seen {
		if seen[i].Failed != nil {
			if failed == nil {
				failed = map[muster.Token]*cloud.Instance{}
			}
			failed[seen[i].Tags.Token] = &seen[i]
		}
	}
	if failed == nil {
		return nil
	}
	now := f.cfg.Clock.Now()
	snap.LiveNodes(func(n *state.Node) bool {
		in := failed[n.Token]
		// A node that has joined is told by its own health.
		if in == nil || n.Offering.Provider != name || n.Joined != 0 || f.refused[n.ID] {
			return true
		}
		f.refused[n.ID] = true
		f.stats.CreateFaults++
		b := f.blocks.add(&n.Offering, in.Failed, now.Std(), snap)
		out = append(out, refusal{node: n.ID, instance: in.ID, fault: in.Failed, again: b.Until.Sub(now)})
		return true
	})
	return out
}
