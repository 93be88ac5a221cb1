package size

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// turnNodes drains and destroys what is not wanted, and what is idle for too long.
func (p *planner) turnNodes() {
	p.snap.LiveNodes(func(n *state.Node) bool {
		if n.Intent != muster.NodeHold && n.Stage != muster.NodeTerminating {
			p.turn(n)
		}
		return true
	})
	for _, q := range p.pools {
		p.endIdle(q)
	}
}

// turn moves one node that nobody wants towards its end.
func (p *planner) turn(n *state.Node) {
	why := ""
	switch {
	case n.Stage == muster.NodeDraining:
		why = cmp.Or(n.StageReason, "drained")
	case n.Intent == muster.NodeDrain:
		why = "drained by an operator"
		if n.IntentReason != "" {
			why += ": " + n.IntentReason
		}
	case n.Health == muster.NodeBroken:
		why = "the node says that it is broken"
		if n.HealthReason != "" {
			why += ": " + n.HealthReason
		}
	default:
		why = p.unwanted(n)
	}
	if why == "" {
		return
	}
	switch n.Stage {
	case muster.NodeLaunching, muster.NodeBooting, muster.NodeAdopted:
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: why})
	case muster.NodeServing, muster.NodeDraining:
		if n.LiveAllocs == 0 && !p.outputsHold(n, max(n.IdleSince, n.StageSince)) {
			p.terminate(n, why)
		} else if n.Stage == muster.NodeServing && n.Intent != muster.NodeDrain {
			// What the operator said may be taken back; the rest is for good.
			p.out.Drain = append(p.out.Drain, Turn{Node: n.ID, Reason: why})
		}
	}
}

func (p *planner) terminate(n *state.Node, why string) {
	p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: why, IfIdle: true})
}

func (p *planner) isTurned(id muster.NodeID) bool {
	return slices.ContainsFunc(p.out.Terminate, func(t Turn) bool { return t.Node == id })
}

// outputsHold reports whether output that is not stored yet keeps a node that
// has been about to go since then.
func (p *planner) outputsHold(n *state.Node, since muster.Time) bool {
	open := false
	p.snap.OpenOutputs(n.ID, func(*state.Alloc) bool { open = true; return false })
	until := since.Add(OutputWait)
	if open && p.now < until {
		p.wakeAt(until)
		return true
	}
	return false
}

// usable reports whether some waiting member fits the node as it is.
func (p *planner) usable(n *state.Node) bool {
	s := &supply{node: n, free: n.Free()}
	return slices.ContainsFunc(p.demands, func(d *demand) bool { return p.takes(s, d, 1) > 0 })
}

// idle are the nodes of a pool without work that may be ended, the longest idle first.
func (p *planner) idle(q *pool) []*state.Node {
	var out []*state.Node
	for _, s := range p.nodes {
		if n := s.node; n != nil && s.pool == q && s.open && n.LiveAllocs == 0 && n.IdleSince != 0 {
			out = append(out, n)
		}
	}
	slices.SortStableFunc(out, func(a, b *state.Node) int { return cmp.Compare(a.IdleSince, b.IdleSince) })
	return out
}

// endIdle ends what has been idle for the pool's time-out, above its minimum.
func (p *planner) endIdle(q *pool) {
	if q.IdleTimeout <= 0 {
		return
	}
	for _, n := range p.idle(q) {
		if p.isTurned(n.ID) {
			q.kept--
		}
	}
	for _, n := range p.idle(q) {
		due := n.IdleSince.Add(micros(q.IdleTimeout))
		switch {
		case q.kept <= q.Min:
			return
		case p.isTurned(n.ID):
		case due > p.now:
			p.wakeAt(due)
			return
		case p.usable(n), p.outputsHold(n, due):
		default:
			idle := p.now.Sub(n.IdleSince)
			if idle > time.Second {
				idle = idle.Round(time.Second)
			}
			p.terminate(n, fmt.Sprintf("idle for %s", idle))
			q.kept--
		}
	}
}
