package size

import (
	"fmt"

	"github.com/musterhq/muster"
)

// obstacle is what keeps an offering of a pool from being launched now.
type obstacle struct {
	kind  obstacleKind
	why   string
	block *blocking // of byQuota
}

type obstacleKind uint8

const (
	nothing  obstacleKind = iota
	byMarket              // the provider has none, or said no
	byQuota               // the account may not have more than there is
	byMax
	byLaunching
	byBudget
)

// blocking is a block with the nodes that it names, planned ones included. used is the sum of
// their weights.
type blocking struct {
	Block
	used, launching int
}

func (p *planner) readBlocks(blocks []Block) {
	p.blocks = make([]blocking, len(blocks))
	for i := range blocks {
		b := &p.blocks[i]
		b.Block = blocks[i]
		for k, t := range p.kinds {
			if o := k.offering(); b.Covers(o) {
				b.used += t.live * o.QuotaWeight()
				b.launching += t.launching
			}
		}
		p.wakeAt(b.Until)
	}
}

// holds reports whether the block keeps an offering that it names from being launched.
func (b *blocking) holds(o *muster.Offering, now muster.Time) bool {
	if b.Until > now {
		return b.Held == 0 || b.used+o.QuotaWeight() >= b.Held+max(b.Asked, 1)
	}
	// One tries whether it is over.
	return b.launching > 0
}

func (p *planner) obstacle(c *choice) obstacle {
	if c.offer.whyGen != p.planGen {
		c.offer.why, c.offer.whyGen = p.find(c.pool, c.offer.Offering), p.planGen
	}
	return c.offer.why
}

func (p *planner) find(q *pool, o *muster.Offering) obstacle {
	if !o.Available {
		return obstacle{kind: byMarket, why: fmt.Sprintf("offering %s is not available", o.Name)}
	}
	if o.Limit > 0 {
		k := kindOf(o)
		n := p.planned[k]
		if t := p.kinds[k]; t != nil {
			n += t.live
		}
		if n >= o.Limit {
			return obstacle{kind: byMarket, why: fmt.Sprintf("offering %s is at its limit of %s", o.Name, muster.Counted(o.Limit, "instance"))}
		}
	}
	for i := range p.blocks {
		b := &p.blocks[i]
		if !b.Covers(o) || !b.holds(o, p.now) {
			continue
		}
		why := fmt.Sprintf("offering %s: %s", o.Name, b.Why)
		if b.Held > 0 && b.Until > p.now {
			return obstacle{byQuota, why, b}
		}
		return obstacle{kind: byMarket, why: why}
	}
	n := &p.counts[q.at]
	switch {
	case n.live > q.Max:
		return obstacle{kind: byMax, why: fmt.Sprintf("pool %s has %d nodes, at most %d", q.Name, n.live, q.Max)}
	case n.live == q.Max:
		return obstacle{kind: byMax, why: fmt.Sprintf("pool %s is at its maximum (%d)", q.Name, q.Max)}
	case q.MaxLaunching > 0 && n.launching >= q.MaxLaunching:
		return obstacle{kind: byLaunching, why: fmt.Sprintf("pool %s launches its maximum of nodes at once (%d)", q.Name, q.MaxLaunching)}
	}
	return p.overBudget(q, o)
}
