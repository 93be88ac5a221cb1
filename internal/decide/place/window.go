package place

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Window is a delivery of evaluations: jobs of one band of priority that are
// looked at in one pass.
type Window struct {
	// Token names the delivery. It is worth nothing once the delivery is over.
	Token uint64
	// Index is how new the snapshot must be at least.
	Index uint64
	Jobs  []muster.JobUID
}

// Decision is what came of a pass. Each job of the window is in exactly one of
// Done, Blocked and Left.
type Decision struct {
	// Index is that of the state it was made from: that of the view.
	Index uint64
	// Placements are grouped by node, the nodes in order of their ids. Members of a job
	// that were never placed are named in order of their index.
	Placements []state.Placement
	// Stops are allocations that are to give way to members of blocked jobs.
	Stops []state.Stop
	// Done want nothing more now: each member that wanted an allocation has a placement.
	Done []muster.JobUID
	// Blocked have members that fit nowhere; others of the same job may have placements.
	Blocked []Blocked
	// Left were not looked at to the end, because the pass had reached its limit.
	Left []muster.JobUID
}

// Blocked is a job with members that fit nowhere now.
type Blocked struct {
	UID   muster.JobUID
	Shape *fit.Shape
	// Waiting is how many members want an allocation now and have no placement.
	Waiting int
	// Full says that no node at all has room for the shape. Otherwise there is
	// some, but on nodes where the members that wait have failed.
	Full bool
	// Avoid are nodes on which each of the members that wait has failed: room
	// there is of no use to them.
	Avoid []muster.NodeID
	// Bound, if it names a namespace, is the limit that keeps the members that wait from being placed: no room is of use to them.
	Bound fit.Bound
}
