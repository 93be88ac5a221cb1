// Package server composes a Muster server from its parts: the log and the state that it drives, the
// loops of a leader, the providers, the blob store and the HTTP API.
//
// A server has three layers with different lifetimes. The log, the state, the blob store and the
// API live as long as the process. The connections to nodes live as long as a leadership. The loops
// and the providers live as long as a configuration: a reload ends them and starts new ones (turn).
// Everything that outlives the loops reaches them through an atomic pointer (loopStats), which is
// nil while this server does not lead.
//
// The package must never have a rule of its own: the packages that it composes decide. cmd/muster
// runs a server; internal/sim runs parts of one.
package server
