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

// pool is what memory knows of one environment. Runners.mu guards it, but for shortSince, which
// only decide uses; no environment is decided about twice at once.
type pool struct {
	uid muster.JobUID
	// warm has the runners that the log has as warm. order is the order in which they became warm,
	// and may still name some that are not warm any more. out has those for which a claim is being
	// committed.
	warm  map[muster.AllocID]*state.Alloc
	order []muster.AllocID
	out   map[muster.AllocID]bool
	// newest is at least the newest version among warm. It may be too high after a runner has gone;
	// pop corrects it.
	newest uint64
	// gone has the runners that have ended and are to be purged, the oldest first.
	gone []gone
	// waiters has the waiting claims (*waiter), the first come first.
	waiters list.List
	// stock is how many runners should be warm, by the last decision.
	stock int

	demand demand
	// wake is when to decide even if nothing changes; 0 means never. shortSince is since when too
	// few runners are warm; 0 means that enough are.
	wake, shortSince muster.Time
}

// gone is a runner that has ended and whose output is settled.
type gone struct {
	id    muster.AllocID
	ended muster.Time
}

// isGone reports whether a runner is one to be purged later.
func isGone(a *state.Alloc) bool {
	return a != nil && !a.Live() && a.Runner == muster.RunnerGone && a.Output.Stage != state.OutputOpen
}

// newWakes makes a tree of pools by their wake.
func newWakes() *btree.BTreeG[*pool] {
	return btree.NewBTreeGOptions(func(a, b *pool) bool {
		return cmp.Or(cmp.Compare(a.wake, b.wake), cmp.Compare(a.uid, b.uid)) < 0
	}, btree.Options{NoLocks: true})
}

// waiter is a claim that waits in the queue of its environment.
type waiter struct {
	// given has room for the one runner that the claim gets, so handing it over never blocks. It is
	// closed instead if there will be none, and why says why.
	given chan muster.AllocID
	why   error
	// pool is the environment's, place the claim's place in its queue.
	pool  *pool
	place *list.Element
}

// refuse tells all waiting claims why they get no runner.
func (p *pool) refuse(why error) {
	for e := p.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		w.why = why
		close(w.given)
	}
}

// newPool makes an empty pool.
func newPool(uid muster.JobUID) *pool {
	return &pool{uid: uid, warm: map[muster.AllocID]*state.Alloc{}, out: map[muster.AllocID]bool{}}
}

// refill takes the stock from a snapshot. It keeps out: claims under way still have their runners.
func (p *pool) refill(snap *state.Snapshot) {
	if j := snap.JobByUID(p.uid); j != nil && j.Env != nil && p.demand.before == nil {
		p.demand.before = j.Env.Demand
	}
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

// past removes and returns the runners to purge: the oldest above most, and those that ended at the
// given time or before.
func (p *pool) past(most int, before muster.Time) []gone {
	n := max(len(p.gone)-most, 0)
	for n < len(p.gone) && p.gone[n].ended <= before {
		n++
	}
	past := slices.Clone(p.gone[:n])
	p.gone = slices.Delete(p.gone, 0, n)
	return past
}

// add adds a warm runner or replaces its row.
func (p *pool) add(a *state.Alloc) {
	if p.warm[a.ID] == nil {
		p.order = append(p.order, a.ID)
	}
	p.warm[a.ID] = a
	p.newest = max(p.newest, a.Version)
}

// see processes a change of a runner.
func (p *pool) see(before, a *state.Alloc, at muster.Time, stats *Stats) {
	if a.Runner == muster.RunnerWarm {
		if p.warm[a.ID] == nil {
			// It has just become warm.
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

// pressing reports whether the environment is short of runners: claims wait, or less than half of
// the stock can be claimed.
func (p *pool) pressing() bool {
	return p.waiters.Len() > 0 || 2*(len(p.warm)-len(p.out)) < p.stock
}

// standing is how good a node is for a runner that is handed out now. A higher value is better.
type standing uint64

const (
	// useless: work cannot run there.
	useless standing = iota
	// leaves: the node drains and waits for its work to end.
	leaves
	// silent: the node is out of contact.
	silent
	fine
)

// standingOf returns the standing of a node; nil means that the node does not exist any more.
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

// pop takes the runner that a claim gets; empty if there is none. It prefers a node in good
// standing, then the newest version, then the runner that has been warm for longest. It never takes
// one on a broken node.
//
// Mostly the first free runner is the best, and the search ends there. That matters because
// thousands of claims come here one after the other.
func (p *pool) pop(node func(muster.NodeID) standing) muster.AllocID {
	// Names of runners that are not warm any more are dropped here, where they are met.
	for len(p.order) > 0 && p.warm[p.order[0]] == nil {
		p.order = p.order[1:]
	}
	// A runner that nobody gets, as on a node out of contact, may stay at the head. Without this,
	// each call would walk over all that came and went after it.
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
		// None can be better.
		if rank[0] == uint64(fine) && rank[1] >= p.newest {
			break
		}
	}
	if best == "" {
		return ""
	}
	p.out[best] = true
	// All runners were compared, so newest may be too high.
	if rank[1] < p.newest {
		p.newest = 0
		for _, a := range p.warm {
			p.newest = max(p.newest, a.Version)
		}
	}
	return best
}

// seconds is for how many seconds demand is remembered.
const seconds = int(warm.Window / time.Second)

// demand counts claims by second and remembers how long the last starts took. The counts are a
// ring.
type demand struct {
	counts [seconds]int
	// second is the second of the newest count.
	second int64
	starts []time.Duration
	// before is what earlier leaders recorded; nil if they have recorded nothing.
	before *state.WarmDemand
}

// at moves the ring to a time. The seconds between had no claims.
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

// came counts a claim.
func (d *demand) came(now muster.Time) {
	d.at(now)
	d.counts[d.second%int64(seconds)]++
}

// started records how long a start took.
func (d *demand) started(took time.Duration) {
	const remembered = 100
	if len(d.starts) == remembered {
		d.starts = slices.Delete(d.starts, 0, 1)
	}
	d.starts = append(d.starts, max(took, 0))
}

// picture returns the demand in the form that package warm takes: the counts with the oldest second
// first.
func (p *pool) picture(now, since muster.Time) warm.Demand {
	d := &p.demand
	d.at(now)
	out := warm.Demand{Since: since, Waiting: p.waiters.Len(), Starts: slices.Clone(d.starts), Arrivals: make([]int, 0, seconds), Before: d.before}
	for i := range seconds {
		out.Arrivals = append(out.Arrivals, d.counts[(d.second+1+int64(i))%int64(seconds)])
	}
	return out
}
