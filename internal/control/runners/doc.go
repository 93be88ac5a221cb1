// Package runners keeps environments stocked with warm runners and hands the runners out to claims.
//
// A claim takes a warm runner out of the stock in memory, commits one fact, and gets its answer.
// The fact is a compare-and-set. So whatever memory believes, no runner is given to two claims, and
// no claim's id reaches a client before the claim is in the log. Claims that find no warm runner
// wait in order. Package warm decides how many runners are wanted; this loop carries that out, ends
// claims whose time is over, and purges runners that ended long ago.
//
// Only memory knows when runners are used, and how many claims come. The log gets that in coarse
// steps, for the next leader: see use.go and demand.go.
//
// Package runners must never place or start a runner. It commits how many are wanted, and the loops
// that serve jobs do the rest. The server runs it for as long as it leads, and the API asks it for
// claims.
package runners
