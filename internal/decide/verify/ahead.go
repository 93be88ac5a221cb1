package verify

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Need is work that comes before a plan: so many members of a shape want room now.
type Need struct {
	Shape    *fit.Shape
	Priority int
	Members  int
}

// Yield takes out of a plan those nodes whose room the work ahead of it needs:
// work that fits the snapshot without this plan, and would not with it. What can go to
// other nodes, or beside the plan, keeps nobody back; nor does what fits nowhere. Of the work
// ahead, what the ledger has counted in needs nothing more.
//
// The needs come with the highest priority first. The plan is taken as it is, before Plan.
func (l *Ledger) Yield(placements []state.Placement, ahead []Need) (rest []state.Placement, refused []state.PlanRefusal) {
	if len(ahead) == 0 || len(placements) == 0 {
		return placements, nil
	}
	y := &yielding{l: l, planned: map[muster.NodeID]muster.Resources{}, taken: map[muster.NodeID]muster.Resources{}, gone: map[muster.NodeID]int{}}
	for _, p := range placements {
		if _, ok := y.planned[p.Node]; !ok {
			y.order = append(y.order, p.Node)
		}
		if j := l.job(p.UID); j.row != nil {
			y.planned[p.Node] = y.planned[p.Node].Add(j.row.Run.Ask)
		} else {
			y.planned[p.Node] = y.planned[p.Node].Add(muster.Resources{})
		}
	}
	counted := l.counted()
	for i := range ahead {
		n := &ahead[i]
		key := kind{n.Shape.ID, n.Priority}
		have := min(counted[key], n.Members)
		counted[key] -= have
		y.seat(n, n.Members-have)
	}
	if len(y.gone) == 0 {
		return placements, nil
	}
	for _, p := range placements {
		if priority, ok := y.gone[p.Node]; ok {
			refused = append(refused, state.PlanRefusal{Placement: p, NodeFault: true,
				Reason: fmt.Sprintf("node %s: its capacity is for work of priority %d, which comes first", p.Node, priority)})
		} else {
			rest = append(rest, p)
		}
	}
	return rest, refused
}

// kind is who may stand for whom: equal shapes of one priority.
type kind struct {
	shape    state.ShapeID
	priority int
}

// counted is how many members of each kind the ledger has placed.
func (l *Ledger) counted() map[kind]int {
	out := map[kind]int{}
	for _, j := range l.jobs {
		if j.row == nil {
			continue
		}
		if n := j.next - j.row.NextIndex + len(j.retried); n > 0 {
			out[kind{j.shape.ID, j.row.Priority()}] += n
		}
	}
	return out
}

// yielding is the working set of one Yield.
type yielding struct {
	l *Ledger
	// order is the plan's nodes as they come in it; planned what it puts on each.
	order   []muster.NodeID
	planned map[muster.NodeID]muster.Resources
	// taken is what needs before this one were given; gone are the nodes that the plan must leave, and for which priority.
	taken map[muster.NodeID]muster.Resources
	gone  map[muster.NodeID]int
}

// seat finds room for members of a need: on nodes that the plan does not use, beside
// the plan, and last in its place.
func (y *yielding) seat(n *Need, members int) {
	if members <= 0 {
		return
	}
	y.l.snap.LiveNodes(func(row *state.Node) bool {
		if _, used := y.planned[row.ID]; !used {
			members -= y.on(n, row.ID, muster.Resources{}, members)
		}
		return members > 0
	})
	for _, id := range y.order {
		if members > 0 {
			spoken := y.planned[id]
			if _, left := y.gone[id]; left {
				spoken = muster.Resources{}
			}
			members -= y.on(n, id, spoken, members)
		}
	}
	for _, id := range y.order {
		if _, left := y.gone[id]; left || members <= 0 {
			continue
		}
		if found := y.on(n, id, muster.Resources{}, members); found > 0 {
			members -= found
			y.gone[id] = n.Priority
		}
	}
}

// on seats what fits on a node of which so much is spoken for.
func (y *yielding) on(n *Need, id muster.NodeID, spoken muster.Resources, members int) int {
	a := y.l.node(id)
	if a.row == nil {
		return 0
	}
	free := a.free.Sub(y.taken[id]).Sub(spoken)
	if !n.Shape.Ask.Fits(free) || fit.Check(n.Shape, a.row, free, nil).Kind != fit.None {
		return 0
	}
	found := n.Shape.Ask.Times(free, members)
	y.taken[id] = y.taken[id].Add(muster.Resources{
		CPU: n.Shape.Ask.CPU * muster.MilliCPU(found), Memory: n.Shape.Ask.Memory * muster.Bytes(found), Disk: n.Shape.Ask.Disk * muster.Bytes(found),
	})
	return found
}
