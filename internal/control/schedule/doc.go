// Package schedule contains the scheduling workers. A worker takes a window of evaluations, plans
// them all in one pass over a snapshot, has the plan committed, plans what was refused again on a
// newer snapshot, and answers for every job of the window.
//
// It must never place anything by itself, keep a window without answering for it, or call a job
// blocked while something of the same plan was refused: the room that was counted for the refused
// member would be forgotten.
//
// Several workers may run. Where two plan for the same room, the applier refuses the later plan,
// and its worker plans again. One more worker stands by for jobs of a higher priority than
// everything that is out. Without it, such jobs would wait until a whole window is planned and
// committed.
package schedule
