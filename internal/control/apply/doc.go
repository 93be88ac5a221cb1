// Package apply is the only place from which placements enter the log. It verifies the workers'
// plans against the newest state, including what is on its way into the log, and commits many of
// them in one fact.
//
// It must never commit what it has not verified, nor a plan whose delivery is over, and it decides
// nothing. It refuses what does not hold, node by node and with the reason, to the worker. The
// state checks once more when the fact is applied.
//
// A crash while a fact is under way leaves it committed or not. The next leader's broker looks at
// the state only, so nothing is placed twice.
//
// The workers of control/schedule submit plans.
package apply
