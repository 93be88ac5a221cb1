// Package static is a provider of hosts that an operator has: they are written in
// the configuration, and are neither made nor destroyed. To create is to take a free host, to destroy is to have
// everything of Muster on it ended and to give it back.
//
// The fleet calls it like any provider. It must never give out a host that is in use, give
// back one as free on which something of a node may still run, or do anything to a host itself: that is Hosts'.
package static
