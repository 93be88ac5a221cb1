package expect

import (
	"cmp"
	"container/heap"
	"maps"
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
	// Unknown counts allocations whose end cannot be estimated.
	Unknown int
}

// place is what is free on one node, and what keeps a member of the job from it.
type place struct {
	node *state.Node
	free fit.Space
	// members is how many live members of the job are there. It counts only for a job on distinct hosts.
	members int
}

// Start estimates when an existing node has capacity for one more member of a job, when so many
// other members with the same needs are served before. An allocation is expected to end when its
// job's pace says so; one that is overdue by d is expected to end d from now.
func Start(snap *state.Snapshot, job muster.JobUID, shape *fit.Shape, ahead int, now muster.Time) Estimate {
	out := Estimate{Ahead: ahead}
	places := map[muster.NodeID]*place{}
	var ends queue
	snap.LiveNodes(func(n *state.Node) bool {
		if o := fit.Check(shape, n, fit.Room(n), nil); o.Kind != fit.None && o.Kind != fit.Short {
			return true
		}
		p := &place{node: n, free: fit.SpaceOf(n)}
		places[n.ID] = p
		snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			if a.UID == job {
				p.members++
			}
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
	// Members that are served before are those of other jobs: what this job has on a node does not
	// keep them from it.
	others := *shape
	others.Distinct = false
	served := 0
	serve := func(p *place) bool {
		k := others.Times(p.free, p.node.Devices(), ahead-served)
		p.free = others.Take(p.free, -1, p.node.Devices(), k)
		served += k
		return served == ahead && (!shape.Distinct || p.members == 0) && shape.Times(p.free, p.node.Devices(), 1) == 1
	}
	for _, id := range slices.Sorted(maps.Keys(places)) {
		if serve(places[id]) {
			out.Start = now
			return out
		}
	}
	for len(ends) > 0 {
		e := heap.Pop(&ends).(end)
		out.Ends++
		p := places[e.alloc.Node]
		p.free.Resources = p.free.Add(e.alloc.Run.Ask)
		p.free.Taken = p.free.Taken.Release(e.alloc.Run.Names, e.alloc.Grant)
		if e.alloc.UID == job {
			p.members--
		}
		if serve(p) {
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
