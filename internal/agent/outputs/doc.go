// Package outputs makes a tar of each output that a job has declared, when its command has ended
// well.
//
// Package agent calls it for each allocation, and serves the tars to the server until that has
// them.
//
// It must never follow a link out of the work directory, wait for ever at what a command has put
// there, or take the last room on the node's disk: everything that it reads is the work of a
// command that nobody trusts.
package outputs
