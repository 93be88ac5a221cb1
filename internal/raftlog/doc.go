// Package raftlog is the replicated log under Muster's state: hashicorp/raft
// over a write-ahead log on disk, one server by default.
//
// It gathers the proposals of many goroutines into one log entry and one fsync
// (group commit), hands committed entries in order to a [Machine], writes the
// machine's snapshots, lets a function live exactly as long as leadership does
// (Lead), and makes and restores backups. It knows bytes, never facts.
//
// It must never acknowledge what is not on disk, never try again after the disk
// refused something, and never open a directory that it does not understand or
// that another server holds. The first storage error ends the process with one
// sentence: after a failed fsync nobody knows what the kernel kept, and the
// only honest way to find out is to read the disk again from the start.
//
// The server opens it and runs it; the state implements Machine; control loops
// and API handlers propose through it.
//
// Goroutines. Open starts raft's own three (main, machine, snapshots) and the
// one of the write-ahead log. Run starts the rest: the committer, which carries
// entries from gathering to answer; the leadership watch; the snapshotter.
// A server does not become leader before Run, because raft waits for the watch.
package raftlog
