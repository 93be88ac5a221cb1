// Package claim hands runners to those who claim them, and takes the runners back. It is the
// service behind every transport: it checks what is asked for, says why a runner cannot be had or
// is gone, and derives the secrets by which holders use their runners.
//
// It must never choose a runner, which is the business of the loop that hands them out, and it
// keeps nothing: all that it knows is in the state. internal/httpapi, internal/compat/* and
// internal/door use it; internal/server makes it.
package claim
