// Package client speaks Muster's HTTP API: a method for each endpoint, on the
// types of package api. The CLI is built on it, and programs may be.
//
// Requests that may be repeated (all of them: reads, submissions with an
// idempotency key, stops, uploads by digest) are repeated with back-off while the server
// cannot be reached, for Config.RetryFor. Events and followed output go on by
// themselves over lost connections and restarts of the server, without gap or repetition.
//
// A refusal comes back as *api.Problem; a server that cannot be reached as
// *Unreachable; events that are no longer kept as *TooOld. It must never decide
// anything for its caller, nor repeat a submission that has no key.
package client
