package size

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
)

// stuck is a demand for which nothing can be launched now, with what would do.
type stuck struct {
	demand  int
	choices []choice
}

// limit is what keeps a choice from being launched that fewer nodes would help.
type limit struct {
	choice *choice
	obstacle
}

// covers reports whether the end of a node of this pool and kind would help.
func (l *limit) covers(s *seat) bool {
	if l.kind == byQuota {
		return l.block.Covers(&s.row.Offering)
	}
	return s.pool == l.choice.pool
}

// makeRoom ends nodes where a limit keeps members waiting: idle ones that
// nothing waiting fits at once, the longest idle first; and for who was first in line for long, busy ones when
// they are empty.
func (p *planner) makeRoom() {
	first := map[*pool]bool{}
	idle := 0
	for _, q := range p.pools {
		idle += q.idle.Len()
	}
	for i := range p.stuck {
		if idle == 0 && len(first) == len(p.pools) {
			return
		}
		w := &p.stuck[i]
		l := p.limitOf(w)
		if l.kind == nothing {
			continue
		}
		if idle > 0 {
			p.giveWay(w, &l)
		}
		if q := l.choice.pool; !first[q] {
			first[q] = true
			p.empty(w, &l)
		}
	}
}

// limitOf is the limit of the first choice that one keeps.
func (p *planner) limitOf(w *stuck) limit {
	d := &p.line[w.demand]
	for i := range w.choices {
		c := &w.choices[i]
		o := p.obstacle(c)
		if (o.kind == byMax || o.kind == byQuota || o.kind == byBudget) && d.shape.Short(empty(c.offer.Offering), c.offer.Devices) == "" {
			return limit{c, o}
		}
	}
	return limit{}
}

// ends counts nodes on their way out whose end helps.
func (p *planner) ends(l *limit) int {
	k := 0
	for s := range p.ending {
		if l.covers(s) {
			k++
		}
	}
	for id := range p.turned {
		if s := p.nodes[id]; s.pool != nil && !s.ending && s.row.Stage != muster.NodeStopped && l.covers(s) {
			k++
		}
	}
	return k
}

func (p *planner) giveWay(w *stuck, l *limit) {
	d := &p.line[w.demand]
	holds := d.shape.Times(empty(l.choice.offer.Offering), l.choice.offer.Devices, d.left)
	need := (d.left+holds-1)/holds - p.ends(l)
	for _, s := range p.idle(l) {
		if need <= 0 {
			return
		}
		n := s.row
		c := &p.counts[s.pool.at]
		if p.turned[n.ID] || p.isUsable(s) || s.pool != l.choice.pool && c.kept <= s.pool.Min || p.outputsHold(n, n.IdleSince) {
			continue
		}
		p.terminate(n, fmt.Sprintf("evicted: %s, and %s need another node", l.why, members(d.left, d.shape.Shape)))
		c.kept--
		need--
	}
}

// idle are nodes without work whose end helps, the longest idle first.
func (p *planner) idle(l *limit) []*seat {
	var out []*seat
	for _, q := range p.pools {
		if l.kind != byQuota && q != l.choice.pool {
			continue
		}
		q.idle.Scan(func(s *seat) bool {
			if l.covers(s) {
				out = append(out, s)
			}
			return true
		})
	}
	if l.kind == byQuota {
		slices.SortStableFunc(out, func(a, b *seat) int { return cmp.Compare(a.row.IdleSince, b.row.IdleSince) })
	}
	return out
}

// empty drains a node of those that cannot hold a demand that has waited for
// long: its small neighbours, which keep them busy, would else do so for ever. One at a time, that with the least work; none while
// there is a node that could hold the demand, for then the scheduler keeps that one's room.
func (p *planner) empty(w *stuck, l *limit) {
	d := &p.line[w.demand]
	due := d.since().Add(Patience)
	if due > p.now {
		p.wakeAt(due)
		return
	}
	if p.ends(l) > 0 {
		return
	}
	var best *seat
	could := false
	for _, s := range p.nodes {
		n := s.row
		if !s.kept || n.Intent != muster.NodeRun {
			continue
		}
		if p.suit(d.shape, s.class) != no && d.shape.Short(fit.Space{Resources: capacity(s)}, s.row.Devices()) == "" && d.accepts(n.ID) > 0 {
			could = true
			break
		}
		if s.lot == nil || !n.Busy() || !l.covers(s) || s.pool != l.choice.pool && p.counts[s.pool.at].kept <= s.pool.Min {
			continue
		}
		if best == nil || n.LiveAllocs < best.row.LiveAllocs || n.LiveAllocs == best.row.LiveAllocs && n.ID < best.row.ID {
			best = s
		}
	}
	if could || best == nil {
		return
	}
	p.out.Drain = append(p.out.Drain, Turn{Node: best.row.ID, Reason: fmt.Sprintf("destroyed when it is empty: %s, and %s have waited for %s for a node that fits them",
		l.why, members(d.left, d.shape.Shape), rounded(p.now.Sub(d.since())))})
	p.turned[best.row.ID] = true
	p.counts[best.pool.at].kept--
}

func capacity(s *seat) muster.Resources {
	if s.lot == nil && s.row.Joined == 0 {
		return s.row.Offering.Capacity
	}
	return s.row.Capacity
}

// isUsable reports whether some waiting member fits the node as it is.
func (p *planner) isUsable(s *seat) bool {
	if !p.least.Fits(s.free.Resources) || len(p.line) == 0 {
		return false
	}
	fits, known := p.usable[s.lot.key]
	if !known {
		for i := range p.line {
			if p.holds(s, &p.line[i]) {
				fits = append(fits, int32(i))
			}
		}
		p.usable[s.lot.key] = fits
	}
	if p.avoided[s.row.ID] == 0 {
		return len(fits) > 0
	}
	return slices.ContainsFunc(fits, func(i int32) bool { return p.line[i].accepts(s.row.ID) > 0 })
}

func (p *planner) holds(s *seat, d *demand) bool {
	return d.shape.Short(fit.SpaceOf(s.row), s.row.Devices()) == "" && p.suit(d.shape, s.class) != no
}
