// Package sim runs a whole Muster in one bubble of simulated time: all loops
// over a log in memory, a fake cloud, and nodes whose agents speak the real
// protocol over pipes. A scenario says what is submitted and what goes wrong, as text; a seed
// draws one. Invariants are checked after each fact (watch.go), and the outcome at the end (end.go).
//
// One seed is one run, to the nanosecond: see actor.go. A server that is killed begins anew from its
// log, and must come to the same state; what raft does between servers is package raftlog's to test.
//
// It must never be linked into a program. `make sim SEEDS=500` runs many seeds; CONTRIBUTING.md says
// how one that failed is looked at.
package sim
