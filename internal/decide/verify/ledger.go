package verify

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Ledger is a snapshot with plans counted in that are not in it yet. It is a
// value of one goroutine.
type Ledger struct {
	snap  *state.Snapshot
	nodes map[muster.NodeID]*account
	jobs  map[muster.JobUID]*line
}

// account is a node and its room, less what the ledger gave away.
type account struct {
	row  *state.Node // nil: there is no such node
	free muster.Resources
}

// line is a job and which of its members the ledger has placed.
type line struct {
	row   *state.Job // nil: there is no such job
	shape *fit.Shape
	// next is the first member that neither the snapshot nor the ledger has placed.
	next    int
	retried map[int]bool
}

// On makes a ledger of a snapshot alone.
func On(snap *state.Snapshot) *Ledger {
	return &Ledger{snap: snap, nodes: map[muster.NodeID]*account{}, jobs: map[muster.JobUID]*line{}}
}

// Count takes in placements that were found true before and are on their way
// into the log. What the snapshot has already is passed over.
func (l *Ledger) Count(placements []state.Placement) {
	for _, p := range placements {
		j, n := l.job(p.UID), l.node(p.Node)
		if j.row == nil || j.row.Version != p.Version || n.row == nil {
			continue // the state will refuse it
		}
		if p.Index < j.row.NextIndex {
			if m := l.snap.Member(p.UID, p.Index); m == nil || m.Attempt >= p.Attempt {
				continue
			}
		}
		j.take(p)
		n.free = n.free.Sub(j.row.Run.Ask)
	}
}

// Plan finds what of a plan holds, and counts that in. Refresh is the index of
// the snapshot; where plans were counted in, it takes their index too.
func (l *Ledger) Plan(placements []state.Placement) Verdict {
	v := Verdict{Placements: make([]state.Placement, 0, len(placements)), Refresh: l.snap.Index()}
	for i := 0; i < len(placements); {
		k := i + 1
		for k < len(placements) && placements[k].Node == placements[i].Node {
			k++
		}
		l.part(placements[i:k], &v)
		i = k
	}
	return v
}

// part judges one node's part of a plan: a member's fault takes that member
// out, the node's fault the whole part.
func (l *Ledger) part(part []state.Placement, v *Verdict) {
	first := len(v.Placements)
	n := l.node(part[0].Node)
	if n.row == nil {
		refuse(v, part, fmt.Sprintf("node %s: not found", part[0].Node))
		return
	}
	free := n.free
	for i, p := range part {
		j := l.job(p.UID)
		avoid, why := l.member(j, p)
		if why == "" {
			switch o := fit.Check(j.shape, n.row, free, avoid); o.Kind {
			case fit.None:
				free = free.Sub(j.row.Run.Ask)
				j.take(p)
				v.Placements = append(v.Placements, p)
				continue
			case fit.Filtered:
				why = fmt.Sprintf("job %s: node %s does not meet %s", j.row.Key, p.Node, o.What)
			case fit.Avoided:
				why = fmt.Sprintf("job %s: member %d failed on node %s before", j.row.Key, p.Index, p.Node)
			case fit.Closed:
				l.refusePart(v, first, part[i:], fmt.Sprintf("node %s is %s", p.Node, o.What))
				return
			case fit.Short:
				l.refusePart(v, first, part[i:], fmt.Sprintf("node %s: short of %s: %s asked, %s free", p.Node, o.What, j.row.Run.Ask, free))
				return
			}
		}
		v.Refused = append(v.Refused, state.PlanRefusal{Placement: p, Reason: why})
	}
	n.free = free
}

// refusePart refuses the rest of a node's part with what was found to hold of it.
func (l *Ledger) refusePart(v *Verdict, first int, rest []state.Placement, reason string) {
	for i := len(v.Placements) - 1; i >= first; i-- {
		l.jobs[v.Placements[i].UID].untake(v.Placements[i])
	}
	refuse(v, v.Placements[first:], reason)
	refuse(v, rest, reason)
	v.Placements = v.Placements[:first]
}

func refuse(v *Verdict, placements []state.Placement, reason string) {
	for _, p := range placements {
		v.Refused = append(v.Refused, state.PlanRefusal{Placement: p, Reason: reason, NodeFault: true})
	}
}

// member checks that the member still wants this attempt, and says which nodes
// it must not go to.
func (l *Ledger) member(j *line, p state.Placement) (avoid []muster.NodeID, why string) {
	switch {
	case j.row == nil:
		return nil, fmt.Sprintf("job with uid %s: not found", p.UID)
	case j.row.Stage != muster.JobLive:
		return nil, fmt.Sprintf("job %s is %s", j.row.Key, j.row.Stage)
	case j.row.Version != p.Version:
		return nil, fmt.Sprintf("job %s is at version %d, planned at %d", j.row.Key, j.row.Version, p.Version)
	case p.Index < 0 || p.Index >= j.row.Count():
		return nil, fmt.Sprintf("job %s has no member %d", j.row.Key, p.Index)
	}
	if p.Index >= j.row.NextIndex {
		switch {
		case p.Index < j.next:
			return nil, fmt.Sprintf("job %s: member %d is planned twice or out of order", j.row.Key, p.Index)
		case p.Attempt != j.row.AttemptBase+1:
			return nil, fmt.Sprintf("job %s: attempt %d of member %d is not the next one", j.row.Key, p.Attempt, p.Index)
		}
		return nil, ""
	}
	m := l.snap.Member(p.UID, p.Index)
	switch {
	case m == nil:
		return nil, fmt.Sprintf("job %s: member %d is not known", j.row.Key, p.Index)
	case m.Status != muster.MemberWaiting || j.retried[p.Index]:
		return nil, fmt.Sprintf("job %s: member %d is placed or final already", j.row.Key, p.Index)
	case p.Attempt != m.Attempt+1:
		return nil, fmt.Sprintf("job %s: attempt %d of member %d is not the next one", j.row.Key, p.Attempt, p.Index)
	}
	return m.FailedNodes, ""
}

func (l *Ledger) node(id muster.NodeID) *account {
	n := l.nodes[id]
	if n == nil {
		n = &account{row: l.snap.Node(id)}
		if n.row != nil {
			n.free = fit.Room(n.row)
		}
		l.nodes[id] = n
	}
	return n
}

func (l *Ledger) job(uid muster.JobUID) *line {
	j := l.jobs[uid]
	if j == nil {
		j = &line{row: l.snap.JobByUID(uid)}
		if j.row != nil {
			j.shape, j.next = fit.ShapeOf(j.row.Run), j.row.NextIndex
		}
		l.jobs[uid] = j
	}
	return j
}

func (j *line) take(p state.Placement) {
	if p.Index >= j.row.NextIndex {
		j.next = p.Index + 1
		return
	}
	if j.retried == nil {
		j.retried = map[int]bool{}
	}
	j.retried[p.Index] = true
}

// untake is the reverse of take, the last taken first.
func (j *line) untake(p state.Placement) {
	if p.Index >= j.row.NextIndex {
		j.next = p.Index
		return
	}
	delete(j.retried, p.Index)
}
