// Package schedule is the workers: each takes a window of evaluations, plans
// them all in one pass over a snapshot, has the plan committed, goes on with what was
// refused on a newer snapshot, and answers for every job of the window.
//
// It must never place anything by itself, hold a window without answering for
// it, or call a job blocked while something of the same plan was refused: room that
// a refused member was counted for would be forgotten.
//
// Several workers may run; they know nothing of each other. Where they plan for
// the same room, the applier refuses the later one, which plans again. One more stands by for
// what is of a higher priority than all that the others have out: it would else wait until a whole window
// is planned and committed.
package schedule
