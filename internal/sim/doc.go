// Package sim runs a whole Muster in one bubble of simulated time: all loops
// over a log in memory, a fake cloud, and nodes whose agents speak the real
// protocol over pipes. A seed says what is submitted and what goes wrong;
// invariants are checked after each fact.
//
// It must never be linked into a program. `make sim SEEDS=500` runs many seeds;
// a seed that fails runs again alone with -sim.first.
package sim
