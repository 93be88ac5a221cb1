// Package output keeps what programs of a sandbox print, in segment files of the sandbox's
// directory: a Stream for each stream of the sandbox's command, a Spool for each stream of a
// detached execution. A Source is init's end of what an execution prints to.
//
// A Stream must never block the command and never fail: it drops its oldest segments at its limit,
// and counts what the disk refuses. A Spool drops nothing that no reader has taken: at its limit,
// and when the disk is full, the program waits. Neither ever grows beyond its bounds. The names of
// segments are internal/wire/init's, because the agent reads those of streams.
//
// Package sandbox has the streams, package execs the spools and sources.
package output
