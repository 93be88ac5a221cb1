package place

import (
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// Reserve picks the node on which room is best kept for a member of the shape that fits nowhere now: of
// those that could hold it once what runs there to an end has ended, the one that lacks the least of its capacity, then
// the one with the fewest allocations to wait for, then the smaller id. Nodes in avoid and nodes with room
// reserved already are passed over; "" if there is none.
func Reserve(snap *state.Snapshot, s *fit.Shape, avoid []muster.NodeID) muster.NodeID {
	var best *state.Node
	var lacks float64
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Reserved != nil || !n.Schedulable() || !s.Ask.Fits(n.Capacity) || fit.Feasible(s, n) != "" || slices.Contains(avoid, n.ID) {
			return true
		}
		short := shortage(s.Ask, fit.Room(n), n.Capacity)
		if best != nil && (short > lacks || short == lacks && n.LiveAllocs >= best.LiveAllocs) || !s.Ask.Fits(willBeFree(snap, n)) {
			return true
		}
		best, lacks = n, short
		return true
	})
	if best == nil {
		return ""
	}
	return best.ID
}

// Occupied is avoid and, for a job on distinct hosts, the nodes that have a member of it: room there is of no use to another.
func Occupied(snap *state.Snapshot, s *fit.Shape, uid muster.JobUID, avoid []muster.NodeID) []muster.NodeID {
	if !s.Distinct {
		return avoid
	}
	out := slices.Clone(avoid)
	snap.JobAllocs(uid, 0, func(a *state.Alloc) bool {
		if a.Live() {
			out = append(out, a.Node)
		}
		return true
	})
	return out
}

// shortage is the largest share of a node's capacity that the ask lacks.
func shortage(ask, free, capacity muster.Resources) float64 {
	worst := 0.0
	for _, d := range [...][3]int64{
		{int64(ask.CPU), int64(free.CPU), int64(capacity.CPU)},
		{int64(ask.Memory), int64(free.Memory), int64(capacity.Memory)},
		{int64(ask.Disk), int64(free.Disk), int64(capacity.Disk)},
	} {
		if d[2] > 0 {
			worst = max(worst, float64(d[0]-d[1])/float64(d[2]))
		}
	}
	return worst
}

// willBeFree is the room of a node when what ends by itself has ended.
func willBeFree(snap *state.Snapshot, n *state.Node) muster.Resources {
	free := fit.Room(n)
	snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
		if t := muster.JobType(a.Run.Spec.Type); t == "" || t == muster.JobBatch || a.Desired == muster.AllocStop {
			free = free.Add(a.Run.Ask)
		}
		return true
	})
	return free
}

// Reserved adds to a decision what was left out of it: nobody sees room that is reserved, and of the
// jobs that it says fit nowhere one may have such room, which is enough by now.
func (d *Decision) Reserved(snap *state.Snapshot, now muster.Time) {
	var allow *fit.Allowance
	counted := false
	for i := 0; i < len(d.Blocked); i++ {
		b := &d.Blocked[i]
		j := snap.JobByUID(b.UID)
		if j == nil || j.Reserved == "" {
			continue
		}
		n := snap.Node(j.Reserved)
		if n == nil {
			continue
		}
		p, avoid, ok := d.member(snap, j, now)
		free := n.Free()
		for k := range d.Placements {
			if other := snap.JobByUID(d.Placements[k].UID); other != nil && d.Placements[k].Node == n.ID {
				free = free.Sub(other.Run.Ask)
				ok = ok && other.Run.Names == nil && !(b.Shape.Distinct && other.UID == j.UID)
			}
		}
		if !ok || fit.Check(b.Shape, n, free, Occupied(snap, b.Shape, j.UID, avoid)).Kind != fit.None {
			continue
		}
		// Room of its own is no leave to pass a limit: what was planned meanwhile may have used the rest of it.
		if !counted {
			allow, counted = d.allowance(snap), true
		}
		if n, _ := allow.Of(j.Key.Namespace, j.Run.Ask, 1); n == 0 {
			continue
		}
		allow.Take(j.Key.Namespace, j.Run.Ask, 1)
		p.Node = n.ID
		grant(&p, j.Run.Names, n.Taken, n)
		d.Placements = append(d.Placements, p)
		if b.Waiting--; b.Waiting == 0 {
			d.Done = append(d.Done, b.UID)
			d.Blocked = slices.Delete(d.Blocked, i, i+1)
			i--
		}
	}
}

// allowance is what limits leave once this decision is carried out; nil: there are none.
func (d *Decision) allowance(snap *state.Snapshot) *fit.Allowance {
	allow := fit.NewAllowance(snap)
	if allow == nil {
		return nil
	}
	for i := range d.Placements {
		if j := snap.JobByUID(d.Placements[i].UID); j != nil {
			allow.Take(j.Key.Namespace, j.Run.Ask, 1)
		}
	}
	return allow
}

// member is the next of a job that the decision has not placed, and the nodes it must not go to.
func (d *Decision) member(snap *state.Snapshot, j *state.Job, now muster.Time) (p state.Placement, avoid []muster.NodeID, ok bool) {
	p = state.Placement{UID: j.UID, Version: j.Version, Index: j.NextIndex, Attempt: j.AttemptBase + 1}
	taken := map[int]bool{}
	for k := range d.Placements {
		if q := &d.Placements[k]; q.UID == j.UID {
			taken[q.Index] = true
			p.Index = max(p.Index, q.Index+1)
		}
	}
	var head *state.Member
	for more := true; more && !ok; {
		more = false
		snap.Retries(j.UID).Heads(head, now, func(m *state.Member) bool {
			head, more = m, true
			return slices.Contains(m.FailedNodes, j.Reserved)
		})
		if !more || slices.Contains(head.FailedNodes, j.Reserved) {
			break
		}
		snap.Retries(head.UID).Alike(head, now, func(m *state.Member) bool {
			if !taken[m.Index] {
				p.Index, p.Attempt, avoid, ok = m.Index, m.Attempt+1, m.FailedNodes, true
			}
			return !ok
		})
	}
	return p, avoid, ok || p.Index < j.Count()
}
