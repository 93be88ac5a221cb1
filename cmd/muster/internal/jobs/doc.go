// Package jobs has the commands about jobs: muster run, which submits a job and follows it, and
// muster job with all that is below it.
//
// Following a job is the larger part. The follower learns of allocations from events, prints their
// output while it is made, and goes on over restarts of the server. It must never lose output that
// it could have printed, nor print any twice.
//
// It must never speak to a node or read a server's files: all it knows comes through the client.
// The program has its commands.
package jobs
