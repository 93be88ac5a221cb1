package size

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// choice is an offering of a pool that members of a shape fit.
type choice struct {
	pool     *pool
	offering *muster.Offering
	// guess: it is not known whether its nodes meet some constraint, because
	// only their agents can tell and none has.
	guess bool
}

// launchFor launches for what is left of a demand.
func (p *planner) launchFor(d *demand) {
	if d.left == 0 {
		return
	}
	// What was planned for others may have room left.
	for _, s := range p.nodes {
		if s.node == nil && d.left > 0 {
			p.give(s, d)
		}
	}
	if d.left == 0 {
		return
	}
	choices, why := p.choices(d)
	if len(choices) == 0 {
		if p.fail(d) {
			return
		}
		p.wait(d, why)
		return
	}
	for d.left > 0 {
		c, obstacle := p.cheapest(d, choices)
		if c == nil {
			p.makeRoom(d, choices)
			p.wait(d, obstacle)
			return
		}
		at := len(p.out.Launch)
		k := p.give(p.launch(c.pool, c.offering, ""), d)
		p.out.Launch[at].Reason = "for " + members(k, d.shape)
		if c.guess {
			// One shows what its kind is like; the rest waits for it.
			if d.left > 0 {
				p.wait(d, guessing(c.offering))
			}
			return
		}
	}
}

func guessing(o *muster.Offering) string {
	return fmt.Sprintf("a node of offering %s is to show whether it meets the constraints", o.Name)
}

func (p *planner) launch(q *pool, o *muster.Offering, reason string) *supply {
	p.out.Launch = append(p.out.Launch, Launch{Pool: q.Name, Offering: *o, Reason: reason})
	p.kinds[kindOf(o)]++
	q.live++
	q.launching++
	q.kept++
	s := &supply{pool: q, offering: o, free: o.Capacity}
	p.nodes = append(p.nodes, s)
	return s
}

func (p *planner) wait(d *demand, reason string) {
	p.out.Waits = append(p.out.Waits, Wait{Shape: d.shape.ID, Priority: d.priority, Members: d.left, Reason: reason})
}

// choices are the offerings that members of d fit, whether or not they can be had now.
func (p *planner) choices(d *demand) ([]choice, string) {
	var out []choice
	why := "no pool is configured"
	if len(p.pools) > 0 {
		why = "no offering fits; they wait for a node that does"
	}
	for _, q := range p.pools {
		if p.sold[q.Provider] == nil {
			why = "provider " + string(q.Provider) + " has not said yet what it offers"
		}
		for _, o := range q.offers {
			obstacle, unsure := fit.OfferingFits(d.shape, q.Pool, o)
			if obstacle.Kind != fit.None {
				continue
			}
			c := choice{pool: q, offering: o}
			if len(unsure) > 0 {
				met, seen := p.seen(d.shape, q, o)
				if seen && !met {
					why = fmt.Sprintf("nodes of offering %s, as far as seen, do not meet the constraints on %v", o.Name, unsure)
					continue
				}
				c.guess = !seen
			}
			out = append(out, c)
		}
	}
	return out, why
}

// look is a question that seen answers, and looked its answer.
type (
	look struct {
		shape *fit.Shape
		pool  *pool
		kind  kind
	}
	looked struct{ met, seen bool }
	// kind is all that tells the nodes of one offering of a pool from others.
	kind struct {
		provider muster.ProviderName
		name     muster.OfferingName
		zone     string
		market   muster.Market
	}
)

func kindOf(o *muster.Offering) kind { return kind{o.Provider, o.Name, o.Zone, o.Market} }

// seen reports whether nodes of the offering that have joined meet the shape's
// constraints, and whether there was any. Nodes that are gone count for as long as they are remembered.
func (p *planner) seen(shape *fit.Shape, q *pool, o *muster.Offering) (met, seen bool) {
	question := look{shape, q, kindOf(o)}
	if a, ok := p.looks[question]; ok {
		return a.met, a.seen
	}
	see := func(n *state.Node) bool {
		if n.Joined != 0 && n.Pool == q.Name && kindOf(&n.Offering) == question.kind {
			seen = true
			met = met || fit.Feasible(shape, n) == ""
		}
		return !met
	}
	p.snap.LiveNodes(see)
	if !met {
		p.snap.GoneNodes(see)
	}
	p.looks[question] = looked{met, seen}
	return met, seen
}

// cheapest is the choice with the lowest price per member that it would hold,
// or none and why none can be had now.
func (p *planner) cheapest(d *demand, choices []choice) (*choice, string) {
	var best *choice
	var bestPrice muster.Price
	var bestHolds int
	var obstacles []string
	shows := p.guess(d)
	for i := range choices {
		c := &choices[i]
		why := p.obstacle(c)
		if c.guess && shows != nil {
			why = guessing(shows.offering)
		}
		if why != "" {
			if len(obstacles) < 4 && !slices.Contains(obstacles, why) {
				obstacles = append(obstacles, why)
			}
			continue
		}
		holds := d.shape.Ask.Times(c.offering.Capacity, d.left)
		if holds == 0 {
			continue
		}
		if best != nil && best.guess != c.guess {
			// What is known to do is better than what may.
			if !c.guess {
				best, bestPrice, bestHolds = c, c.offering.Price, holds
			}
			continue
		}
		// price/holds < bestPrice/bestHolds, without division; equal: the lower price, then as listed.
		mine, theirs := int64(c.offering.Price)*int64(bestHolds), int64(bestPrice)*int64(holds)
		if best == nil || cmp.Or(cmp.Compare(mine, theirs), cmp.Compare(c.offering.Price, bestPrice)) < 0 {
			best, bestPrice, bestHolds = c, c.offering.Price, holds
		}
	}
	return best, strings.Join(obstacles, "; ")
}

// obstacle says why a choice cannot be launched now, or "".
func (p *planner) obstacle(c *choice) string {
	q, o := c.pool, c.offering
	if !o.Available {
		return fmt.Sprintf("offering %s is not available", o.Name)
	}
	if o.Limit > 0 && p.kinds[kindOf(o)] >= o.Limit {
		return fmt.Sprintf("offering %s: there may be %d at once, and there are", o.Name, o.Limit)
	}
	for i := range p.blocks {
		if b := &p.blocks[i]; b.Covers(o) && (b.Until > p.now || p.trying(b)) {
			return fmt.Sprintf("offering %s: %s", o.Name, b.Why)
		}
	}
	switch {
	case q.live >= q.Max:
		return fmt.Sprintf("pool %s is at its maximum (%d)", q.Name, q.Max)
	case q.MaxLaunching > 0 && q.launching >= q.MaxLaunching:
		return fmt.Sprintf("pool %s launches as many nodes at once as it may (%d)", q.Name, q.MaxLaunching)
	}
	return ""
}

// trying reports whether something that the block names is being launched.
func (p *planner) trying(b *Block) bool {
	return slices.ContainsFunc(p.nodes, func(s *supply) bool {
		return s.offering != nil && (s.node == nil || s.node.Stage == muster.NodeLaunching) && b.Covers(s.offering)
	})
}

// guess is the one node on its way of which d hopes that it meets constraints
// that only its agent can tell about, if there is one.
func (p *planner) guess(d *demand) *supply {
	if d.guess != nil {
		return d.guess
	}
	for _, s := range p.nodes {
		if s.offering == nil {
			continue
		}
		if o, unsure := fit.OfferingFits(d.shape, s.pool.Pool, s.offering); o.Kind != fit.None || len(unsure) == 0 {
			continue
		}
		if _, seen := p.seen(d.shape, s.pool, s.offering); !seen {
			d.guess = s
			return s
		}
	}
	return nil
}

// makeRoom ends idle nodes that nothing waiting fits where a pool at its
// maximum keeps d waiting: the longest idle first, as many as d needs.
func (p *planner) makeRoom(d *demand, choices []choice) {
	for i := range choices {
		c := &choices[i]
		if c.pool.live < c.pool.Max || !c.offering.Available {
			continue
		}
		holds := d.shape.Ask.Times(c.offering.Capacity, d.left)
		if holds == 0 {
			continue
		}
		need := (d.left+holds-1)/holds - c.pool.ending
		for _, n := range p.idle(c.pool) {
			if need <= 0 {
				return
			}
			if p.isTurned(n.ID) || p.usable(n) || p.outputsHold(n, n.IdleSince) {
				continue
			}
			p.terminate(n, fmt.Sprintf("gives way: pool %s is at its maximum, and %s need another node", c.pool.Name, members(d.left, d.shape)))
			c.pool.ending++
			need--
		}
		return
	}
}

// keepMinimum launches what pools lack of their minimum.
func (p *planner) keepMinimum() {
	for _, q := range p.pools {
		for q.kept < min(q.Min, q.Max) {
			var best *muster.Offering
			for _, o := range q.offers {
				if p.obstacle(&choice{pool: q, offering: o}) == "" && (best == nil || o.Price < best.Price) {
					best = o
				}
			}
			if best == nil {
				break
			}
			p.launch(q, best, fmt.Sprintf("for the minimum of pool %s (%d)", q.Name, q.Min))
		}
	}
}
