// Package tunnel carries bytes between a connection to the agent and one to the init of a sandbox,
// or hands the one to init over to a peer on the same machine.
//
// Package agent calls it when a server asks for a tunnel. It must never read what is said, keep
// what does not fit into a buffer, or wait for ever for a side that has left.
package tunnel
