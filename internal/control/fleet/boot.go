package fleet

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// BootOutcome is what became of the boot of an instance.
type BootOutcome string

// Boot outcomes. Each instance has one, counted when its boot is over.
const (
	// BootSuccess: its agent answered, and the node came into service.
	BootSuccess BootOutcome = "success"
	// BootFailure: it did not in time, or the node said that it is broken before it did.
	BootFailure BootOutcome = "failure"
	// BootAborted: it was not wanted any more.
	BootAborted BootOutcome = "aborted"
	// BootDisappeared: the instance was gone before.
	BootDisappeared BootOutcome = "disappeared"
)

// BootOutcomes are all, in the order in which they are shown.
func BootOutcomes() []BootOutcome {
	return []BootOutcome{BootSuccess, BootFailure, BootAborted, BootDisappeared}
}

// boots follows instances from their first moment to the outcome of their boot.
// It goes by what a row shows and not by what changed, so that a feed that has moved on loses nothing.
type boots struct {
	// under way; true: it was given up because it had failed.
	underWay    map[muster.NodeID]bool
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

// vanishing are the stages in which an instance ought to be there.
func vanishing() []muster.NodeStage {
	return []muster.NodeStage{muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining}
}

// failed says that a boot is given up because it did not come to its end.
func (b *boots) failed(id muster.NodeID) {
	if _, ok := b.underWay[id]; ok {
		b.underWay[id] = true
	}
}

// see takes in a node as it is now.
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
	case n.Joined != 0:
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

// change takes in how a node changed.
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

// catchUp takes in a whole state, when changes were missed or none has been seen.
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
