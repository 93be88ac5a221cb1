package size

import (
	"fmt"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
)

// choice is an offering of a pool that members of a shape fit.
type choice struct {
	pool  *pool
	offer *offer
	// guess: it is not known whether its nodes meet some constraint, because
	// only their agents can tell and none has.
	guess bool
}

// worth is what one member costs where it is cheapest.
type worth struct {
	price float64
	offer *offer
}

// serveAll launches for what is left of every demand, in line, and reports whether it launched anything.
func (p *planner) serveAll() bool {
	// As many wait as did the last time, nearly always.
	p.out.Waits, p.out.Fail, p.stuck = make([]Wait, 0, p.waits), nil, make([]stuck, 0, p.waits)
	for i := range p.counts {
		p.counts[i].reserved = ""
	}
	for i := range p.line {
		p.line[i].worth = nil
	}
	p.planGen++
	before := p.bought()
	for i := range p.line {
		if p.line[i].left > 0 {
			p.serve(i)
		}
	}
	p.waits = len(p.out.Waits)
	return p.bought() > before
}

// serve launches for what is left of one demand.
func (p *planner) serve(i int) {
	d := &p.line[i]
	choices, why := p.choices(d.shape)
	if len(choices) == 0 {
		if !p.fail(d) {
			p.wait(d, why)
		}
		return
	}
	if p.paused {
		p.wait(d, "the scheduler is paused, and nothing is launched for waiting work until it resumes")
		return
	}
	for d.left > 0 {
		c, why := p.best(i, choices)
		if c == nil {
			p.wait(d, why)
			p.stuck = append(p.stuck, stuck{i, choices})
			p.reserve(d, choices)
			return
		}
		s := supply{class: c.offer.class, free: empty(c.offer.Offering), count: 1}
		// With its last stopped node, what spoke for the choice may be over.
		asleep := p.asleep(c, d.shape) != nil
		for n := p.pattern(&s); n > 0 && p.obstacle(c).kind == nothing && (p.asleep(c, d.shape) != nil) == asleep; n-- {
			p.launch(c, d.shape, p.reason(i))
			p.use(&s, 1)
		}
		if c.guess && d.guess != nil {
			// One shows what its kind is like; the rest waits for it.
			if d.left > 0 {
				p.wait(d, guessing(d.guess))
			}
			return
		}
	}
}

// reason tells for whom a node with the last pattern is launched: the demand i first.
func (p *planner) reason(i int) string {
	own, others := 0, 0
	for _, t := range p.takes {
		if t.demand == i {
			own = t.members
		} else {
			others += t.members
		}
	}
	text := "for " + members(own, p.line[i].shape.Shape)
	if others > 0 {
		text += fmt.Sprintf(", and %d more", others)
	}
	return text
}

func guessing(o *muster.Offering) string {
	return fmt.Sprintf("a node of offering %s is being launched to see whether it meets the constraints", o.Name)
}

// launch plans a node: a stopped one that members of the shape fit, or else a new one. Any stopped one does
// for no shape.
func (p *planner) launch(c *choice, wanted *shape, reason string) {
	o := c.offer.Offering
	if s := p.asleep(c, wanted); s != nil {
		p.turned[s.row.ID] = true
		p.counts[c.pool.at].stopped--
		p.out.Start = append(p.out.Start, Turn{Node: s.row.ID, Reason: reason})
		p.count(c)
		return
	}
	p.out.Launch = append(p.out.Launch, Launch{Pool: c.pool.Name, Offering: *o, Reason: reason})
	p.count(c)
}

// count takes a planned node into the limits that it counts for.
func (p *planner) count(c *choice) {
	o := c.offer.Offering
	p.planned[kindOf(o)]++
	n := &p.counts[c.pool.at]
	n.live++
	n.launching++
	n.kept++
	n.price += o.AtMost()
	for i := range p.blocks {
		if b := &p.blocks[i]; b.Covers(o) {
			b.used += o.QuotaWeight()
			b.launching++
		}
	}
	p.planGen++
}

func (p *planner) wait(d *demand, reason string) {
	p.out.Waits = append(p.out.Waits, Wait{Shape: d.id, Priority: d.priority, Members: d.left, Reason: reason})
}

// choices are the offerings that members of a shape fit, whether or not they can
// be had now; why there are none otherwise.
func (v *View) choices(s *shape) ([]choice, string) {
	v.fresh(s)
	if s.choices != nil || s.why != "" {
		return s.choices, s.why
	}
	why := "no pool is configured"
	if len(v.pools) > 0 {
		why = "no offering fits; they wait for a matching node"
	}
	for _, q := range v.pools {
		if v.sold[q.Provider] == nil {
			why = "provider " + string(q.Provider) + " has not said yet what it offers"
		}
		for _, o := range q.offers {
			obstacle, _ := fit.OfferingFits(s.Shape, q.Pool, o.Offering)
			if obstacle.Kind != fit.None {
				continue
			}
			switch v.suit(s, o.class) {
			case no:
				why = fmt.Sprintf("no node of offering %s so far meets %s", o.Name, v.unmet(s, o.class))
			case yes:
				s.choices = append(s.choices, choice{pool: q, offer: o})
			case maybe:
				s.choices = append(s.choices, choice{pool: q, offer: o, guess: true})
			}
		}
	}
	s.why = why
	return s.choices, s.why
}

// unmet is a condition that the nodes of a class that have joined so far do not meet.
func (v *View) unmet(s *shape, c *class) string {
	first := ""
	_, unsure := fit.OfferingFits(s.Shape, v.byName[c.key.pool].Pool, &c.sample.Offering)
	for like := range v.seen[c.key.kindOfPool] {
		// Of several, the least in the alphabet: a plan must not depend on the order of a map.
		if why := fit.FeasibleIn(s.Shape, like.sample, unsure); first == "" || why < first {
			first = why
		}
	}
	return first
}

// worthOf is what one of the members that are left costs where it is cheapest:
// in any pool, and in one.
func (p *planner) worthOf(i int, q *pool) (everywhere, there worth) {
	d := &p.line[i]
	if d.worth == nil {
		p.value(d)
	}
	return d.worth[0], d.worth[1+q.at]
}

func (p *planner) value(d *demand) {
	d.worth = make([]worth, 1+len(p.pools))
	choices, _ := p.choices(d.shape)
	for i := range choices {
		c := &choices[i]
		holds := d.shape.Times(empty(c.offer.Offering), c.offer.Devices, d.left)
		if holds == 0 {
			continue
		}
		each := worth{float64(c.offer.Price) / float64(holds), c.offer}
		for _, at := range [...]int{0, 1 + c.pool.at} {
			if w := &d.worth[at]; w.offer == nil || each.price < w.price {
				*w = each
			}
		}
	}
}

// best is the choice that costs the least against what its members would cost
// each where they are cheapest, or none and why none can be had now. Members of other demands count as well:
// one large node may do for many that need a node each.
func (p *planner) best(i int, choices []choice) (*choice, string) {
	d := &p.line[i]
	d.worth = nil // fewer may be left
	var best *choice
	var bestRatio float64
	bestAsleep := false
	var few [4]string
	obstacles := few[:0]
	refuse := func(why string) {
		if len(obstacles) < len(few) && !slices.Contains(obstacles, why) {
			obstacles = append(obstacles, why)
		}
	}
	for j := range choices {
		c := &choices[j]
		if c.guess && d.guess != nil {
			refuse(guessing(d.guess))
			continue
		}
		if o := p.obstacle(c); o.kind != nothing {
			refuse(o.why)
			continue
		}
		ratio, why := p.ratio(i, c)
		if why != "" {
			refuse(why)
			continue
		}
		// A machine that is only switched off comes sooner than a new one, and has images already.
		asleep := p.asleep(c, d.shape) != nil
		switch {
		case best == nil, best.guess && !c.guess:
			// What is known to do is better than what may.
		case asleep != bestAsleep:
			if !asleep {
				continue
			}
		case c.guess && !best.guess, ratio > bestRatio, ratio == bestRatio && c.offer.Price >= best.offer.Price:
			continue
		}
		best, bestRatio, bestAsleep = c, ratio, asleep
	}
	return best, strings.Join(obstacles, "; ")
}

// ratio is the price of a node against what the members on it would cost each
// where they are cheapest; or why it is not for demand i.
func (p *planner) ratio(i int, c *choice) (float64, string) {
	s := supply{class: c.offer.class, free: empty(c.offer.Offering), count: 1}
	p.pattern(&s)
	served := false
	var everywhere, there float64
	for _, t := range p.takes {
		served = served || t.demand == i
		w, in := p.worthOf(t.demand, c.pool)
		everywhere += float64(t.members) * w.price
		there += float64(t.members) * in.price
	}
	price := float64(c.offer.Price)
	switch {
	case !served:
		return 0, fmt.Sprintf("work before them would get a node of offering %s", c.offer.Name)
	case c.pool.PriceFactor > 0 && there > 0 && price > c.pool.PriceFactor*there*(1+1e-9):
		_, in := p.worthOf(i, c.pool)
		return 0, fmt.Sprintf("offering %s at %s is too dear: pool %s pays at most %g times its cheapest that fits (%s at %s)",
			c.offer.Name, c.offer.Price, c.pool.Name, c.pool.PriceFactor, in.offer.Name, in.offer.Price)
	case everywhere == 0:
		return price, ""
	}
	return price / everywhere, ""
}
