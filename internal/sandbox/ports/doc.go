// Package ports connects clients with ports inside a sandbox, and lists the ports that somebody
// inside listens on.
//
// It makes connections by system calls and not by package net, which would cost init a tenth of its
// start. It must never hold a slot of a gate while it waits for either end of a connection. It
// knows no protocol but TCP, and no address but the loopback ones of the sandbox.
//
// Package sandbox hands operations over to it.
package ports
