package size

import (
	"fmt"
	"slices"

	"github.com/musterhq/muster"
)

// bought is how many nodes the pass has planned so far.
func (p *planner) bought() int { return len(p.out.Launch) + len(p.out.Start) }

// asleep is the stopped node of a choice that was stopped last, and so has the most of what a new one would
// have to fetch; nil: there is none. With a shape, its members must fit it by what its agent said.
func (p *planner) asleep(c *choice, wanted *shape) *seat {
	if c.pool.stopped.Len() == 0 {
		return nil
	}
	all := p.sleepers[c.pool]
	if all == nil {
		all = map[kind][]*seat{}
		c.pool.stopped.Scan(func(s *seat) bool {
			if s.row.Intent == muster.NodeRun && !s.odd {
				k := s.class.key.kind
				all[k] = append(all[k], s)
			}
			return true
		})
		p.sleepers[c.pool] = all
	}
	for _, s := range slices.Backward(all[kindOf(c.offer.Offering)]) {
		if !p.turned[s.row.ID] && (wanted == nil || p.suit(wanted, s.class) == yes) {
			return s
		}
	}
	return nil
}

// stops reports whether an idle node is to be stopped instead of destroyed. EC2 and GCE stop no machine of
// the spot market for good: they take it back.
func (p *planner) stops(s *seat) bool {
	return p.counts[s.pool.at].stopped < s.pool.StopMost && s.row.Offering.Market != muster.Spot
}

// rest stops an idle node, or ends it where that is not to be.
func (p *planner) rest(s *seat, why string) {
	if !p.stops(s) {
		p.terminate(s.row, why)
		return
	}
	p.counts[s.pool.at].stopped++
	p.turned[s.row.ID] = true
	p.out.Stop = append(p.out.Stop, Turn{Node: s.row.ID, Reason: why, IfIdle: true})
}

// endStopped ends what has been stopped for the pool's time, and what a pool has of it above its limit, the
// longest stopped first.
func (p *planner) endStopped(q *pool) {
	surplus := -q.StopMost
	q.stopped.Scan(func(s *seat) bool {
		if s.row.Intent == muster.NodeRun && !p.turned[s.row.ID] {
			surplus++
		}
		return true
	})
	q.stopped.Scan(func(s *seat) bool {
		due := s.row.StageSince.Add(micros(q.StopTime))
		switch {
		case s.row.Intent != muster.NodeRun || p.turned[s.row.ID]:
		case surplus > 0:
			surplus--
			p.terminate(s.row, fmt.Sprintf("pool %s keeps at most %d stopped", q.Name, q.StopMost))
		case due <= p.now:
			p.terminate(s.row, fmt.Sprintf("stopped for %s", rounded(p.now.Sub(s.row.StageSince))))
		default:
			p.wakeAt(due)
		}
		return true
	})
}
