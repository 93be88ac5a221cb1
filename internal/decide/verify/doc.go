// Package verify decides whether a plan is still true on a newer state, node by
// node: what holds is committed, what does not is refused with the reason.
//
// It must never refuse by another rule than package fit's, never look at a
// clock, and never put together what was planned apart: it takes placements
// away and changes none.
//
// The applier of control/apply calls it, on the newest snapshot with the plans that
// are on their way into the log counted in.
package verify
