package verify

import "github.com/musterhq/muster/internal/state"

// Submission is a plan on its way to be committed: what a worker decided, and
// the delivery that entitles it to.
type Submission struct {
	// Token of the delivery that the plan answers.
	Token uint64
	// Placements are grouped by node: each run on one node is committed whole
	// or, if the node is the reason, refused whole.
	Placements []state.Placement
}

// Verdict tells what became of a plan.
type Verdict struct {
	// Placements that hold, in the order of the plan.
	Placements []state.Placement
	Refused    []state.PlanRefusal
	// Refresh is how new a snapshot must be to plan again: at least as new as
	// the one that refused and as what was committed.
	Refresh uint64
}
