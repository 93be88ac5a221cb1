package place

import (
	"fmt"
	"math"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// class is nodes that are alike to every shape, but for what is free on them.
// Their capacities are about the same, within one percent: two machines of one kind seldom have the same memory to the byte.
type class struct {
	key     string
	sample  *state.Node
	values  []string // of View.names
	set     []bool
	devices int    // how many each has
	stocked string // what they are
	loose   bool
	nodes   int
	// size is the capacity that scores of asks are reckoned with, the same for all that are about as large.
	size [3]float64
}

// group is the open nodes of a class of which the same devices and ports are
// taken, and that all are fresh or none is: what of a shape hangs on these is decided once.
type group struct {
	groupKey
	// tight has its nodes in the order of fit.Score, the tightest first, or last
	// in a pool that spreads; nodes with devices by what cpu they have free, the least first. worth those that are not fresh by what their warmth is worth, the least first.
	tight, worth tree
	nodes        int
	// version changes with the nodes and their room.
	version uint64
	swept   bool // not among the view's any more
	serial  int  // they rise in the order in which groups are made
	// free is how many thousandths of devices are.
	free int
}

type groupKey struct {
	class *class
	taken muster.Taken // without cores
	fresh bool
}

// steps is how many sizes of capacity there are to a doubling.
const steps = 64

// about is which of the sizes a capacity is nearest to; 0: none.
func about(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return 1 + int64(math.Round(steps*math.Log2(float64(n))))
}

// worthOf is how much tighter an ask makes a node of the class.
func (c *class) worthOf(ask muster.Resources) float64 {
	sum, dims := 0.0, 0
	for i, n := range [...]int64{int64(ask.CPU), int64(ask.Memory), int64(ask.Disk)} {
		if c.size[i] > 0 {
			sum += float64(n) / c.size[i]
			dims++
		}
	}
	return sum / float64(max(dims, 1))
}

func (v *View) classOf(n *state.Node) *class {
	b := fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%s\x00%d %d %d", n.Pool, n.Offering.Provider, n.Offering.Name, n.Offering.Zone, n.Offering.Market,
		about(int64(n.Capacity.CPU)), about(int64(n.Capacity.Memory)), about(int64(n.Capacity.Disk)))
	for _, d := range n.Devices() {
		b = fmt.Appendf(b, "\x00%s/%s/%d/%t", d.Kind, d.Model, d.Count, d.Shared)
	}
	values, set := make([]string, len(v.names)), make([]bool, len(v.names))
	for i, name := range v.names {
		if values[i], set[i] = fit.Attribute(n, name); set[i] {
			b = append(append(append(b, 1), name...), 0)
			b = append(append(b, values[i]...), 0)
		}
	}
	c := v.classes[string(b)]
	if c == nil {
		c = &class{key: string(b), sample: n, values: values, set: set, loose: v.loose[n.Pool]}
		for _, d := range n.Devices() {
			c.devices += d.Count
			c.stocked += d.String() + fmt.Sprint(d.Shared)
		}
		for i, n := range [...]int64{int64(n.Capacity.CPU), int64(n.Capacity.Memory), int64(n.Capacity.Disk)} {
			if n > 0 {
				c.size[i] = math.Exp2(float64(about(n)-1) / steps)
			}
		}
		v.classes[c.key] = c
	}
	return c
}

func (v *View) leave(s *seat) {
	if s.class == nil {
		return
	}
	if s.class.nodes--; s.class.nodes == 0 {
		delete(v.classes, s.class.key)
	}
	s.class = nil
}

// sit puts a node into the trees where it belongs now.
func (v *View) sit(s *seat) {
	if s.lifted || !s.row.Schedulable() {
		return
	}
	s.trees, s.leaves = s.trees[:0], s.leaves[:0]
	key := groupKey{s.class, s.space.Taken.WithoutCores(), len(s.row.Warm) == 0}
	g := s.group
	if g == nil || g.swept || g.groupKey != key {
		g = v.groupOf(key)
		s.group = g
	}
	if g.nodes++; g.nodes == 1 {
		v.empty--
	}
	g.version++
	tight := fit.Score(s.row.Capacity, s.space.Resources)
	switch {
	case s.class.devices > 0:
		tight = -float64(s.space.CPU)
	case s.class.loose:
		tight = -tight
	}
	s.trees = append(s.trees, &g.tight)
	s.leaves = append(s.leaves, leaf{seat: s, key: tight})
	if !g.fresh && len(v.warm) > 0 {
		s.trees = append(s.trees, &g.worth)
		s.leaves = append(s.leaves, leaf{seat: s, key: -float64(s.row.Worth())})
		for _, k := range s.row.Warm {
			if t := v.warm[k]; t != nil {
				s.trees = append(s.trees, t)
				s.leaves = append(s.leaves, leaf{seat: s, key: tight})
			}
		}
	}
	for i, t := range s.trees {
		t.insert(&s.leaves[i])
	}
}

// lift takes a node out of the trees.
func (v *View) lift(s *seat) {
	if len(s.trees) == 0 {
		return
	}
	for i, t := range s.trees {
		t.remove(&s.leaves[i])
	}
	s.trees = s.trees[:0]
	s.group.version++
	if s.group.nodes--; s.group.nodes == 0 {
		v.empty++
	}
}

func (v *View) groupOf(key groupKey) *group {
	g := v.groups[key]
	if g != nil {
		return g
	}
	if v.empty > 64+len(v.made)/2 {
		v.sweep()
	}
	v.serial++
	g = &group{groupKey: key, serial: v.serial, free: key.class.devices * muster.WholeDevice}
	for _, part := range key.taken.Parts() {
		g.free -= part
	}
	v.groups[key] = g
	v.made = append(v.made, g)
	v.empty++
	return g
}

// sweep drops groups that have no node any more; fields do so when they are next asked.
func (v *View) sweep() {
	v.made = slices.DeleteFunc(v.made, func(g *group) bool {
		if g.nodes == 0 {
			delete(v.groups, g.groupKey)
			g.swept = true
		}
		return g.nodes == 0
	})
	v.empty = 0
}

// namesOf are the attributes that a shape asks for, sorted.
func namesOf(s *fit.Shape) (names []string) {
	for i := range s.Constraints {
		names = append(names, s.Constraints[i].Attribute)
	}
	for i := range s.Affinities {
		names = append(names, s.Affinities[i].Attribute)
	}
	for i := range s.Spread {
		names = append(names, s.Spread[i].Attribute)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// name makes sure that nodes are told apart by what a shape asks for.
func (v *View) name(s *fit.Shape) {
	before := len(v.names)
	for _, name := range namesOf(s) {
		if at, found := slices.BinarySearch(v.names, name); !found {
			v.names = slices.Insert(v.names, at, name)
		}
	}
	first := len(v.warm) == 0
	var cold []muster.AffinityKey
	for _, k := range s.Keys {
		if v.warm[k] == nil {
			v.warm[k] = &tree{}
			cold = append(cold, k)
		}
	}
	switch {
	case len(v.names) == before && len(cold) == 0:
		return
	case len(v.names) == before && !first:
		// Only nodes that remember one of them sit elsewhere.
		for _, seat := range v.nodes {
			if len(seat.trees) > 0 && seat.row.WarmFor(cold) > 0 {
				v.lift(seat)
				v.sit(seat)
			}
		}
		return
	}
	for _, seat := range v.nodes {
		v.lift(seat)
	}
	if len(v.names) > before {
		clear(v.classes)
		clear(v.groups)
		v.made, v.empty = nil, 0
		v.epoch++
		for _, seat := range v.nodes {
			seat.group = nil
			seat.class = v.classOf(seat.row)
			seat.class.nodes++
		}
	}
	for _, seat := range v.nodes {
		v.sit(seat)
	}
}
