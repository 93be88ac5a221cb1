package size

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// View is the picture that Plan decides on: what waits, by shape, and what there
// is, by room. It is built from a snapshot and advanced by the changes since, so that a pass costs what
// has changed and not what there is; advanced or built anew, Plan says the same. One goroutine at a time may use it.
type View struct {
	snap *state.Snapshot
	now  muster.Time // the latest time that was planned for

	jobs    map[muster.JobUID]*waiter
	wakes   *sorted[wake] // when waiters have a retry that is due
	groups  map[groupKey]*group
	waiting *sorted[*group] // in the order in which they are served
	shapes  map[state.ShapeID]*shape
	avoided map[muster.NodeID]int // nodes that are out of the question for some members that wait
	passes  uint64

	nodes   map[muster.NodeID]*seat
	classes map[classKey]*class
	seen    map[kindOfPool]map[*class]bool // classes of nodes that have joined, by kind
	lots    map[lotKey]*lot
	onWay   *sorted[*seat] // supply that is not open yet, by id
	odd     *sorted[*seat] // what is to be moved towards its end, by id
	ending  map[*seat]bool // being drained or destroyed
	kinds   map[kind]*tally
	pools   []*pool // by name
	byName  map[muster.PoolName]*pool
	sold    map[muster.ProviderName]map[muster.OfferingName]bool
	sale    []*muster.Offering // all of them
	largest muster.Resources   // of all that is on sale, by dimension
	// names of attributes that constraints of waiting shapes ask for, sorted: two
	// nodes of a kind that agree on these are alike to all of them.
	names []string
	// classGen changes with the set of classes, nodeGen with any node that could be given work some day.
	classGen, nodeGen uint64
	// lineGen changes with the set of groups and their order.
	lineGen uint64
	queue   queue
	waits   int // how many demands waited in the last pass
	// planGen changes with every pass and with every launch that it plans.
	planGen uint64
}

type wake struct {
	at  muster.Time
	uid muster.JobUID
}

// Build makes the view of a snapshot.
func Build(snap *state.Snapshot) *View {
	v := &View{}
	v.build(snap)
	return v
}

func (v *View) build(snap *state.Snapshot) {
	byID := func(a, b *seat) int { return cmp.Compare(a.row.ID, b.row.ID) }
	*v = View{
		snap: snap, now: v.now, passes: v.passes, avoided: map[muster.NodeID]int{}, classGen: v.classGen + 1, nodeGen: v.nodeGen + 1, planGen: v.planGen + 1, lineGen: v.lineGen + 1,
		jobs: map[muster.JobUID]*waiter{}, groups: map[groupKey]*group{}, shapes: map[state.ShapeID]*shape{},
		wakes:   ordered(func(a, b wake) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.uid, b.uid)) }),
		waiting: ordered(inLine),
		nodes:   map[muster.NodeID]*seat{}, classes: map[classKey]*class{}, seen: map[kindOfPool]map[*class]bool{},
		lots: map[lotKey]*lot{}, onWay: ordered(byID), odd: ordered(byID), ending: map[*seat]bool{},
		kinds: map[kind]*tally{}, byName: map[muster.PoolName]*pool{}, sold: map[muster.ProviderName]map[muster.OfferingName]bool{},
	}
	// What waits tells which attributes matter, so it comes first.
	snap.Unsettled(func(j *state.Job) bool { v.refreshJob(j.UID); return true })
	snap.WakeAt(func(w state.Wake) bool { v.refreshJob(w.UID); return true })
	v.readConfig()
	snap.LiveNodes(func(n *state.Node) bool { v.refreshNode(n.ID); return true })
	snap.GoneNodes(func(n *state.Node) bool { v.refreshNode(n.ID); return true })
}

// Advance brings the view to a later snapshot by the changes between, in their
// order; the same again, or some of before, does no harm.
func (v *View) Advance(snap *state.Snapshot, changes []state.Change) {
	config, onlyOffers := false, true
	for i := range changes {
		if c := &changes[i]; c.Config {
			config, onlyOffers = true, onlyOffers && c.Verb == state.VerbConfigOfferings
		}
	}
	if config && !(onlyOffers && v.reprice(snap)) {
		v.build(snap)
		return
	}
	v.snap = snap
	named := len(v.names)
	// Rows are read from the snapshot: a change only says which. Several of one row cost one look.
	var order []muster.JobUID
	members := map[muster.JobUID][]int{}
	touch := func(uid muster.JobUID) {
		if _, known := members[uid]; !known {
			order, members[uid] = append(order, uid), nil
		}
	}
	for i := range changes {
		c := &changes[i]
		for _, j := range [...]*state.Job{c.JobBefore, c.Job} {
			if j != nil {
				touch(j.UID)
			}
		}
		if a := cmp.Or(c.Alloc, c.AllocBefore); a != nil {
			touch(a.UID)
			members[a.UID] = append(members[a.UID], a.Index)
		}
		if n := cmp.Or(c.Node, c.NodeBefore); n != nil {
			v.refreshNode(n.ID)
		}
	}
	for _, uid := range order {
		v.refreshMembers(uid, members[uid])
	}
	v.tellApart(named)
}

// tick lets retries become due.
func (v *View) tick(now muster.Time) {
	v.now = max(v.now, now)
	named := len(v.names)
	for {
		w, ok := v.wakes.Min()
		if !ok || w.at > v.now {
			break
		}
		v.refreshDue(w.uid)
	}
	v.tellApart(named)
}

// tellApart builds the view anew if there were fewer names of attributes that
// matter: nodes that were alike may not be any more. A retry that becomes due can be the first to ask for one.
func (v *View) tellApart(named int) {
	if len(v.names) > named {
		v.build(v.snap)
	}
}

func (v *View) readConfig() {
	v.snap.Pools(func(row *state.Pool) bool {
		q := &pool{Pool: row, at: len(v.pools), idle: ordered(func(a, b *seat) int {
			return cmp.Or(cmp.Compare(a.row.IdleSince, b.row.IdleSince), cmp.Compare(a.row.ID, b.row.ID))
		}), unready: ordered(func(a, b *seat) int {
			return cmp.Or(cmp.Compare(a.useless(), b.useless()), cmp.Compare(a.row.ID, b.row.ID))
		}), stopped: ordered(func(a, b *seat) int {
			return cmp.Or(cmp.Compare(a.row.StageSince, b.row.StageSince), cmp.Compare(a.row.ID, b.row.ID))
		})}
		v.pools = append(v.pools, q)
		v.byName[row.Name] = q
		return true
	})
	v.snap.Offerings(func(o *muster.Offering) bool {
		v.sale = append(v.sale, o)
		names := v.sold[o.Provider]
		if names == nil {
			names = map[muster.OfferingName]bool{}
			v.sold[o.Provider] = names
		}
		names[o.Name] = true
		for _, q := range v.pools {
			if q.Covers(o) {
				sample := &state.Node{Pool: q.Name, Offering: *o}
				q.offers = append(q.offers, &offer{Offering: o, class: v.classOf(sample)})
				v.largest = muster.Resources{CPU: max(v.largest.CPU, o.Capacity.CPU), Memory: max(v.largest.Memory, o.Capacity.Memory), Disk: max(v.largest.Disk, o.Capacity.Disk)}
			}
		}
		return true
	})
}

// reprice takes in what is on sale now, if only prices and what can be had have changed: then no node and nothing that waits
// has to be looked at. Spot prices change each minute.
func (v *View) reprice(snap *state.Snapshot) bool {
	same := true
	var sale []*muster.Offering
	snap.Offerings(func(o *muster.Offering) bool {
		same = len(sale) < len(v.sale) && sameButPrice(v.sale[len(sale)], o)
		sale = append(sale, o)
		return same
	})
	if !same || len(sale) != len(v.sale) {
		return false
	}
	v.sale = sale
	for _, q := range v.pools {
		at := 0
		for _, o := range sale {
			if q.Covers(o) {
				q.offers[at].Offering = o
				at++
			}
		}
	}
	// Whatever was found out with the prices of before.
	v.classGen++
	v.nodeGen++
	v.lineGen++
	v.planGen++
	return true
}

// sameButPrice reports whether two offerings differ in no more than their prices and in whether they can be had.
func sameButPrice(a, b *muster.Offering) bool {
	return kindOf(a) == kindOf(b) && a.Capacity == b.Capacity && a.Limit == b.Limit && maps.Equal(a.Attributes, b.Attributes) && slices.Equal(a.Devices, b.Devices)
}

// pool is a pool with what is counted of its nodes.
type pool struct {
	*state.Pool
	at     int
	offers []*offer // covered by it, as the provider lists them
	poolCounts
	idle *sorted[*seat] // open nodes without work, the longest idle first
	// unready nodes without work, the ones that have been both for longest first.
	unready *sorted[*seat]
	// stopped nodes, the longest stopped first; at most as many as the pool may have.
	stopped *sorted[*seat]
}

// poolCounts: live are all its nodes that are not gone; launching those that
// have not joined; kept those that nothing ends; ending those being drained or destroyed; price is what live ones cost at most.
type poolCounts struct {
	live, launching, kept, ending int
	price                         muster.Price
}

// offer is an offering as one pool uses it; class that of its nodes before they join.
type offer struct {
	*muster.Offering
	class *class
	// why it cannot be launched now, as of a planGen.
	why    obstacle
	whyGen uint64
}

// kind is all that tells the nodes of one offering from others.
type kind struct {
	provider muster.ProviderName
	name     muster.OfferingName
	zone     string
	market   muster.Market
	family   string
	weight   int
}

type kindOfPool struct {
	pool muster.PoolName
	kind kind
}

func kindOf(o *muster.Offering) kind {
	return kind{o.Provider, o.Name, o.Zone, o.Market, o.Family, o.Weight}
}

func (k kind) offering() *muster.Offering {
	return &muster.Offering{Provider: k.provider, Name: k.name, Zone: k.zone, Market: k.market, Family: k.family, Weight: k.weight}
}

// tally counts the nodes of a kind: all that are not gone, and of them those being launched.
type tally struct{ live, launching int }

// class is nodes that are alike to every waiting shape, but for their room.
type class struct {
	key    classKey
	sample *state.Node
	refs   int
}

type classKey struct {
	kindOfPool
	joined     bool
	attributes string
}

func (v *View) classOf(n *state.Node) *class {
	key := classKey{kindOfPool: kindOfPool{n.Pool, kindOf(&n.Offering)}, joined: n.Joined != 0}
	attributes := n.Attributes
	if !key.joined {
		attributes = n.Offering.Attributes
	}
	var b strings.Builder
	for _, name := range v.names {
		if value, set := attributes[name]; set {
			b.WriteString(name + "\x00" + value + "\x00")
		}
	}
	key.attributes = b.String()
	c := v.classes[key]
	if c == nil {
		c = &class{key: key, sample: n}
		v.classes[key] = c
		v.classGen++
		if key.joined {
			if v.seen[key.kindOfPool] == nil {
				v.seen[key.kindOfPool] = map[*class]bool{}
			}
			v.seen[key.kindOfPool][c] = true
		}
	}
	c.refs++
	return c
}

func (v *View) leave(c *class) {
	if c.refs--; c.refs > 0 {
		return
	}
	delete(v.classes, c.key)
	v.classGen++
	if of := v.seen[c.key.kindOfPool]; c.key.joined {
		delete(of, c)
		if len(of) == 0 {
			delete(v.seen, c.key.kindOfPool)
		}
	}
}

// suits is whether members of a shape may go to nodes of a class, were they empty enough.
type suits uint8

const (
	no suits = iota
	yes
	// maybe: they must meet some constraint that only an agent of theirs can tell
	// about, and none of their kind has spoken yet.
	maybe
)

// shape is a waiting shape, with what was found out about it.
type shape struct {
	*fit.Shape
	groups int
	size   float64 // its share of the largest that there is, in its largest dimension

	gen     uint64 // of suits and choices
	suits   map[*class]suits
	choices []choice
	why     string // there are no choices

	verdictGen uint64
	verdict    verdict
}

type verdict struct {
	ok, known bool
	why       string
}

func (v *View) fresh(s *shape) {
	if s.gen == v.classGen {
		return
	}
	s.gen, s.choices, s.why = v.classGen, nil, ""
	if s.suits == nil {
		s.suits = map[*class]suits{}
	}
	clear(s.suits)
	s.size = max(share(int64(s.Ask.CPU), int64(v.largest.CPU)), share(int64(s.Ask.Memory), int64(v.largest.Memory)), share(int64(s.Ask.Disk), int64(v.largest.Disk)))
}

func share(part, whole int64) float64 {
	if part == 0 {
		return 0
	}
	return float64(part) / float64(max(whole, 1))
}

// suit answers for a class.
func (v *View) suit(s *shape, c *class) suits {
	v.fresh(s)
	answer, known := s.suits[c]
	if !known {
		answer = v.judge(s, c)
		s.suits[c] = answer
	}
	return answer
}

func (v *View) judge(s *shape, c *class) suits {
	if c.key.joined {
		if fit.Feasible(s.Shape, c.sample) == "" {
			return yes
		}
		return no
	}
	q := v.byName[c.key.pool]
	if q == nil {
		return no
	}
	obstacle, unsure := fit.OfferingFits(s.Shape, q.Pool, &c.sample.Offering)
	switch {
	case obstacle.Kind != fit.None:
		return no
	case len(unsure) == 0:
		return yes
	}
	// Nodes of the kind that have joined show it; those that are gone count for as long as they are remembered.
	for like := range v.seen[c.key.kindOfPool] {
		if fit.FeasibleIn(s.Shape, like.sample, unsure) == "" {
			return yes
		}
	}
	if len(v.seen[c.key.kindOfPool]) > 0 {
		return no
	}
	return maybe
}

// fits is Fits, looked up while nothing has changed that it depends on.
func (v *View) fits(s *shape) verdict {
	if s.verdictGen != v.nodeGen {
		ok, known, why := fits(v.snap, s.Shape)
		s.verdictGen, s.verdict = v.nodeGen, verdict{ok, known, why}
	}
	return s.verdict
}

// name makes sure that nodes are told apart by the attributes that a shape asks for.
func (v *View) name(s *fit.Shape) {
	for i := range s.Constraints {
		a := s.Constraints[i].Attribute
		if at, found := slices.BinarySearch(v.names, a); !found {
			v.names = slices.Insert(v.names, at, a)
		}
	}
}
