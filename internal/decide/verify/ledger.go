package verify

import (
	"fmt"
	"maps"

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
	// allow is what namespaces may still have.
	allow *fit.Allowance
	// stopped are allocations that the ledger has told to stop.
	stopped map[muster.AllocID]bool
}

// account is a node and its room, less what the ledger gave away.
type account struct {
	row  *state.Node // nil: there is no such node
	free fit.Space
	// jobs on distinct hosts that the ledger has put there.
	distinct map[muster.JobUID]bool
	// touched: the ledger has placed something there.
	touched bool
	// given: what is reserved there has been given to whom it is for.
	given bool
}

// owed is what is reserved there for the job, and is not in free.
func (n *account) owed(j *line) muster.Resources {
	if n.given || n.row.Reserved == nil || n.row.Reserved.UID != j.row.UID {
		return muster.Resources{}
	}
	return n.row.Reserved.Room
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
	return &Ledger{snap: snap, nodes: map[muster.NodeID]*account{}, jobs: map[muster.JobUID]*line{}, stopped: map[muster.AllocID]bool{}, allow: fit.NewAllowance(snap)}
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
		n.take(j, p)
		l.allow.Take(j.row.Key.Namespace, j.row.Run.Ask, 1)
	}
}

// take counts a placement in; why says what of it cannot be, by name.
func (n *account) take(j *line, p state.Placement) (why string) {
	taken, why := n.free.Taken.Take(j.row.Run.Names, p.Grant, n.row.Cores(), n.row.Devices())
	if why != "" {
		return why
	}
	n.touched = true
	owed := n.owed(j)
	n.given = n.given || owed != (muster.Resources{})
	n.free = fit.Space{Resources: n.free.Add(owed).Sub(j.row.Run.Ask), Taken: taken}
	if j.shape.Distinct {
		if n.distinct == nil {
			n.distinct = map[muster.JobUID]bool{}
		}
		n.distinct[p.UID] = true
	}
	return ""
}

// occupied: a job on distinct hosts has a member there already.
func (l *Ledger) occupied(n *account, j *line) (found bool) {
	if !j.shape.Distinct {
		return false
	}
	if n.distinct[j.row.UID] {
		return true
	}
	l.snap.NodeAllocs(n.row.ID, func(a *state.Alloc) bool {
		found = a.UID == j.row.UID
		return !found
	})
	return found
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
	was := *n
	n.distinct = maps.Clone(n.distinct)
	for i, p := range part {
		j := l.job(p.UID)
		avoid, why := l.member(j, p)
		if why == "" && l.occupied(n, j) {
			why = fmt.Sprintf("job %s: node %s has a member of it, and the job is on distinct hosts", j.row.Key, p.Node)
		}
		if why == "" {
			if _, bound := l.allow.Of(j.row.Key.Namespace, j.row.Run.Ask, 1); bound.Namespace != "" {
				why = fmt.Sprintf("job %s: %s", j.row.Key, bound.Why)
			}
		}
		if why == "" {
			switch o := fit.Check(j.shape, n.row, n.free.Add(n.owed(j)), avoid); o.Kind {
			case fit.None:
				if why := n.take(j, p); why != "" {
					*n = was
					l.refusePart(v, first, part[i:], fmt.Sprintf("node %s: %s", p.Node, why))
					return
				}
				j.take(p)
				l.allow.Take(j.row.Key.Namespace, j.row.Run.Ask, 1)
				v.Placements = append(v.Placements, p)
				continue
			case fit.Filtered:
				why = fmt.Sprintf("job %s: node %s does not meet %s", j.row.Key, p.Node, o.What)
			case fit.Avoided:
				why = fmt.Sprintf("job %s: member %d failed on node %s before", j.row.Key, p.Index, p.Node)
			case fit.Closed:
				*n = was
				l.refusePart(v, first, part[i:], fmt.Sprintf("node %s is %s", p.Node, o.What))
				return
			case fit.Short:
				free := n.free.Resources
				why := n.take(j, p)
				if why == "" {
					why = fmt.Sprintf("short of %s: %s asked, %s free", o.What, j.row.Run.Ask, free)
				}
				*n = was
				l.refusePart(v, first, part[i:], fmt.Sprintf("node %s: %s", p.Node, why))
				return
			}
		}
		v.Refused = append(v.Refused, state.PlanRefusal{Placement: p, Reason: why})
	}
}

// refusePart refuses the rest of a node's part with what was found to hold of it.
func (l *Ledger) refusePart(v *Verdict, first int, rest []state.Placement, reason string) {
	for i := len(v.Placements) - 1; i >= first; i-- {
		j := l.jobs[v.Placements[i].UID]
		j.untake(v.Placements[i])
		l.allow.Take(j.row.Key.Namespace, j.row.Run.Ask, -1)
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
			n.free = fit.SpaceOf(n.row)
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
