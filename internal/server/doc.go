// Package server composes a Muster server, top to bottom: the log over the
// state, the loops of a leader, providers, the blob store and the HTTP API.
//
// It must never hold a rule of its own: what is decided is decided in the
// packages that it puts together. cmd/muster runs it; sim runs parts of it.
package server
