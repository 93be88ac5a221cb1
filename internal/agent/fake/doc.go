// Package fake is a runtime for tests of the agent: sandboxes without
// processes, that do what their command says. It works inside a synctest bubble.
//
// It must never start a process, read a clock other than package time's, or be linked into a
// program. Tests of the agent core use it; it passes the same conformance suite as the real runtimes.
//
// What survives an agent lives in a Node: a new Runtime on the same Node finds
// the old one's sandboxes, as a new agent would. Close the Node at the end of the test.
//
// # Commands
//
// A command is words, and ";" between steps:
//
//	exit CODE               ends
//	signal NAME             ends by the signal, SIGSEGV for example
//	sleep DURATION          TERM ends it
//	polite DURATION CODE    the same, but TERM makes it exit with CODE
//	deaf DURATION           does not mind TERM
//	until FILE              sleeps until a file (in the work directory) is there; TERM ends it
//	busy DURATION           sleeps, and uses processor time
//	stdout TEXT, stderr TEXT
//	print N [stderr]        N bytes, see Pattern
//	env, pwd                prints its environment, its work directory
//	write FILE TEXT         writes a file in the work directory
//	hog                     goes over its memory limit, if it has one
//	die                     its init dies: sandbox-died
//	fail CLASS REASON TEXT  (first step only) the start fails like this
//
// A command that comes to its end exits with 0. A first word that is none of these is a command that is not found.
package fake
