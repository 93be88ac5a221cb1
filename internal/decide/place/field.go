package place

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// field is the groups as one shape sees them. It is kept from pass to pass: what
// is asked of it again costs what has changed since.
//
// The order in which nodes are taken: the highest preference first (affinities
// and spread); then by devices (see stock); then the warm ones, the fresh ones and the others, the least worth first,
// if the shape has affinity keys; then the tightest with the member counted in, then by id.
type field struct {
	view    *View
	shape   *fit.Shape
	epoch   uint64
	read    int // the serial of the last group that it has judged
	stocks  map[stockKey]stock
	buckets []*bucket
	of      map[*group]*entry
}

// bucket is the groups with the same preference: they meet the same affinities, and have the same values to spread over.
type bucket struct {
	affinity float64
	values   []string // of the shape's spread attributes
	entries  []*entry
}

// entry is a group that the shape may use.
type entry struct {
	*group
	bucket *bucket
	stock
	worth float64 // of the ask
	// best as of a version of the group.
	seen  uint64
	found *leaf
}

// option is a node that a member may go to, with all that orders it.
type option struct {
	seat             *seat
	preference, rank float64
	warmth           int // 0: warm, or no matter; 1: fresh; 2: other
	worth            float64
	value            float64
}

// better is the order among nodes that fit.
func (o *option) better(than *option) bool {
	switch {
	case than.seat == nil:
		return o.seat != nil
	case o.seat == nil:
		return false
	}
	if c := cmp.Or(cmp.Compare(than.preference, o.preference), cmp.Compare(o.rank, than.rank), cmp.Compare(o.warmth, than.warmth),
		cmp.Compare(o.worth, than.worth), cmp.Compare(than.value, o.value)); c != 0 {
		return c < 0
	}
	return o.seat.row.ID < than.seat.row.ID
}

// maxFields bounds how many shapes are remembered from pass to pass.
const maxFields = 4096

func (v *View) field(r *state.Run) *field {
	f := v.fields[r.Shape]
	if f == nil {
		if len(v.fields) >= maxFields {
			clear(v.fields)
			// Every shape is named anew: of a key that no node has any more nothing need be remembered.
			maps.DeleteFunc(v.warm, func(_ muster.AffinityKey, t *tree) bool { return t.root == nil })
		}
		f = &field{view: v, shape: fit.ShapeOf(r)}
		v.name(f.shape)
		v.fields[r.Shape] = f
	}
	return f
}

// refresh judges groups that are new since, and forgets those that are gone.
func (f *field) refresh() {
	v := f.view
	if f.epoch != v.epoch || f.of == nil {
		f.epoch, f.read, f.buckets, f.of, f.stocks = v.epoch, 0, nil, map[*group]*entry{}, map[stockKey]stock{}
	}
	if f.read == v.serial {
		return
	}
	if len(f.of) > 2*len(v.made)+64 {
		for _, b := range f.buckets {
			b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
				if e.swept {
					delete(f.of, e.group)
				}
				return e.swept
			})
		}
	}
	from, _ := slices.BinarySearchFunc(v.made, f.read+1, func(g *group, serial int) int { return cmp.Compare(g.serial, serial) })
	for _, g := range v.made[from:] {
		c := g.class
		if fit.Feasible(f.shape, c.sample) != "" {
			continue
		}
		st := f.stock(g)
		if !st.ok {
			continue
		}
		e := &entry{group: g, stock: st, worth: c.worthOf(f.shape.Ask)}
		e.bucket = f.bucketOf(c)
		e.bucket.entries = append(e.bucket.entries, e)
		f.of[g] = e
	}
	f.read = v.serial
}

func (f *field) bucketOf(c *class) *bucket {
	affinity := liking(f.shape, c.sample, func(*fit.Affinity) {})
	values := f.valuesOf(c.sample)
	at, found := slices.BinarySearchFunc(f.buckets, 0, func(b *bucket, _ int) int {
		return cmp.Or(cmp.Compare(affinity, b.affinity), slices.Compare(b.values, values))
	})
	if !found {
		f.buckets = slices.Insert(f.buckets, at, &bucket{affinity: affinity, values: values})
	}
	return f.buckets[at]
}

// valuesOf are those of a node that members are spread over.
func (f *field) valuesOf(n *state.Node) []string {
	values := make([]string, len(f.shape.Spread))
	for i := range f.shape.Spread {
		values[i], _ = fit.Attribute(n, f.shape.Spread[i].Attribute)
	}
	return values
}

// liking is the sum of the weights of the affinities that a node meets; met is told of each of them.
func liking(s *fit.Shape, n *state.Node, met func(*fit.Affinity)) (sum float64) {
	for i := range s.Affinities {
		a := &s.Affinities[i]
		if v, set := fit.Attribute(n, a.Attribute); a.Met(v, set) {
			sum += float64(a.Weight)
			met(a)
		}
	}
	return sum
}

// coresPerDevice is how many cores a member that comes for a device is reckoned to ask for with it.
// A device beyond what the free cores of its node are enough for is stranded.
const coresPerDevice = 8

// stock is what a shape finds of devices in a group.
type stock struct {
	ok bool // it can be given what it asks for by name
	// rank orders, the lowest first: who asks for no device goes where there are none, and else where the fewest
	// are free; who asks for some, all else equal, where the fewest are left, and what is left of one in part use counts more than a whole one.
	rank          float64
	asks          bool // for devices; then before and after are what is free of them
	before, after float64
}

type stockKey struct {
	devices string
	taken   muster.Taken
}

func (f *field) stock(g *group) stock {
	ask := f.shape.Names
	if !ask.Scarce() && g.class.devices == 0 {
		return stock{ok: true}
	}
	key := stockKey{g.class.stocked, g.taken}
	s, known := f.stocks[key]
	if !known {
		s = stockOf(ask, g)
		f.stocks[key] = s
	}
	return s
}

func stockOf(ask *muster.NamedAsk, g *group) stock {
	free := float64(g.free) / muster.WholeDevice
	if ask == nil || len(ask.Devices) == 0 {
		if ask != nil && slices.ContainsFunc(ask.Ports, func(p int) bool { return slices.Contains(g.taken.Ports(), p) }) {
			return stock{}
		}
		if g.class.devices == 0 {
			return stock{ok: true}
		}
		return stock{ok: true, rank: 1 + free}
	}
	scarce := &muster.NamedAsk{Devices: ask.Devices, Ports: ask.Ports}
	grant, short := g.taken.Give(scarce, 0, g.class.sample.Devices())
	if short != "" {
		return stock{}
	}
	taken, _ := g.taken.Take(scarce, grant, 0, g.class.sample.Devices())
	s := stock{ok: true, asks: true, before: free, after: float64(g.class.devices)}
	broken := 0.0
	for _, p := range taken.Parts() {
		s.after -= float64(p) / muster.WholeDevice
		if p > 0 && p < muster.WholeDevice {
			broken += float64(muster.WholeDevice-p) / muster.WholeDevice
		}
	}
	s.rank = broken + s.after/100
	return s
}

// strands is how many devices more a member would leave stranded on a node, fewer if below zero; in its rank it counts the most.
func (s *stock) strands(on *seat, ask muster.MilliCPU) float64 {
	if !s.asks {
		return 0
	}
	stranded := func(devices float64, cpu muster.MilliCPU) float64 {
		return devices - min(devices, float64(cpu)/(1000*coresPerDevice))
	}
	return 100 * (stranded(s.after, on.space.CPU-ask) - stranded(s.before, on.space.CPU))
}

// find is the best node of the group, but for warmth.
func (e *entry) find(ask muster.Resources, will func(*seat) bool) *leaf {
	if !e.asks || float64(ask.CPU) <= 1000*coresPerDevice*(e.before-e.after) {
		// It leaves fewer stranded the fewer cores there are: the first in order.
		return e.tight.first(ask, will)
	}
	// It strands none where there are cores enough for it and for what is left, and the fewest where the most are.
	enough := ask
	enough.CPU = max(muster.MilliCPU(1000*coresPerDevice*e.before), ask.CPU+muster.MilliCPU(1000*coresPerDevice*e.after))
	if l := e.tight.first(enough, will); l != nil {
		return l
	}
	return e.tight.last(ask, will)
}

// best is the node that the next member goes to; a nil seat: none. Nodes in
// avoid are passed over. Counts are of the job's members by value of each spread attribute, total how many it has.
func (f *field) best(avoid []muster.NodeID, spread *tally) option {
	f.refresh()
	var best option
	for _, b := range f.buckets {
		if best.seat != nil && len(f.shape.Spread) == 0 {
			break // the others have a lower preference
		}
		o := option{preference: b.affinity + spread.term(f.shape, b.values)}
		if best.seat != nil && o.preference < best.preference {
			continue
		}
		f.bestIn(b, &o, avoid)
		if o.better(&best) {
			best = o
		}
	}
	return best
}

// bestIn finds the best node of a bucket.
func (f *field) bestIn(b *bucket, found *option, avoid []muster.NodeID) {
	preference := found.preference
	var will func(*seat) bool
	if len(avoid) > 0 {
		will = func(s *seat) bool { return !slices.Contains(avoid, s.row.ID) }
	}
	lowest := 0.0
	keys := f.shape.Keys
	if f.shape.Names != nil && len(f.shape.Names.Devices) > 0 {
		keys = nil // a device that stays of use is worth more than a warm start
	}
	if len(keys) > 0 {
		lowest = f.least(b)
	}
	for _, k := range keys {
		l := f.view.warm[k].first(f.shape.Ask, func(s *seat) bool {
			e := f.of[s.group]
			return e != nil && e.bucket == b && e.rank <= lowest && (will == nil || will(s))
		})
		if l != nil {
			e := f.of[l.seat.group]
			*found = option{seat: l.seat, preference: preference, rank: e.rank, value: e.value(l)}
			return
		}
	}
	for _, e := range b.entries {
		if e.nodes == 0 || !e.asks && found.seat != nil && e.rank > found.rank {
			continue
		}
		o := option{preference: preference, rank: e.rank}
		if len(keys) > 0 {
			o.warmth = 1
			if !e.fresh {
				o.warmth = 2
			}
		}
		var l *leaf
		switch {
		case o.warmth == 2:
			l = e.group.worth.first(f.shape.Ask, will)
		case will != nil:
			l = e.find(f.shape.Ask, will)
		case e.seen == e.version+1:
			l = e.found
		default:
			l = e.find(f.shape.Ask, nil)
			e.seen, e.found = e.version+1, l
		}
		if l == nil {
			continue
		}
		o.seat, o.value = l.seat, e.value(l)
		o.rank += e.strands(l.seat, f.shape.Ask.CPU)
		if o.warmth == 2 {
			o.worth = -l.key
		}
		if o.better(found) {
			*found = o
		}
	}
}

// least is the lowest rank of a group with a node.
func (f *field) least(b *bucket) float64 {
	least, some := 0.0, false
	for _, e := range b.entries {
		if e.nodes > 0 && (!some || e.rank < least) {
			least, some = e.rank, true
		}
	}
	return least
}

// value of a node with the member counted in: its score, or how empty it is where the pool spreads.
func (e *entry) value(l *leaf) float64 {
	score := fit.Score(l.seat.row.Capacity, l.seat.space.Resources) + e.worth
	if e.class.loose {
		return 1 - score
	}
	return score
}

// tally is a job's members by the values that they are spread over.
type tally struct {
	total  int
	counts []map[string]int // by spread attribute
	values []int            // how many values there are
}

// term is how much better nodes with these values are, by the weights of the
// spreads: each from its weight, for a value that has no member yet, down to 0 for one that has its share, and below past that.
func (t *tally) term(s *fit.Shape, values []string) float64 {
	if t == nil {
		return 0
	}
	sum := 0.0
	for i := range s.Spread {
		part, _, _ := t.part(&s.Spread[i], i, values[i])
		sum += part
	}
	return sum
}

// part is the term of one of the spreads, how many members have the value, and how many should.
func (t *tally) part(sp *fit.Spread, i int, value string) (term, have, share float64) {
	share, have = t.share(sp, i, value), float64(t.counts[i][value])
	if share > 0 {
		return float64(sp.Weight) * (share - have) / share, have, share
	}
	return -float64(sp.Weight) * (1 + have), have, share
}

// share is how many of the members a value should have.
func (t *tally) share(sp *fit.Spread, i int, value string) float64 {
	if len(sp.Targets) == 0 {
		return float64(t.total) / float64(max(t.values[i], 1))
	}
	percent, ok := sp.Targets[value]
	if !ok {
		rest := 100
		for _, p := range sp.Targets {
			rest -= p
		}
		return float64(rest) / 100 * float64(t.total) / float64(max(t.values[i], 1))
	}
	return float64(percent) / 100 * float64(t.total)
}

func (t *tally) add(values []string, n int) {
	for i, v := range values {
		t.counts[i][v] += n
	}
}

// tallyOf counts the members of a job that live.
func (f *field) tallyOf(j *state.Job, snap *state.Snapshot) *tally {
	if len(f.shape.Spread) == 0 {
		return nil
	}
	f.refresh()
	t := &tally{total: j.Count()}
	for i := range f.shape.Spread {
		t.counts = append(t.counts, map[string]int{})
		seen := map[string]bool{}
		for _, b := range f.buckets {
			if _, aimed := f.shape.Spread[i].Targets[b.values[i]]; !aimed {
				seen[b.values[i]] = true
			}
		}
		t.values = append(t.values, len(seen))
	}
	if j.LiveAllocs > 0 {
		snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			if s := f.view.nodes[a.Node]; s != nil && a.Live() && a.Version == j.Version {
				for i := range f.shape.Spread {
					v, _ := fit.Attribute(s.row, f.shape.Spread[i].Attribute)
					t.counts[i][v]++
				}
			}
			return true
		})
	}
	return t
}

// clear takes the nodes that have a member of the job out of the trees, and
// tells which; for jobs on distinct hosts.
func (f *field) clear(j *state.Job, snap *state.Snapshot) (lifted []*seat) {
	if !f.shape.Distinct || j.LiveAllocs == 0 {
		return nil
	}
	snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
		if s := f.view.nodes[a.Node]; s != nil && a.Live() && !s.lifted {
			f.view.lift(s)
			s.lifted = true
			lifted = append(lifted, s)
		}
		return true
	})
	slices.SortFunc(lifted, func(a, b *seat) int { return strings.Compare(string(a.row.ID), string(b.row.ID)) })
	return lifted
}
