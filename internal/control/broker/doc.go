// Package broker holds the evaluations of a leader: which jobs want to be
// looked at, in what order, which are out with a worker, and which wait, for a
// time, for room, or to be given another chance.
//
// All of it is memory of the leader, derived from the state: Run builds it from
// the jobs that are unsettled and the deadlines of the rest, in the length of
// those two, and then follows the change feed. Losing it loses nothing.
//
// It must never have a job out twice, never forget one that wants something, and
// never hold its lock across anything that blocks. It decides no placement: workers
// of control/schedule take windows of jobs and answer for each with Ack, Nack or
// Block; control/apply asks whether a delivery is still out.
//
// Every evaluation is in exactly one stage:
//
//	ready    wants a worker, in order of priority, then age
//	out      with a worker, until it answers or the delivery times out
//	delayed  until a time: a back-off of the job's own, or after a nack
//	blocked  until room grows that its shape could use
//	parking  a fact is being proposed that parks or unparks its job
//	parked   by a fact, until the job changes or the fact's time is over
package broker
