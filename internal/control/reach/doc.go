// Package reach connects to the agents of nodes: through the provider where that has a way of its
// own (such as a socket on this host), else over SSH. Over SSH it keeps one connection to each
// host, puts muster-node there, runs the boot probe of a new instance and starts its agent.
//
// Package link and package check call it. The provider static uses it to clear and to measure
// hosts. It must never send anything to a host whose key is not known beforehand, start an agent
// before the boot probe has passed, or wait without a deadline.
package reach
