// Package expect estimates when a member that waits for room may start, from how
// long the jobs that hold the room have taken before.
//
// It is a guess for people and must never be what anything is decided by. It looks at nodes that are there; what the
// fleet may launch is another's to know. The API asks it for explain.
package expect

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// most bounds how many ends are looked at.
const most = 100_000

// Estimate is when the next member of a job may start, and what that is worth.
type Estimate struct {
	// Start is the moment; 0: nothing is known.
	Start muster.Time
	// Ends is how many allocations must have ended by then; Ahead how many members are served before.
	Ends, Ahead int
	// Unknown is how many allocations there hold room of which nothing is known.
	Unknown int
}

// Start estimates when a node that is there has room for one more member of the
// shape, when so many others with the same needs are served before. An allocation ends when its job's
// pace says so; one that has run for longer already, as much later again as it is overdue.
func Start(snap *state.Snapshot, shape *fit.Shape, ahead int, now muster.Time) Estimate {
	out := Estimate{Ahead: ahead}
	nodes := map[muster.NodeID]muster.Resources{}
	var ends queue
	snap.LiveNodes(func(n *state.Node) bool {
		if o := fit.Check(shape, n, fit.Room(n), nil); o.Kind != fit.None && o.Kind != fit.Short {
			return true
		}
		nodes[n.ID] = fit.Room(n)
		snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			if at := endOf(snap, a, now); at != 0 {
				ends = append(ends, end{at, a})
			} else {
				out.Unknown++
			}
			return len(ends) < most
		})
		return len(ends) < most
	})
	heap.Init(&ends)
	// Who is served before takes the room that is there first.
	served := 0
	serve := func(id muster.NodeID) bool {
		k := shape.Ask.Times(nodes[id], ahead+1-served)
		nodes[id] = nodes[id].Sub(shape.Ask.By(k))
		served += k
		return served > ahead
	}
	ids := make([]muster.NodeID, 0, len(nodes))
	for id := range nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if serve(id) {
			out.Start = now
			return out
		}
	}
	for len(ends) > 0 {
		e := heap.Pop(&ends).(end)
		out.Ends++
		nodes[e.alloc.Node] = nodes[e.alloc.Node].Add(e.alloc.Run.Ask)
		if serve(e.alloc.Node) {
			out.Start = max(e.at, now)
			return out
		}
	}
	return out
}

// endOf is when an allocation may end; 0: nothing is known of its job.
func endOf(snap *state.Snapshot, a *state.Alloc, now muster.Time) muster.Time {
	if a.Desired == muster.AllocStop {
		return now
	}
	p := snap.Pace(a.Run.Key)
	if p == nil {
		return 0
	}
	began := cmp.Or(a.Started, a.Placed)
	due := began + p.Mean
	if due < now {
		// It takes longer than most: the longer it has, the longer it will.
		due = now + (now - due)
	}
	return due
}

type end struct {
	at    muster.Time
	alloc *state.Alloc
}

// queue is a heap of ends, the earliest first.
type queue []end

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[k].at), cmp.Compare(q[i].alloc.ID, q[k].alloc.ID)) < 0
}
func (q queue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }

// Push and Pop are for package heap.
func (q *queue) Push(x any) { *q = append(*q, x.(end)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}
