// Package broker holds the evaluations of a leader: which jobs a scheduler has to look at, in which
// order, which ones a worker has, and which ones wait, for a time, for room or for another try.
//
// All of it is in the leader's memory and is derived from the state. Run builds it from the
// unsettled jobs and from the deadlines of the others, at a cost in proportion to those two, and
// then follows the change feed. A crash loses nothing: the next leader builds it again.
//
// The broker must never give a job to two workers, never forget a job that wants something, and
// never hold its lock across anything that blocks. It decides no placement. Workers of
// control/schedule take windows of jobs and answer each with Ack, Nack or Block. control/apply asks
// whether a delivery is still out.
//
// Every evaluation is in exactly one stage:
//
//	ready    waits for a worker, in order of priority, then age
//	out      a worker has it, until the worker answers or the delivery times out
//	delayed  until a time: a back-off of the job, or the delay after a nack
//	blocked  until room grows that its shape could use, or its limit allows more
//	parking  a fact is being proposed that parks or unparks its job
//	parked   by a fact, until the job changes or the fact's time is over
package broker
