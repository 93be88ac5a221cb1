// Package launch works out the configuration that a runtime gets: from the job, and from the
// image if it has one, come the command, its environment and its directories. Package agent calls
// it before it asks a runtime.
//
// It must never ask a runtime, take a network, or make anything but the allocation's own
// directories.
package launch
