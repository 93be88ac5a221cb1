// Package transfer moves files: into and out of sandboxes (muster cp, muster ls), from this host to
// the server as inputs of a job, and from the server to this host as its outputs.
//
// What comes from a sandbox is not trusted. It is unpacked into the copy and nowhere else, and no
// link is followed on the way; see untar for the rules. The package must never write outside of
// the destination that the user has named.
//
// The packages jobs and runners use it for inputs and outputs; the program has its commands.
package transfer
