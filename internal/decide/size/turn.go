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
	p.odd.Scan(func(s *seat) bool {
		p.turn(s.row)
		return true
	})
	for _, q := range p.pools {
		p.shrink(q)
		p.endStopped(q)
		p.endIdle(q)
	}
}

// turn moves one node that nobody wants towards its end.
func (p *planner) turn(n *state.Node) {
	why, unplaced := "", false
	switch {
	case n.Stage == muster.NodeDraining && n.Unplaced && n.Intent != muster.NodeDrain && n.Health != muster.NodeBroken && p.unwanted(n) == "" &&
		p.counts[p.byName[n.Pool].at].kept < p.byName[n.Pool].Max:
		p.counts[p.byName[n.Pool].at].kept++
		p.out.Keep = append(p.out.Keep, Turn{Node: n.ID, Reason: "it is configured again"})
		return
	case n.Stage == muster.NodeDraining:
		why = cmp.Or(n.StageReason, "drained")
	case n.Intent == muster.NodeDrain:
		why = "drained by an operator"
		if n.IntentReason != "" {
			why += ": " + n.IntentReason
		}
	case n.Health == muster.NodeBroken:
		why = "the node is reported as broken"
		if n.HealthReason != "" {
			why += ": " + n.HealthReason
		}
	default:
		why, unplaced = p.unwanted(n), true
	}
	switch n.Stage {
	case muster.NodeLaunching, muster.NodeBooting, muster.NodeAdopted, muster.NodeStopped, muster.NodeStarting:
		p.turned[n.ID] = true
		p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: why, Unplaced: unplaced})
	case muster.NodeServing, muster.NodeDraining:
		if !n.Busy() && !p.outputsHold(n, max(n.IdleSince, n.StageSince)) {
			p.terminate(n, why)
			p.out.Terminate[len(p.out.Terminate)-1].Unplaced = unplaced
		} else if n.Stage == muster.NodeServing && n.Intent != muster.NodeDrain {
			// What the operator said may be taken back, and so may the configuration; the rest is for good.
			p.out.Drain = append(p.out.Drain, Turn{Node: n.ID, Reason: why, Unplaced: unplaced})
		}
	}
}

// shrink drains what a pool has above its maximum, as after it was lowered: first what can take no work now, as it does not
// serve yet or is not in good health, then what has no work, then what has the least. Nodes that are held, or adopted and not in
// service yet, count and are not drained. If the maximum is raised again before the others are gone, they are kept.
func (p *planner) shrink(q *pool) {
	n := &p.counts[q.at]
	over := n.kept - q.Max
	if over <= 0 {
		return
	}
	var above []*seat
	for _, s := range p.nodes {
		if s.pool == q && s.kept && s.row.Intent == muster.NodeRun && s.row.Stage != muster.NodeAdopted && !p.turned[s.row.ID] {
			above = append(above, s)
		}
	}
	slices.SortFunc(above, func(a, b *seat) int {
		return cmp.Or(cmp.Compare(a.cost(), b.cost()), cmp.Compare(a.row.LiveAllocs, b.row.LiveAllocs), cmp.Compare(b.row.Launched, a.row.Launched), cmp.Compare(a.row.ID, b.row.ID))
	})
	why := fmt.Sprintf("pool %s has %d nodes, at most %d", q.Name, n.live, q.Max)
	for _, s := range above[:min(over, len(above))] {
		row := s.row
		switch {
		case row.Stage != muster.NodeServing:
			p.turned[row.ID] = true
			p.out.Terminate = append(p.out.Terminate, Turn{Node: row.ID, Reason: why, Unplaced: true})
		case !row.Busy() && !p.outputsHold(row, p.now):
			p.terminate(row, why)
			p.out.Terminate[len(p.out.Terminate)-1].Unplaced = true
		default:
			p.turned[row.ID] = true
			p.out.Drain = append(p.out.Drain, Turn{Node: row.ID, Reason: why, Unplaced: true})
		}
		n.kept--
	}
}

// cost is what the end of a node costs: least while it can take no work, else by the work on it.
func (s *seat) cost() int {
	if !s.row.Schedulable() {
		return -1
	}
	return s.row.LiveAllocs
}

func (p *planner) terminate(n *state.Node, why string) {
	p.turned[n.ID] = true
	p.out.Terminate = append(p.out.Terminate, Turn{Node: n.ID, Reason: why, IfIdle: true})
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

// endIdle ends what has been idle for the pool's time-out, the longest idle
// first, above its minimum and its spare nodes.
func (p *planner) endIdle(q *pool) {
	if q.IdleTimeout <= 0 {
		return
	}
	p.endUnready(q)
	n := &p.counts[q.at]
	unused := n.unused
	q.idle.Scan(func(s *seat) bool {
		if p.turned[s.row.ID] {
			unused--
		}
		return true
	})
	q.idle.Scan(func(s *seat) bool {
		due := s.row.IdleSince.Add(micros(q.IdleTimeout))
		switch {
		case n.kept <= q.Min, q.Spare > 0 && unused <= q.Spare:
			return false
		case p.turned[s.row.ID]:
		case due > p.now:
			p.wakeAt(due)
			return false
		case p.isUsable(s), p.outputsHold(s.row, due):
		default:
			p.rest(s, fmt.Sprintf("idle for %s", rounded(p.now.Sub(s.row.IdleSince))))
			n.kept--
			unused--
		}
		return true
	})
}

// endUnready gives back nodes without work that could take none for as long as an idle one is kept. They count neither for the
// minimum nor as spare: what can do nothing is in the way of one that can.
func (p *planner) endUnready(q *pool) {
	q.unready.Scan(func(s *seat) bool {
		due := s.useless().Add(micros(q.IdleTimeout))
		switch {
		case p.turned[s.row.ID]:
		case due > p.now:
			p.wakeAt(due)
			return false
		case p.outputsHold(s.row, due):
		default:
			why := "without work and unready for " + rounded(p.now.Sub(s.useless())).String()
			if s.row.HealthReason != "" {
				why += ": " + s.row.HealthReason
			}
			p.terminate(s.row, why)
			p.counts[q.at].kept--
		}
		return true
	})
}

// useless is since when a node has had no work and could not take any.
func (s *seat) useless() muster.Time { return max(s.row.IdleSince, s.row.HealthSince) }

func rounded(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(time.Second)
	}
	return d
}
