package verify

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Submission is a plan on its way to be committed: what a worker decided, and
// the delivery that entitles it to.
type Submission struct {
	// Token of the delivery that the plan answers.
	Token uint64
	// Index is that of the snapshot it was made from; 0 if that is not known.
	Index uint64
	// Placements are grouped by node: each run on one node is committed whole
	// or, if the node is the reason, refused whole.
	Placements []state.Placement
	// Stops are held each by itself.
	Stops []state.Stop
	// Whole: all of it holds, or none of it is committed.
	Whole bool
}

// Verdict tells what became of a plan.
type Verdict struct {
	// Placements that hold, in the order of the plan.
	Placements []state.Placement
	Refused    []state.PlanRefusal
	// Stops that hold, in the order of the plan.
	Stops        []state.Stop
	RefusedStops []state.StopRefusal
	// Yielded: some of it was refused for the sake of work that comes first. Planning it again makes sense
	// only after that.
	Yielded bool
	// Odd are nodes whose part was refused although nothing had changed there since the plan was made: by
	// the rule that it was made by, it should have held.
	Odd []OddNode
	// Refresh is how new a snapshot must be to plan again: at least as new as
	// the one that refused and as what was committed.
	Refresh uint64
}

// OddNode is a node whose part of a plan was refused for no reason that is known.
type OddNode struct {
	ID     muster.NodeID
	Reason string
}
