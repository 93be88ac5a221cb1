// Package launch works out what a runtime is told of an allocation: from the job, and from the
// image if it has one, come the command, its environment and its directories. Package agent calls
// it before it asks a runtime.
//
// It must never ask a runtime, take a network, or make anything but the allocation's own
// directories.
package launch
