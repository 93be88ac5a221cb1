// Package explain says why things are as they are: why a job waits and when a member may start,
// where a submission would be placed, what a node waits for and when it ends.
//
// An explanation is data of the API: counts, classes, candidates and their scores, with sentences
// for people in the field Text. It is made from a snapshot, by the rules that the scheduler and
// the fleet decide by (packages decide/place, size, fit and expect), so that it cannot disagree with
// them. What the leader's loops know beside the state comes through the interface Loops.
//
// The package is pure. It must never have a rule of its own, change anything, read a clock, or
// know a transport. httpapi calls it. Explaining a large job on a large cluster takes many
// milliseconds of CPU: callers bound how many explanations run at once.
package explain
