package muster

// NetworkMode is what network a sandbox has.
type NetworkMode string

// Network modes. A sandbox without an image is a process of its node and has the host's.
const (
	// NetworkNone: a network of its own with nothing but its loopback.
	NetworkNone NetworkMode = "none"
	// NetworkBridge: a network of its own that reaches out, but neither its node nor the cloud's
	// metadata address; what is declared as a port is reached from outside.
	NetworkBridge NetworkMode = "bridge"
	// NetworkHost: the node's own network, and with it the cloud's metadata address and whatever credentials that gives out.
	NetworkHost NetworkMode = "host"
)
