package broker

import (
	"slices"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// group is the blocked jobs of one shape. They cost nothing until room grows.
type group struct {
	shape   *fit.Shape
	entries *btree.BTreeG[*entry] // by rank
	// decided is the newest state in which no node had room for the shape.
	decided uint64
}

// head is the first in order that was tried before the node grew, and may use
// it; or nil.
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

// promise is room on a node for which a blocked job was woken.
type promise struct {
	node muster.NodeID
	room muster.Resources
}

// growth is a node and the index at which its room last grew.
type growth struct {
	node  muster.NodeID
	index uint64
}

// grewLocked remembers that a node's room grew. Indexes come in order, so the
// list stays sorted by them.
func (b *Broker) grewLocked(id muster.NodeID, index uint64) {
	if el := b.grownAt[id]; el != nil {
		el.Value = growth{id, index}
		b.grown.MoveToBack(el)
		return
	}
	b.grownAt[id] = b.grown.PushBack(growth{id, index})
}

// shrankForGoodLocked forgets a node that will never grow again.
func (b *Broker) shrankForGoodLocked(id muster.NodeID) {
	if el := b.grownAt[id]; el != nil {
		b.grown.Remove(el)
		delete(b.grownAt, id)
	}
}

// lastGrowthLocked is the newest index at which any node's room grew.
func (b *Broker) lastGrowthLocked() uint64 {
	if el := b.grown.Back(); el != nil {
		return max(el.Value.(growth).index, b.blind)
	}
	return b.blind
}

// hopelessLocked: the entry's shape was found to fit nowhere, and no room grew since.
func (b *Broker) hopelessLocked(e *entry) bool {
	g := b.groups[e.shapeID]
	return g != nil && g.decided != 0 && g.decided >= b.lastGrowthLocked()
}

// settled: no member of the job could use what its other members cannot.
func settled(job *place.Blocked) bool { return job.Full && len(job.Avoid) == 0 }

// blockLocked puts an entry to the blocked of its shape.
func (b *Broker) blockLocked(e *entry, tried uint64, job *place.Blocked) {
	b.moveLocked(e, blocked)
	g := b.groups[job.Shape.ID]
	if g == nil {
		g = &group{shape: job.Shape, entries: btree.NewBTreeGOptions(func(x, y *entry) bool { return x.rank(y) < 0 }, btree.Options{NoLocks: true})}
		b.groups[job.Shape.ID] = g
	}
	if job.Full {
		g.decided = max(g.decided, tried)
	}
	e.group, e.tried, e.waiting, e.avoid, e.settled = g, tried, job.Waiting, job.Avoid, settled(job)
	b.setTimerLocked(e, 0)
	g.entries.Set(e)
}

// missedLocked offers the nodes that grew after the index: their growth was
// told when who blocks only now was still out.
func (b *Broker) missedLocked(since uint64, snap *state.Snapshot) {
	for el := b.grown.Back(); el != nil && el.Value.(growth).index > since; el = el.Prev() {
		b.offerLocked(el.Value.(growth), snap)
	}
}

// offerLocked wakes those blocked jobs, in order of priority and age over all
// shapes, that the node's room could help and that were last tried before it
// grew: about as many as fit, counting in what was promised before.
func (b *Broker) offerLocked(grown growth, snap *state.Snapshot) {
	if len(b.groups) == 0 {
		return
	}
	n := snap.Node(grown.node)
	if n == nil || !n.Schedulable() {
		return
	}
	free := fit.Room(n).Sub(b.promised[n.ID])
	var groups []*group // that the node could help; their order does not matter
	for _, g := range b.groups {
		if g.shape.Ask.Fits(free) && grown.index > g.decided && fit.Check(g.shape, n, free, nil).Kind == fit.None {
			groups = append(groups, g)
		}
	}
	for {
		var first *entry
		for _, g := range groups {
			if !g.shape.Ask.Fits(free) {
				continue
			}
			if e := g.head(grown); e != nil && (first == nil || e.rank(first) < 0) {
				first = e
			}
		}
		if first == nil {
			return
		}
		ask := first.group.shape.Ask
		room := times(ask, ask.Times(free, first.waiting))
		free = free.Sub(room)
		b.promised[n.ID] = b.promised[n.ID].Add(room)
		first.woken = append(first.woken, promise{n.ID, room})
		b.stats.Woken++
		b.setTimerLocked(first, 0)
		b.moveLocked(first, ready)
	}
}

func times(r muster.Resources, n int) muster.Resources {
	return muster.Resources{CPU: r.CPU * muster.MilliCPU(n), Memory: r.Memory * muster.Bytes(n), Disk: r.Disk * muster.Bytes(n)}
}

// releaseLocked takes back what an entry was woken for, now that it is
// answered, and offers it to the next: it may have had no use for it.
func (b *Broker) releaseLocked(e *entry, snap *state.Snapshot) {
	woken := e.woken
	e.woken = nil
	for _, p := range woken {
		left := b.promised[p.node].Sub(p.room)
		if left == (muster.Resources{}) {
			delete(b.promised, p.node)
		} else {
			b.promised[p.node] = left
		}
	}
	for _, p := range woken {
		if el := b.grownAt[p.node]; el != nil {
			b.offerLocked(el.Value.(growth), snap)
		}
	}
}
