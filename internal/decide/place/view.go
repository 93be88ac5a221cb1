package place

import (
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// View is the nodes as the scheduler sees them: in groups of equals, each by how
// tight its nodes are, so that a plan costs what it places and not what there is.
//
// It is built from a snapshot and advanced by the change feed; advanced or built
// anew it is the same. What Plan places it counts in from then on: several workers who plan on one
// view, one after the other, never plan for the same room. A placement is counted until the feed
// shows its allocation, or Return says that it was refused.
//
// One goroutine at a time may use it. The usual turn of a worker, under a lock:
//
//	v.Advance(changes, index)             // from v.Position() on, as the feed has them
//	d := v.Plan(snapshot, jobs, now, …)   // the snapshot at least as new as the view
//	…unlocked: have it committed…
//	v.Return(refused)                     // again under the lock
type View struct {
	at state.Position

	loose map[muster.PoolName]bool // pools that put members where the most room is
	nodes map[muster.NodeID]*seat
	// names of attributes that shapes have asked for, sorted: nodes that agree on these are alike to all of them.
	names   []string
	classes map[string]*class
	groups  map[groupKey]*group
	made    []*group // all of groups, in the order in which they were made
	empty   int      // of them without a node
	serial  int      // of the last that was made
	epoch   uint64   // changes when made begins anew
	fields  map[state.ShapeID]*field

	// warm are trees of the nodes that remember a key, for the keys that shapes
	// have asked for; nodes of each are in the order of tightness.
	warm map[muster.AffinityKey]*tree
	// out are placements that the state does not show yet.
	out map[muster.AllocID]promise
	// stirred are nodes to be seated anew when the changes are through.
	stirred []*seat
	// capacity is what all nodes have, used or not.
	capacity muster.Resources
	// running counts allocations that may give way, by the lowest priority that each can have.
	running map[int]int
}

// seat is a node.
type seat struct {
	row   *state.Node
	luck  uint64
	class *class
	space fit.Space // what is free, less what is out
	// owed is the amounts of what is out, named those of it that name something.
	owed    muster.Resources
	named   map[muster.AllocID]promise
	group   *group // the last that it was in
	stirred bool
	// leaves are its places in the trees: of its group by tightness and, if keys are asked for, by worth; then of its keys.
	leaves []leaf
	trees  []*tree
	lifted bool // out of all trees for as long as one job is planned
	// given are the members that the pass puts there.
	given []gift
}

// promise is a placement that is out.
type promise struct {
	node  muster.NodeID
	run   *state.Run
	grant muster.Grant
}

// NewView makes the view of a snapshot.
func NewView(snap *state.Snapshot) *View {
	v := &View{out: map[muster.AllocID]promise{}}
	v.build(snap)
	return v
}

// Rebuild makes the view anew from a snapshot: when the feed could not be
// followed. What is out stays out, but for what the snapshot shows.
func (v *View) Rebuild(snap *state.Snapshot) { v.build(snap) }

// Position is how far the view has followed the feed.
func (v *View) Position() state.Position { return v.at }

// At says that the last changes were only some of their entry's: the others come next.
func (v *View) At(p state.Position) { v.at = p }

// Index of the state that the view shows.
func (v *View) Index() uint64 { return v.at.Index }

func (v *View) build(snap *state.Snapshot) {
	names, out := v.names, v.out
	*v = View{
		at: state.AfterIndex(snap.Index()), names: names, out: map[muster.AllocID]promise{}, epoch: v.epoch + 1, serial: v.serial,
		loose: map[muster.PoolName]bool{}, nodes: map[muster.NodeID]*seat{}, classes: map[string]*class{},
		groups: map[groupKey]*group{}, fields: map[state.ShapeID]*field{}, warm: map[muster.AffinityKey]*tree{}, running: map[int]int{},
	}
	snap.Pools(func(p *state.Pool) bool {
		if p.Spread {
			v.loose[p.Name] = true
		}
		return true
	})
	snap.LiveNodes(func(n *state.Node) bool { v.see(n, false); return true })
	snap.LiveAllocs(func(a *state.Alloc) bool { v.count(a, 1); return true })
	for id, p := range out {
		if snap.Alloc(id) == nil {
			v.promise(id, p)
		}
	}
	v.reseat()
}

// Advance follows the feed: changes in their order, up to and with those of
// the entry at index. False: the pools have changed, and the view must be rebuilt.
func (v *View) Advance(changes []state.Change, index uint64) bool {
	for i := range changes {
		switch c := &changes[i]; {
		case c.Verb == state.VerbConfigPools:
			return false
		case c.Config:
			// The view knows nothing of offerings, breakers and shares: spot prices may change each minute.
		case c.Alloc != nil || c.AllocBefore != nil:
			v.count(c.AllocBefore, -1)
			v.count(c.Alloc, 1)
			if c.AllocBefore == nil {
				v.settle(c.Alloc.ID)
			}
		case c.Node != nil:
			// Work that comes and goes changes nothing but room.
			v.see(c.Node, c.Verb == state.VerbNodeUsed || c.Verb == state.VerbNodeFreed)
		case c.NodeBefore != nil:
			v.forget(c.NodeBefore.ID)
		}
	}
	v.reseat()
	v.at = state.AfterIndex(index)
	return true
}

// Return gives back what was planned and will not be: it was refused, or nobody
// knows whether it was committed. What the feed has shown meanwhile is passed over.
func (v *View) Return(placements []state.Placement) {
	for i := range placements {
		v.settle(placements[i].Alloc())
	}
	v.reseat()
}

// Out is how many placements are counted in that the state does not show yet.
func (v *View) Out() int { return len(v.out) }

// promise counts in a placement that is out.
func (v *View) promise(id muster.AllocID, p promise) {
	v.settle(id) // a delivery that timed out may have planned it before
	v.out[id] = p
	if s := v.nodes[p.node]; s != nil {
		s.owed = s.owed.Add(p.run.Ask)
		if p.run.Names != nil {
			if s.named == nil {
				s.named = map[muster.AllocID]promise{}
			}
			s.named[id] = p
		}
	}
}

// settle takes a placement off what is out.
func (v *View) settle(id muster.AllocID) {
	p, ok := v.out[id]
	if !ok {
		return
	}
	delete(v.out, id)
	if s := v.nodes[p.node]; s != nil {
		s.owed = s.owed.Sub(p.run.Ask)
		delete(s.named, id)
		v.stir(s)
	}
}

// count keeps running right.
func (v *View) count(a *state.Alloc, by int) {
	if a == nil || !givesWay(a) {
		return
	}
	worth := leastWorth(a)
	if v.running[worth] += by; v.running[worth] == 0 {
		delete(v.running, worth)
	}
}

// see takes in a node's row; alike says that nothing but its work has changed.
func (v *View) see(n *state.Node, alike bool) {
	if !n.Stage.Live() {
		v.forget(n.ID)
		return
	}
	s := v.nodes[n.ID]
	if s == nil {
		s = &seat{luck: luck(n.ID)}
		v.nodes[n.ID] = s
	}
	was := s.row
	s.row = n
	if was != nil {
		v.capacity = v.capacity.Sub(was.Capacity)
	}
	v.capacity = v.capacity.Add(n.Capacity)
	v.stir(s)
	if was != nil && slices.Equal(was.Warm, n.Warm) && was.WarmAt == n.WarmAt && (alike || sameNode(was, n)) {
		return
	}
	v.lift(s)
	if was == nil || !alike && !sameNode(was, n) {
		v.leave(s)
		s.class = v.classOf(n)
		s.class.nodes++
	}
}

// stir notes that a node is to be seated anew.
func (v *View) stir(s *seat) {
	if !s.stirred {
		s.stirred = true
		v.stirred = append(v.stirred, s)
	}
}

// reseat brings the trees in line with the rows and with what is out. What was
// out and is in the row now leaves everything as it is.
func (v *View) reseat() {
	for _, s := range v.stirred {
		s.stirred = false
		if s.row == nil {
			continue // gone again
		}
		space := fit.SpaceOf(s.row)
		space.Resources = space.Sub(s.owed)
		space.Taken = v.taken(s)
		if len(s.trees) > 0 && space == s.space && s.row.Schedulable() {
			continue
		}
		v.lift(s)
		s.space = space
		v.sit(s)
	}
	clear(v.stirred) // nodes that have gone are not kept by it
	v.stirred = v.stirred[:0]
}

// taken is what of a node's names is taken, by its row and by what is out.
func (v *View) taken(s *seat) muster.Taken {
	taken := s.row.Taken
	for _, p := range s.named {
		taken, _ = taken.Take(p.run.Names, p.grant, s.row.Cores(), s.row.Devices())
	}
	return taken
}

func sameNode(a, b *state.Node) bool {
	return a.Pool == b.Pool && a.Capacity == b.Capacity && a.Offering.Provider == b.Offering.Provider && a.Offering.Name == b.Offering.Name &&
		a.Offering.Zone == b.Offering.Zone && a.Offering.Market == b.Offering.Market &&
		slices.Equal(a.Offering.Devices, b.Offering.Devices) && maps.Equal(a.Attributes, b.Attributes)
}

func (v *View) forget(id muster.NodeID) {
	s := v.nodes[id]
	if s == nil {
		return
	}
	v.lift(s)
	v.leave(s)
	v.capacity = v.capacity.Sub(s.row.Capacity)
	s.row, s.group, s.trees, s.leaves = nil, nil, nil, nil
	delete(v.nodes, id)
}
