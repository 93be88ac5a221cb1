// Package apply is the one place from which placements enter the log: it
// verifies the workers' plans against the newest state, with those on their
// way into the log counted in, and commits many in one fact.
//
// It must never commit what it has not verified, nor a plan whose delivery is
// over, and it decides nothing: what does not hold is refused to the worker, node by
// node, with the reason, and state checks once more when the fact is applied.
//
// The workers of control/schedule submit to it. One goroutine verifies; each batch that
// is on its way has one that waits for the log.
package apply
