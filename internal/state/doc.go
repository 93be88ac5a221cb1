// Package state is Muster's replicated state: the facts that change it, the
// apply function of each, rows in copy-on-write trees, O(1) snapshots and the
// change feed.
//
// It must never read a clock, a random source or the environment, start a
// goroutine, or do I/O: the same log gives the same bytes. Time enters with the
// entry, ids with the fact. Loops read it through Snapshot and Feed; only the
// raft log calls Apply.
package state
