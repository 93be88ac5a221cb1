package size

import "fmt"

// keepMinimum launches what pools lack of their minimum, and reports whether it launched anything.
func (p *planner) keepMinimum() bool {
	before := p.bought()
	for i, q := range p.pools {
		for n := &p.counts[i]; n.kept < min(q.Min, q.Max); {
			if !p.keep(q, fmt.Sprintf("for the minimum of pool %s (%d)", q.Name, q.Min)) {
				break
			}
		}
	}
	return p.bought() > before
}

// keepSpare launches what pools lack of their spare nodes: ready or on their way, and of no use to what waits.
// It reports whether it launched anything.
func (p *planner) keepSpare() bool {
	before := p.bought()
	for i, q := range p.pools {
		for n := &p.counts[i]; n.unused+n.unusedOnWay < q.Spare; {
			if !p.keep(q, fmt.Sprintf("to have %d spare in pool %s", q.Spare, q.Name)) {
				break
			}
		}
	}
	return p.bought() > before
}

// keep launches the cheapest that there is.
func (p *planner) keep(q *pool, reason string) bool {
	var best *choice
	bestAsleep := false
	for _, o := range q.offers {
		c := &choice{pool: q, offer: o}
		if p.obstacle(c).kind != nothing {
			continue
		}
		asleep := p.asleep(c, nil) != nil
		if best == nil || asleep && !bestAsleep || asleep == bestAsleep && o.Price < best.offer.Price {
			best, bestAsleep = c, asleep
		}
	}
	if best == nil {
		return false
	}
	p.launch(best, nil, reason)
	// It may do for some that nothing could be launched for: then it is no spare one.
	s := supply{class: best.offer.class, free: empty(best.offer.Offering), count: 1}
	if p.open > 0 && p.pattern(&s) > 0 {
		p.use(&s, 1)
	} else {
		p.counts[q.at].unusedOnWay++
	}
	return true
}
