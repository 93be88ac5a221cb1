// Package runners keeps environments stocked and hands their runners out.
//
// A claim is: take a warm runner out of the stock in memory, commit one fact, answer. The fact is a
// compare-and-set, so whatever memory believes, no runner is given to two, and no id leaves before the log has
// the claim. Claims that find nothing warm wait in order. The loop decides by package warm how many runners
// are wanted, ends claims whose time is over, and forgets runners that are long gone.
//
// Uses of runners are known here only, and written down now and then: a new leader takes its own
// beginning for the last use of every one.
//
// It must never place or start a runner: it says how many are wanted, and the same loops as for jobs do the
// rest. The server runs it for as long as it leads, and the API asks it for claims.
package runners
