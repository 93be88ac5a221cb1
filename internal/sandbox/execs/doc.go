// Package execs runs executions: commands that run in a sandbox beside its own. It starts them,
// passes on what they read and print, or keeps what a detached one prints, resizes their terminals,
// signals them, ends them at their time limit or when their client leaves, and tells how they
// ended.
//
// No exit status must ever be lost, and no signal must ever hit a stranger: see Executions for who
// reaps, and when. A slow client holds up its own execution only. The package never decides what an
// end means: it tells facts. It holds the output of detached executions within bounds, and forgets
// the oldest.
//
// Package sandbox hands operations over to it, and its loop reaps through it.
package execs
