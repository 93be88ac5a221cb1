package fleet

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// BootOutcome is how the boot of an instance ended.
type BootOutcome string

// Boot outcomes. Each instance has one. It is counted when the boot is over.
const (
	// BootSuccess: its agent answered, and the node came into service.
	BootSuccess BootOutcome = "success"
	// BootFailure: the agent did not answer in time, or the node reported that it is broken before
	// it joined.
	BootFailure BootOutcome = "failure"
	// BootAborted: the instance was not wanted any more.
	BootAborted BootOutcome = "aborted"
	// BootDisappeared: the instance was gone before it joined.
	BootDisappeared BootOutcome = "disappeared"
)

// BootOutcomes returns all outcomes, in the order in which they are shown.
func BootOutcomes() []BootOutcome {
	return []BootOutcome{BootSuccess, BootFailure, BootAborted, BootDisappeared}
}

// boots counts how boots end. It decides by the rows and not by the changes between them, so a gap
// in the feed loses nothing: catchUp sees the same rows. Fleet.mu guards it.
type boots struct {
	// underWay holds the boots that have not ended. The value is true once the fleet has given the
	// boot up as failed.
	underWay map[muster.NodeID]bool
	// outcomes and disappeared hold the counts since this server began to lead.
	outcomes    map[BootOutcome]uint64
	disappeared map[muster.NodeStage]uint64
}

func newBoots() *boots {
	b := &boots{underWay: map[muster.NodeID]bool{}, outcomes: map[BootOutcome]uint64{}, disappeared: map[muster.NodeStage]uint64{}}
	for _, o := range BootOutcomes() {
		b.outcomes[o] = 0
	}
	for _, s := range vanishing() {
		b.disappeared[s] = 0
	}
	return b
}

// vanishing returns the stages in which the instance of a node should exist.
func vanishing() []muster.NodeStage {
	return []muster.NodeStage{muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining}
}

// failed records that the fleet gives up a boot because it failed. see counts it once the row shows
// it.
func (b *boots) failed(id muster.NodeID) {
	if _, ok := b.underWay[id]; ok {
		b.underWay[id] = true
	}
}

// see takes a node's row. It counts a boot when the row shows that it is over, once, because it
// removes the entry.
func (b *boots) see(n *state.Node) {
	failed, ok := b.underWay[n.ID]
	switch {
	case n.Stage == muster.NodeBooting || n.Stage == muster.NodeAdopted:
		if !ok {
			b.underWay[n.ID] = false
		}
		return
	case !ok:
		return
	case n.Joined != 0 && !failed:
		b.outcomes[BootSuccess]++
	case failed || n.Health == muster.NodeBroken:
		b.outcomes[BootFailure]++
	case n.Stage == muster.NodeGone:
		b.outcomes[BootDisappeared]++
	default:
		b.outcomes[BootAborted]++
	}
	delete(b.underWay, n.ID)
}

// change takes a change of a node.
func (b *boots) change(c *state.Change) {
	if c.Node == nil {
		return
	}
	if c.NodeBefore != nil && c.Node.Stage == muster.NodeGone && c.NodeBefore.Stage != muster.NodeGone {
		if _, counts := b.disappeared[c.NodeBefore.Stage]; counts {
			b.disappeared[c.NodeBefore.Stage]++
		}
	}
	b.see(c.Node)
}

// catchUp takes a whole state, when changes were missed or at the start.
func (b *boots) catchUp(snap *state.Snapshot) {
	for id := range b.underWay {
		if n := snap.Node(id); n != nil {
			b.see(n)
		} else {
			delete(b.underWay, id)
		}
	}
	snap.LiveNodes(func(n *state.Node) bool { b.see(n); return true })
}
