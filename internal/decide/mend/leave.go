package mend

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

const (
	// NoticeLast is how long before the cloud takes a machine the fleet destroys it itself: output
	// that is stored by then is stored. It is never more than a third of the notice, because GCE and
	// Azure give 30 s.
	NoticeLast = 20 * time.Second
	// TerminateDeadline is how long an instance may be listed after it was to be
	// destroyed before somebody is told.
	TerminateDeadline = 15 * time.Minute
)

// Notice says that the cloud is about to take a node's instance, or to restart it.
type Notice struct {
	// Heard is when it was first seen, At when it happens.
	Heard, At muster.Time
	// Maintenance: the instance is restarted or moved, and not taken.
	Maintenance bool
}

// last is how long before At the fleet destroys the instance itself.
func (n Notice) last() time.Duration { return min(NoticeLast, max(n.At.Sub(n.Heard), 0)/3) }

// leaves deals with what makes a node go although it works: a spot notice, work
// that cannot be ended. It reports whether it has decided about the node.
func (p *planner) leaves(n *state.Node) bool {
	if n.Intent == muster.NodeHold {
		return false
	}
	if notice, ok := p.mem.Notices[n.ID]; ok && p.noticed(n, notice) {
		return true
	}
	stuck := p.stuck[n.ID]
	if len(stuck) == 0 || n.Health == muster.NodeLost {
		return false
	}
	reason := fmt.Sprintf("allocation %s does not end: its end was due %s ago", stuck[0].id, p.now.Sub(stuck[0].due).Round(time.Second))
	switch {
	case n.Stage == muster.NodeServing:
		p.out.Drain = append(p.out.Drain, Turn{Node: n.ID, Reason: reason})
	case n.Stage == muster.NodeDraining && n.LiveAllocs <= len(stuck):
		// Nothing else runs there. Only with the machine does it end.
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: reason})
	default:
		return false
	}
	return true
}

// noticed lets what may end by itself do so for half of the time that there is.
// The other half is for its successors to start elsewhere.
func (p *planner) noticed(n *state.Node, notice Notice) bool {
	reason := "spot notice: the cloud takes it at " + notice.At.Std().UTC().Format("15:04:05")
	if notice.Maintenance {
		reason = "maintenance notice: the cloud restarts it at " + notice.At.Std().UTC().Format("15:04:05")
	}
	switch n.Stage {
	case muster.NodeBooting, muster.NodeAdopted:
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: reason})
		return true
	case muster.NodeServing:
		p.out.Drain = append(p.out.Drain, Turn{Node: n.ID, Reason: reason})
		return true
	case muster.NodeDraining:
		due := notice.At.Add(-notice.last())
		if n.Busy() {
			due = min(due, notice.Heard.Add(notice.At.Sub(notice.Heard)/2))
		}
		if p.now < due {
			p.wakeAt(due)
			return false
		}
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: reason})
		return true
	}
	return false
}

// overdue is an allocation whose end was due some time ago.
type overdue struct {
	id  muster.AllocID
	due muster.Time
}

// readStuck finds the allocations whose end was due (told to stop and its grace
// over, or its time limit) longer ago than the pool's grace, by node, the longest first. Their
// nodes are thought unable to end them: the agents themselves have given up by then.
func (p *planner) readStuck() {
	var late []muster.AllocID
	for id, due := range p.mem.Due {
		if p.now < due {
			p.wakeAt(due)
		} else {
			late = append(late, id)
		}
	}
	slices.Sort(late)
	for _, id := range late {
		due, a := p.mem.Due[id], p.snap.Alloc(id)
		if a == nil || !a.Live() {
			continue
		}
		n := p.snap.Node(a.Node)
		if n == nil || n.Stage != muster.NodeServing && n.Stage != muster.NodeDraining {
			continue
		}
		_, grace := p.times(n)
		if late := due.Add(grace); p.now < late {
			p.wakeAt(late)
			continue
		}
		if p.stuck == nil {
			p.stuck = map[muster.NodeID][]overdue{}
		}
		p.stuck[a.Node] = append(p.stuck[a.Node], overdue{id, due})
	}
	for _, s := range p.stuck {
		slices.SortStableFunc(s, func(a, b overdue) int { return cmp.Compare(a.due, b.due) })
	}
}

// DueBy is when an allocation is to have ended, or 0 if nothing says so. stopped is when it is stopping; 0: it was not.
func DueBy(a *state.Alloc, stopped muster.Time) muster.Time {
	spec := a.Run.Spec
	grace := spec.KillGrace.Std()
	due := muster.Time(0)
	if stopped != 0 {
		due = stopped.Add(grace)
	}
	if spec.Timeout > 0 && a.Started != 0 {
		if limit := a.Started.Add(spec.Timeout.Std() + grace); due == 0 || limit < due {
			due = limit
		}
	}
	return due
}
