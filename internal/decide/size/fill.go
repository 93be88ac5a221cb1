package size

import (
	"cmp"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
)

// supply is nodes with equal room, now or soon.
type supply struct {
	class *class
	free  fit.Space
	count int
	id    muster.NodeID // of one that is told apart because some members avoid it, or because it is on its way
	idle  bool
	lot   *lot // nil: it is on its way
}

// take is members of a demand that one node of a supply is given.
type take struct{ demand, members int }

// readLine makes the demands of the pass, or takes those of the last one.
func (p *planner) readLine() {
	v := p.View
	v.passes++
	if q := &v.queue; q.lineGen != v.lineGen || q.classGen != v.classGen || q.line == nil {
		q.read(v)
	}
	p.queue = v.queue
	for i := range p.line {
		d := &p.line[i]
		d.left, d.strict, d.worth, d.guess = d.members, nil, nil, nil
		p.open += d.members
	}
}

func (q *queue) read(v *View) {
	*q = queue{line: make([]demand, 0, v.waiting.Len()), lineGen: v.lineGen, classGen: v.classGen}
	v.waiting.Scan(func(g *group) bool {
		v.fresh(g.shape)
		ask := g.shape.Ask
		if len(q.line) == 0 {
			q.least = ask
		}
		q.least = muster.Resources{CPU: min(q.least.CPU, ask.CPU), Memory: min(q.least.Memory, ask.Memory), Disk: min(q.least.Disk, ask.Disk)}
		q.line = append(q.line, demand{group: g})
		return true
	})
	q.sized = make([]int32, len(q.line))
	for i := range q.sized {
		q.sized[i] = int32(i)
	}
	slices.SortFunc(q.sized, func(a, b int32) int {
		x, y := &q.line[a], &q.line[b]
		return cmp.Or(cmp.Compare(y.priority, x.priority), cmp.Compare(y.shape.size, x.shape.size), cmp.Compare(a, b))
	})
}

// fillAll takes from the supply what the demands will use of it: first what is
// open, then what is on its way, by id. Ids rise in the order of launches, and planned nodes are filled in the
// same way, so that planning again after them finds each demand where it was.
func (p *planner) fillAll() {
	for _, s := range p.supplies() {
		for s.count > 0 && p.open > 0 {
			k := p.pattern(&s)
			if k == 0 {
				break
			}
			k = min(k, s.count)
			p.use(&s, k)
			s.count -= k
		}
		// What is left of a lot is untouched.
		q := p.byName[s.class.key.pool]
		switch c := &p.counts[q.at]; {
		case s.idle && s.lot != nil:
			c.unused += s.count
		case s.idle:
			c.unusedOnWay += s.count
		}
	}
}

// supplies are what there is, in the order in which it is filled.
func (p *planner) supplies() []supply {
	// Most nodes of a busy fleet are full; idle ones are counted all the same.
	lots := make([]supply, 0, len(p.lots))
	for key, l := range p.lots {
		if key.idle || p.least.Fits(key.free.Resources) {
			lots = append(lots, supply{class: key.class, free: key.free, count: l.count, idle: key.idle, lot: l})
		}
	}
	slices.SortFunc(lots, compareSupply)
	apart := map[*lot][]muster.NodeID{}
	if len(lots) > 0 {
		for id := range p.avoided {
			if s := p.nodes[id]; s != nil && s.lot != nil {
				apart[s.lot] = append(apart[s.lot], id)
			}
		}
	}
	out := make([]supply, 0, len(lots)+p.onWay.Len())
	for _, s := range lots {
		ids := apart[s.lot]
		if s.count -= len(ids); s.count > 0 {
			out = append(out, s)
		}
		slices.Sort(ids)
		for _, id := range ids {
			s.id, s.count = id, 1
			out = append(out, s)
		}
	}
	p.onWay.Scan(func(s *seat) bool {
		n := s.row
		if n.Stage == muster.NodeServing {
			// It is out of contact, or has to prove itself, and may come back within the grace; until then nothing is replaced.
			back := n.HealthSince.Add(micros(s.pool.Grace))
			if back <= p.now {
				return true
			}
			p.wakeAt(back)
		}
		if last := len(out) - 1; last >= 0 && out[last].id == "" && !out[last].class.key.joined && out[last].class == s.class && out[last].free == s.free {
			out[last].count++
			return true
		}
		x := supply{class: s.class, free: s.free, count: 1, idle: n.Stage != muster.NodeServing}
		if n.Stage == muster.NodeServing {
			x.id = n.ID
		}
		out = append(out, x)
		return true
	})
	return out
}

// compareSupply: what has work already comes first, then the smaller room.
func compareSupply(a, b supply) int {
	if a.idle != b.idle {
		if b.idle {
			return -1
		}
		return 1
	}
	x, y := a.class.key, b.class.key
	return cmp.Or(cmp.Compare(a.free.CPU, b.free.CPU), cmp.Compare(a.free.Memory, b.free.Memory), cmp.Compare(a.free.Disk, b.free.Disk), cmp.Compare(a.free.Taken, b.free.Taken),
		cmp.Compare(x.pool, y.pool), cmp.Compare(x.kind.provider, y.kind.provider), cmp.Compare(x.kind.name, y.kind.name),
		strings.Compare(x.kind.zone, y.kind.zone), cmp.Compare(x.kind.market, y.kind.market), strings.Compare(x.kind.family, y.kind.family),
		strings.Compare(x.attributes, y.attributes))
}

// pattern says what one node of s would be given: one of the first in line that
// fits, so that nobody is passed for ever, and then higher priority first and of each the large before the small, which
// fill the gaps. It leaves that in p.takes, and answers how many nodes may be given the same, one after the other.
func (p *planner) pattern(s *supply) int {
	p.takes = p.takes[:0]
	free, first := s.free, -1
	for i := range p.line {
		if p.fits1(s, free, i) > 0 {
			first = i
			free = p.put(s, free, i, 1)
			break
		}
	}
	if first < 0 {
		return 0
	}
	guess := p.suit(p.line[first].shape, s.class) == maybe
	for _, at := range p.sized {
		if !p.least.Fits(free.Resources) {
			break
		}
		k := p.fits1(s, free, int(at))
		if int(at) == first {
			k = min(k, p.avail(s, int(at))-1)
			p.takes[0].members += k
			free = s.class.take(p.line[at].shape, free, k)
			continue
		}
		if k > 0 {
			guess = guess || p.suit(p.line[at].shape, s.class) == maybe
			free = p.put(s, free, int(at), k)
		}
	}
	if guess {
		return 1
	}
	n := 1 << 30
	for _, t := range p.takes {
		n = min(n, p.line[t.demand].left/t.members)
	}
	return n
}

func (p *planner) put(s *supply, free fit.Space, i, k int) fit.Space {
	p.takes = append(p.takes, take{i, k})
	return s.class.take(p.line[i].shape, free, k)
}

// fits1 is how many members of a demand fit what is left of one node of s.
func (p *planner) fits1(s *supply, free fit.Space, i int) int {
	d := &p.line[i]
	if d.left == 0 || !d.shape.Ask.Fits(free.Resources) {
		return 0
	}
	switch p.suit(d.shape, s.class) {
	case no:
		return 0
	case maybe:
		// Of kinds that nobody has seen one node is counted on, and no more.
		if d.guess != nil {
			return 0
		}
	}
	avail := p.avail(s, i)
	if avail == 0 {
		return 0
	}
	if d.shape.Distinct && slices.ContainsFunc(p.takes, func(t take) bool { return t.demand == i }) {
		return 0
	}
	return d.shape.Times(free, s.class.devices(), avail)
}

// avail is how many members of a demand without room so far may use a node of s.
func (p *planner) avail(s *supply, i int) int {
	d := &p.line[i]
	if s.id == "" {
		return d.left
	}
	if d.isHome(s.id) {
		return 0
	}
	n := d.left
	for x := range d.avoided[s.id] {
		n -= p.leftOf(x)
	}
	return n
}

// leftOf is how many members of a part have no room so far.
func (p *planner) leftOf(x *part) int {
	if x.pass != p.passes {
		x.pass, x.left = p.passes, x.members
	}
	return x.left
}

// settle gives k members of a demand room on a node of s: first those that failed on some nodes, as the others have the choice.
func (p *planner) settle(d *demand, s *supply, k int) {
	d.left -= k
	p.open -= k
	if d.group.strict == 0 {
		return
	}
	if d.strict == nil {
		d.strict = make([]*part, 0, d.parts.Len())
		d.parts.Scan(func(x *part) bool {
			if len(x.failed) > 0 {
				d.strict = append(d.strict, x)
			}
			return true
		})
	}
	for i := 0; i < len(d.strict) && k > 0; i++ {
		x := d.strict[i]
		if s.id != "" && slices.Contains(x.failed, s.id) {
			continue
		}
		n := min(k, p.leftOf(x))
		x.left -= n
		k -= n
	}
	for len(d.strict) > 0 && p.leftOf(d.strict[0]) == 0 {
		d.strict = d.strict[1:]
	}
}

// use gives n nodes of s the last pattern.
func (p *planner) use(s *supply, n int) {
	for _, t := range p.takes {
		d := &p.line[t.demand]
		p.settle(d, s, n*t.members)
		if p.suit(d.shape, s.class) == maybe {
			d.guess = &s.class.sample.Offering
		}
	}
}

// devices of one node of the class.
func (c *class) devices() []muster.Device { return c.sample.Devices() }

// take is what k members leave of the space of a node of the class.
func (c *class) take(s *shape, free fit.Space, k int) fit.Space {
	return s.Take(free, -1, c.devices(), k)
}

// empty is the space of a new node of the offering.
func empty(o *muster.Offering) fit.Space { return fit.Space{Resources: o.Capacity} }
