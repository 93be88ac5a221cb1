// Package roll has standing jobs (type service and system) run what they say: it gives their members a new version a
// few at a time, moves them off nodes that drain, goes back to the version before when a rollout fails and the
// job asks for that, and keeps the number of members of system jobs.
//
// package decide/roll decides; this loop brings it the jobs that have changed and turns its verdicts into facts.
// It must never place anything, and never stop what it was not told to. Only a leader runs it.
package roll
