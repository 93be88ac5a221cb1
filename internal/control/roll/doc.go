// Package roll makes standing jobs (of type service and system) run what they specify. It gives
// their members a new version, a few at a time, moves them off nodes that drain, reverts to the
// version before if a rollout fails and the job asks for that, and keeps the number of members of
// system jobs.
//
// Package decide/roll decides. This loop brings it the jobs that have changed, and turns its
// verdicts into facts. It must never place anything, and never stop what the verdict does not stop.
// Only a leader runs it.
package roll
