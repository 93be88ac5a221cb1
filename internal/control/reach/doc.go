// Package reach gets to the agents of nodes: by the provider itself where it has
// a way of its own (a socket on this host), else over SSH. It keeps one connection to each host, puts
// muster-node there, probes a new instance and starts its agent.
//
// The link and the check of a provider call it; the provider static has hosts cleared and
// measured by it. It must never send anything to a host whose key is not known beforehand,
// start an agent before the boot probe has passed, or wait without a deadline.
package reach
