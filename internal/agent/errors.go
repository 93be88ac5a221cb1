package agent

import "errors"

// Errors of runtimes.
var (
	// ErrNoSandbox: no sandbox was ever started in the directory.
	ErrNoSandbox = errors.New("no sandbox was started here")
	// ErrNoFreezer: sandboxes cannot be frozen on this node, or not this one.
	ErrNoFreezer = errors.New("sandboxes cannot be frozen here: there is no freezer among the cgroups")
	// ErrOutputDropped: the bytes asked for were dropped by the output limit.
	ErrOutputDropped = errors.New("that part of the output was dropped by the output limit")
)
