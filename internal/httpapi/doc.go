// Package httpapi is the HTTP API under /v1: handlers, one file per noun, that
// turn state rows into api types and requests into facts.
//
// It must never let a row or a fact out, decide anything, or answer 5xx to
// what a client did wrong. Package server gives it state, log, blobs and live
// output, and serves its Handler.
package httpapi
