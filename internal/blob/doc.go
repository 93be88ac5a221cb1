// Package blob keeps what is too large for the log: the output of allocations and the inputs that
// users upload, in a directory or in a bucket (blob/buckets).
//
// It must never be linked into muster-node, nor decide what is kept: it deletes what it is told to.
// The link writes output, the reaper deletes it, the HTTP API reads it and takes uploads.
package blob
