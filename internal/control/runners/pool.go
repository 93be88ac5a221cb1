package runners

import (
	"cmp"
	"container/list"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/warm"
	"github.com/musterhq/muster/internal/state"
)

// pool is what memory knows of one environment. The mutex of Runners guards it.
type pool struct {
	uid muster.JobUID
	// warm are the runners that the log has as warm; order is the one in which they came,
	// with some that are warm no more; out are those that a claim is being committed for.
	warm  map[muster.AllocID]*state.Alloc
	order []muster.AllocID
	out   map[muster.AllocID]bool
	// newest is the newest version among warm, or a newer one that was.
	newest uint64
	// gone are the runners to be forgotten, in the order in which they went.
	gone []gone
	// waiters are *waiter, the first come first.
	waiters list.List
	// stock is how many shall be warm, as last decided.
	stock int

	demand demand
	// wake is when it is to be decided about even if nothing changes; shortSince when too few became warm.
	wake, shortSince muster.Time
}

// gone is a runner that has ended, with all its output.
type gone struct {
	id    muster.AllocID
	ended muster.Time
}

func isGone(a *state.Alloc) bool {
	return a != nil && !a.Live() && a.Runner == muster.RunnerGone && a.Output.Stage != state.OutputOpen
}

// newWakes sorts pools by when they are to be decided about.
func newWakes() *btree.BTreeG[*pool] {
	return btree.NewBTreeGOptions(func(a, b *pool) bool {
		return cmp.Or(cmp.Compare(a.wake, b.wake), cmp.Compare(a.uid, b.uid)) < 0
	}, btree.Options{NoLocks: true})
}

// waiter is a claim that waits in the queue of its environment.
type waiter struct {
	// given has room for the one runner that the claim gets, so handing it over never blocks. It is
	// closed instead if there will be none: the environment is deleted, or the server stops.
	given chan muster.AllocID
	// pool is the environment's, place the claim's place in its queue.
	pool  *pool
	place *list.Element
}

func newPool(uid muster.JobUID) *pool {
	return &pool{uid: uid, warm: map[muster.AllocID]*state.Alloc{}, out: map[muster.AllocID]bool{}}
}

// refill takes the stock from a snapshot.
func (p *pool) refill(snap *state.Snapshot) {
	clear(p.warm)
	p.order = p.order[:0]
	snap.Runners(p.uid, muster.RunnerWarm, func(a *state.Alloc) bool {
		p.add(a)
		return true
	})
	p.gone = p.gone[:0]
	snap.JobAllocs(p.uid, 0, func(a *state.Alloc) bool {
		if isGone(a) {
			p.gone = append(p.gone, gone{a.ID, a.Ended})
		}
		return true
	})
	slices.SortStableFunc(p.gone, func(a, b gone) int { return cmp.Compare(a.ended, b.ended) })
}

// past takes off the runners that are to be forgotten: the oldest of more than most, and those that went before a time.
func (p *pool) past(most int, before muster.Time) []gone {
	n := max(len(p.gone)-most, 0)
	for n < len(p.gone) && p.gone[n].ended <= before {
		n++
	}
	past := slices.Clone(p.gone[:n])
	p.gone = slices.Delete(p.gone, 0, n)
	return past
}

func (p *pool) add(a *state.Alloc) {
	if p.warm[a.ID] == nil {
		p.order = append(p.order, a.ID)
	}
	p.warm[a.ID] = a
	p.newest = max(p.newest, a.Version)
}

// see takes in a runner's change.
func (p *pool) see(before, a *state.Alloc, at muster.Time, stats *Stats) {
	if a.Runner == muster.RunnerWarm {
		if p.warm[a.ID] == nil {
			took := at.Sub(a.Placed)
			p.demand.started(took)
			stats.Start.Observe(took.Seconds())
		}
		p.add(a)
		return
	}
	delete(p.warm, a.ID)
	delete(p.out, a.ID)
	if isGone(a) && !isGone(before) {
		p.gone = append(p.gone, gone{a.ID, a.Ended})
	}
}

// pressing reports whether it is short of runners: claims wait, or less than half of the stock can be claimed.
func (p *pool) pressing() bool {
	return p.waiters.Len() > 0 || 2*(len(p.warm)-len(p.out)) < p.stock
}

// standing is how good a node is for whoever gets a runner there.
type standing uint64

const (
	// useless: what runs there cannot work.
	useless standing = iota
	// leaves: it drains, and waits for whoever is there to end.
	leaves
	// silent: it is out of contact.
	silent
	fine
)

// standingOf is how good the node of a runner is, which a snapshot has or has no more.
func standingOf(n *state.Node, reached func(muster.NodeID) bool) standing {
	switch {
	case n == nil || n.Health == muster.NodeBroken:
		return useless
	case n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain:
		return leaves
	case !reached(n.ID):
		return silent
	}
	return fine
}

// pop takes the runner that a claim shall get; empty if there is none: the one that has been warm for longest, of the newest version, and
// on a node that is fine before all others; never on one that is broken.
//
// Mostly it is the first that nobody has: claims by the thousand come here, one after the other.
func (p *pool) pop(node func(muster.NodeID) standing) muster.AllocID {
	for len(p.order) > 0 && p.warm[p.order[0]] == nil {
		p.order = p.order[1:]
	}
	// One at the head that nobody is given, as on a node out of contact, would have all that came and went after it looked at each time.
	if len(p.order) > 2*len(p.warm)+16 {
		p.order = slices.DeleteFunc(p.order, func(id muster.AllocID) bool { return p.warm[id] == nil })
	}
	var best muster.AllocID
	var rank [2]uint64
	for _, id := range p.order {
		a := p.warm[id]
		if a == nil || p.out[id] {
			continue
		}
		r := [2]uint64{uint64(node(a.Node)), a.Version}
		if r[0] == uint64(useless) {
			continue
		}
		if best == "" || r[0] > rank[0] || r[0] == rank[0] && r[1] > rank[1] {
			best, rank = id, r
		}
		if rank[0] == uint64(fine) && rank[1] >= p.newest {
			break
		}
	}
	if best == "" {
		return ""
	}
	p.out[best] = true
	if rank[1] < p.newest {
		p.newest = 0
		for _, a := range p.warm {
			p.newest = max(p.newest, a.Version)
		}
	}
	return best
}

// seconds is how many of them are remembered.
const seconds = int(warm.Window / time.Second)

// demand counts claims by second, and remembers the last starts.
type demand struct {
	counts [seconds]int
	second int64 // of the newest count
	starts []time.Duration
}

// at moves to a moment: seconds without claims are empty.
func (d *demand) at(now muster.Time) {
	s := int64(now) / int64(time.Second/time.Microsecond)
	if s-d.second > int64(seconds) {
		d.counts = [seconds]int{}
		d.second = s
	}
	for d.second < s {
		d.second++
		d.counts[d.second%int64(seconds)] = 0
	}
}

func (d *demand) came(now muster.Time) {
	d.at(now)
	d.counts[d.second%int64(seconds)]++
}

func (d *demand) started(took time.Duration) {
	const remembered = 100
	if len(d.starts) == remembered {
		d.starts = slices.Delete(d.starts, 0, 1)
	}
	d.starts = append(d.starts, max(took, 0))
}

// picture is the demand as the decision takes it.
func (p *pool) picture(now, since muster.Time) warm.Demand {
	d := &p.demand
	d.at(now)
	out := warm.Demand{Since: since, Waiting: p.waiters.Len(), Starts: slices.Clone(d.starts), Arrivals: make([]int, 0, seconds)}
	for i := range seconds {
		out.Arrivals = append(out.Arrivals, d.counts[(d.second+1+int64(i))%int64(seconds)])
	}
	return out
}
