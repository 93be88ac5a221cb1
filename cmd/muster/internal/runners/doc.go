// Package runners has the commands about environments and their runners: muster env, claim,
// release, extend, runner and x.
//
// An environment keeps runners warm, a claim takes one of them, and x claims a runner for the
// length of one command. The package must never leave a runner behind that it has claimed by
// itself: x releases its runner however the command ends.
//
// The program has its commands.
package runners
