// Package linktest has what tests of loops need around them: a log in memory
// over the real state, and nodes in memory whose agents speak the real protocol over
// pipes and run scripts instead of commands.
//
// It must never be linked into the server. Tests of the loops and sim use it,
// mostly inside a synctest bubble: nothing in it reads a disk, a socket or a random source.
package linktest
