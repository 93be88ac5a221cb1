// Package size says how large the fleet should be, all pools at once: what to
// launch, drain and destroy, which jobs can never run, why members wait, and how pools stand against their
// budgets.
//
// It counts waiting members by shape against what is free and what is coming, and packs what is left on the
// nodes that cost the least for it. It must never touch a held node, take a pool over its maximum or budget or
// under its minimum, launch for what waits while the scheduler is paused, launch what a block names, or destroy a node that waiting work could use. It is pure: package fit
// says what fits, the fleet loop owns the View, brings it up to date and carries out; and what is planned again after that is nothing.
//
// A pass: fillAll gives the supply to the demands (fill.go), serveAll launches for what is left (launch.go,
// obstacle.go, budget.go), makeRoom ends what keeps others out at a limit (room.go), keepMinimum and keepSpare (keep.go), and
// turnNodes ends what nobody wants (turn.go). The View behind it is view.go, demand.go for what waits and seat.go for what there is.
package size
