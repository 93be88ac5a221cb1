package broker

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// group holds the blocked jobs of one shape. They cost nothing until room grows that their shape
// could use.
type group struct {
	shape   *fit.Shape
	entries *btree.BTreeG[*entry] // by rank
	// decided is the index of the newest state in which no node had room for the shape. Growth up
	// to that index cannot help.
	decided uint64
}

// head returns the first entry in order that was tried before the node grew and may use the node;
// nil if there is none.
func (g *group) head(grown growth) (head *entry) {
	if grown.index <= g.decided {
		return nil
	}
	g.entries.Scan(func(e *entry) bool {
		if e.tried < grown.index && !slices.Contains(e.avoid, grown.node) {
			head = e
		}
		return head == nil
	})
	return head
}

// promise is the room on a node for which a blocked job was woken. It keeps the broker from waking
// others for the same room. A promise binds only the broker: it is not in the state.
type promise struct {
	node     muster.NodeID
	priority int
	room     muster.Resources
}

// growth is a node, and the index at which its free room last grew.
type growth struct {
	node  muster.NodeID
	index uint64
}

// grewLocked records that a node's room grew. Indexes come in ascending order, so the list stays
// sorted.
func (b *Broker) grewLocked(id muster.NodeID, index uint64) {
	if el := b.grownAt[id]; el != nil {
		el.Value = growth{id, index}
		b.grown.MoveToBack(el)
		return
	}
	b.grownAt[id] = b.grown.PushBack(growth{id, index})
}

// shrankForGoodLocked forgets a node that will never have room again.
func (b *Broker) shrankForGoodLocked(id muster.NodeID) {
	if el := b.grownAt[id]; el != nil {
		b.grown.Remove(el)
		delete(b.grownAt, id)
	}
}

// lastGrowthLocked returns the newest index at which the room of any node grew, or may have grown
// unseen.
func (b *Broker) lastGrowthLocked() uint64 {
	if el := b.grown.Back(); el != nil {
		return max(el.Value.(growth).index, b.blind)
	}
	return b.blind
}

// hopelessLocked reports whether the entry's shape was found to fit nowhere and no room has grown
// since. Then a worker need not try again.
func (b *Broker) hopelessLocked(e *entry) bool {
	g := b.groups[e.shapeID]
	return g != nil && g.decided != 0 && g.decided >= b.lastGrowthLocked()
}

// settled reports whether the worker's answer holds for all members of the job: no node had room
// for the shape, and no member avoids any node.
func settled(job *place.Blocked) bool { return job.Full && len(job.Avoid) == 0 }

// unblockLocked removes an entry from its group or its limit.
func (b *Broker) unblockLocked(e *entry) {
	if e.limitedIn != "" {
		b.unlimitLocked(e)
	} else if e.group.entries.Delete(e); e.group.entries.Len() == 0 {
		delete(b.groups, e.group.shape.ID)
	}
	e.group, e.limitedIn = nil, ""
}

// blockLocked adds an entry to the group of its shape, or to the limit that binds it.
func (b *Broker) blockLocked(e *entry, tried uint64, job *place.Blocked) {
	b.moveLocked(e, blocked)
	if job.Bound.Namespace != "" {
		e.tried, e.waiting, e.avoid, e.settled = tried, job.Waiting, nil, true
		b.limitLocked(e, job.Bound.Namespace)
		b.setTimerLocked(e, 0)
		return
	}
	g := b.groups[job.Shape.ID]
	if g == nil {
		g = &group{shape: job.Shape, entries: ranked()}
		b.groups[job.Shape.ID] = g
	}
	if job.Full {
		g.decided = max(g.decided, tried)
	}
	// A job that got something has not been passed over; its time starts again.
	if e.since == 0 || job.Waiting < e.waiting {
		e.since = b.now(b.cfg.State.Latest())
	}
	e.group, e.tried, e.waiting, e.avoid, e.settled = g, tried, job.Waiting, job.Avoid, settled(job)
	b.setTimerLocked(e, 0)
	g.entries.Set(e)
}

// missedLocked offers the nodes that grew after the index. They grew while the jobs that are
// blocked now were still out, so the growth woke none of them.
func (b *Broker) missedLocked(since uint64, snap *state.Snapshot) {
	for el := b.grown.Back(); el != nil && el.Value.(growth).index > since; el = el.Prev() {
		b.offerLocked(el.Value.(growth), snap)
	}
}

// pledges is the room promised on one node, by the priority of the job that it is promised to.
type pledges map[int]muster.Resources

// from is the room promised to jobs of a priority and higher. A promise to a lower priority does
// not count: that job's plan loses to the higher one when plans are verified.
func (p pledges) from(priority int) (sum muster.Resources) {
	for to, r := range p {
		if to >= priority {
			sum = sum.Add(r)
		}
	}
	return sum
}

// promiseLocked promises room on a node to an entry.
func (b *Broker) promiseLocked(e *entry, id muster.NodeID, room muster.Resources) {
	p := b.promised[id]
	if p == nil {
		p = pledges{}
		b.promised[id] = p
	}
	p[e.priority] = p[e.priority].Add(room)
	e.woken = append(e.woken, promise{id, e.priority, room})
}

// takeBackLocked cancels a promise.
func (b *Broker) takeBackLocked(w promise) {
	p := b.promised[w.node]
	if p == nil {
		// A promise of no room has no entry.
		return
	}
	if p[w.priority] = p[w.priority].Sub(w.room); p[w.priority] == (muster.Resources{}) {
		if delete(p, w.priority); len(p) == 0 {
			delete(b.promised, w.node)
		}
	}
}

// offerLocked wakes the blocked jobs that a node's room could help and that were last tried before
// it grew. It wakes them by priority and age over all shapes, and about as many as fit, counting
// what is already promised to others of the same or a higher priority. Waking too many costs only a
// try; waking too few would leave room unused.
func (b *Broker) offerLocked(grown growth, snap *state.Snapshot) {
	if len(b.groups) == 0 {
		return
	}
	n := snap.Node(grown.node)
	if n == nil || !n.Schedulable() {
		return
	}
	b.offerReservedLocked(n)
	room := fit.Room(n)
	// groups are those that the node could help; their order does not matter.
	var groups []*group
	for _, g := range b.groups {
		if g.shape.Ask.Fits(room) && grown.index > g.decided && fit.Check(g.shape, n, room, nil).Kind == fit.None {
			groups = append(groups, g)
		}
	}
	// Wake one entry at a time, for each promise leaves less room for the next.
	for {
		var first *entry
		var free muster.Resources
		for _, g := range groups {
			e := g.head(grown)
			if e == nil || first != nil && e.rank(first) >= 0 {
				continue
			}
			if left := room.Sub(b.promised[n.ID].from(e.priority)); g.shape.Ask.Fits(left) {
				first, free = e, left
			}
		}
		if first == nil {
			return
		}
		ask := first.group.shape.Ask
		b.promiseLocked(first, n.ID, multiply(ask, ask.Times(free, first.waiting)))
		b.stats.Woken++
		b.setTimerLocked(first, 0)
		first.wants = first.waiting
		b.moveLocked(first, ready)
	}
}

// multiply returns a resource amount multiplied by n.
func multiply(r muster.Resources, n int) muster.Resources {
	return muster.Resources{CPU: r.CPU * muster.MilliCPU(n), Memory: r.Memory * muster.Bytes(n), Disk: r.Disk * muster.Bytes(n)}
}

// releaseLocked cancels the promises to an entry that was answered, and offers the room to the next
// one: the entry may not have used it. All promises are canceled before the first offer, so that
// the offers see all of the room.
func (b *Broker) releaseLocked(e *entry, snap *state.Snapshot) {
	woken := e.woken
	e.woken = nil
	for _, p := range woken {
		b.takeBackLocked(p)
	}
	for _, p := range woken {
		if el := b.grownAt[p.node]; el != nil {
			b.offerLocked(el.Value.(growth), snap)
		}
	}
}
