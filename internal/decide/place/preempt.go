package place

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// givesWay reports whether an allocation may be told to stop for one of higher
// priority. What is stopping already goes anyway. Here is the place for what must never be
// taken from its holder, whatever the priority: a claimed runner.
func givesWay(a *state.Alloc) bool {
	return a.Live() && a.Desired == muster.AllocRun && a.Runner != muster.RunnerClaimed
}

// leastWorth is the lowest priority that an allocation can have: a runner is worth what its environment has of them.
func leastWorth(a *state.Alloc) int {
	if a.Runner != "" {
		return muster.MinPriority
	}
	return a.Run.Priority()
}

// victim is an allocation that may give way, with the priority that it has now: the verifier and the state judge by that, and
// a plan that judges otherwise is refused for ever.
type victim struct {
	*state.Alloc
	worth int
}

func (p *pass) worth(a *state.Alloc) int {
	if a.Runner == "" {
		return a.Run.Priority()
	}
	return a.Priority(p.snap.JobByUID(a.UID))
}

// eviction is allocations of one node that would make room for a member.
type eviction struct {
	seat    *seat
	victims []victim
	surplus float64 // how much more than needed they would free, of the node
	newest  muster.Time
}

// compare orders by harm, the least first: the fewest victims; then the lowest
// priorities, the highest of each looked at first; then those whose size is nearest to what is needed; then the newest.
func (e *eviction) compare(o *eviction) int {
	if c := cmp.Compare(len(e.victims), len(o.victims)); c != 0 {
		return c
	}
	for i := range e.victims {
		if c := cmp.Compare(e.victims[i].worth, o.victims[i].worth); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(e.surplus, o.surplus), cmp.Compare(o.newest, e.newest), cmp.Compare(e.seat.row.ID, o.seat.row.ID))
}

// preempt plans who gives way to members of a job that fit nowhere: allocations of lower priority, never equals. The
// members themselves are placed when the room is there; until then what was stopped for the job is
// counted as coming, and nobody else is stopped for the same members. On nodes in avoid, where all of them have failed, room is of no use.
func (p *pass) preempt(s *setting, waiting int, avoid []muster.NodeID) {
	below := false
	for priority := range p.view.running {
		below = below || priority < s.job.Priority()
	}
	key := evictionKey{s.job.Run.Shape, s.job.Priority()}
	if !below || p.spared[key] {
		return
	}
	var options []*eviction
	var seats []*seat
	for _, seat := range p.view.nodes {
		if s.of(seat, avoid) && seat.row.Schedulable() && fit.Feasible(s.field.shape, seat.row) == "" && s.field.shape.Times(fit.Space{Resources: seat.row.Capacity}, seat.row.Devices(), 1) == 1 {
			seats = append(seats, seat)
		}
	}
	slices.SortFunc(seats, func(a, b *seat) int { return cmp.Compare(a.row.ID, b.row.ID) })
	var here []*state.Alloc
	for _, seat := range seats {
		here = p.at(seat, here[:0])
		n := p.arrivals(s, seat, here)
		waiting -= n
		if waiting <= 0 {
			return
		}
		if n > 0 && s.field.shape.Distinct {
			continue
		}
		if e := p.evict(s, seat, here); e != nil {
			options = append(options, e)
		}
	}
	if len(options) == 0 && len(avoid) == 0 && s.homes == nil {
		if p.spared == nil {
			p.spared = map[evictionKey]bool{}
		}
		p.spared[key] = true
	}
	least := (*evictions)(&options)
	heap.Init(least)
	for ; waiting > 0 && len(options) > 0; waiting-- {
		// Who waits beyond it is planned for when the room of these has come.
		if len(p.decision.Stops)+len(options[0].victims) > maxStops && len(p.decision.Stops) > 0 {
			return
		}
		p.stop(s, options[0])
		here = p.at(options[0].seat, here[:0])
		again := p.evict(s, options[0].seat, here)
		if again == nil || s.field.shape.Distinct {
			heap.Pop(least)
		} else {
			options[0] = again
			heap.Fix(least, 0)
		}
	}
}

// maxStops bounds how many a plan stops: it is one fact, which the log takes up to a size, and is made while others
// wait for the picture of the nodes.
const maxStops = 4096

// evictions is a heap of them, the least harm first.
type evictions []*eviction

func (e evictions) Len() int           { return len(e) }
func (e evictions) Less(i, k int) bool { return e[i].compare(e[k]) < 0 }
func (e evictions) Swap(i, k int)      { e[i], e[k] = e[k], e[i] }
func (e *evictions) Push(x any)        { *e = append(*e, x.(*eviction)) }

func (e *evictions) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return x
}

// of reports whether room on a node is of use to a member that found none: where another member is only if it comes back there.
func (s *setting) of(at *seat, avoid []muster.NodeID) bool {
	if slices.Contains(s.missed, at) {
		return true
	}
	return !at.lifted && (s.homes == nil || s.untried > 0) && !slices.Contains(avoid, at.row.ID)
}

type evictionKey struct {
	shape    state.ShapeID
	priority int
}

// at appends the allocations of a node.
func (p *pass) at(seat *seat, allocs []*state.Alloc) []*state.Alloc {
	p.snap.NodeAllocs(seat.row.ID, func(a *state.Alloc) bool {
		allocs = append(allocs, a)
		return true
	})
	return allocs
}

// arrivals is how many members of the job will fit on a node when those of its allocations that were
// stopped for the job have ended. Their room is nobody else's in this pass.
func (p *pass) arrivals(s *setting, at *seat, here []*state.Alloc) (n int) {
	space, some := p.spaceOf(at), false
	for _, a := range here {
		if a.StopFor == s.job.UID && a.Desired == muster.AllocStop {
			space, some = without(space, a), true
		}
	}
	if !some {
		return 0
	}
	n = s.field.shape.Times(space, at.row.Devices(), s.job.Waiting())
	p.claim(at, s.field.shape.Take(space, at.row.Cores(), at.row.Devices(), n))
	return n
}

// spaceOf is what is free on a node in this pass, less what earlier jobs wait for there.
func (p *pass) spaceOf(s *seat) fit.Space {
	if left, ok := p.claimed[s]; ok {
		return left
	}
	return s.space
}

func (p *pass) claim(s *seat, left fit.Space) {
	if p.claimed == nil {
		p.claimed = map[*seat]fit.Space{}
	}
	p.claimed[s] = left
}

// without is a space once an allocation has ended.
func without(space fit.Space, a *state.Alloc) fit.Space {
	return fit.Space{Resources: space.Add(a.Run.Ask), Taken: space.Taken.Release(a.Run.Names, a.Grant)}
}

// evict finds the least harm that makes room for one member on a node, whose allocations are given; nil: there is no way.
// A plan may ask it of every node of the cluster.
func (p *pass) evict(s *setting, at *seat, here []*state.Alloc) *eviction {
	r := room{shape: s.field.shape, devices: at.row.Devices(), plain: !s.field.shape.Names.Scarce(), space: p.spaceOf(at)}
	lower, all, same := p.lower[:0], r.space, true
	for _, a := range here {
		if !givesWay(a) || leastWorth(a) >= s.job.Priority() || p.leaving[a.ID] {
			continue
		}
		if worth := p.worth(a); worth < s.job.Priority() {
			lower = append(lower, victim{a, worth})
			same = same && worth == lower[0].worth
			all = r.add(all, a)
		}
	}
	p.lower = lower
	if len(lower) == 0 || !r.fits(all) {
		return nil
	}
	r.need = r.shape.Ask.Sub(r.space.Resources)
	var best *eviction
	try := func(order []victim) {
		if e := r.least(at, order); e != nil && (best == nil || e.compare(best) < 0) {
			best = e
		}
	}
	// Each alone; then the most useful first; then the lowest first.
	for i, a := range lower {
		if r.fits(r.add(r.space, a.Alloc)) {
			try(lower[i : i+1])
		}
	}
	if best != nil {
		return best
	}
	slices.SortFunc(lower, func(a, b victim) int {
		return cmp.Or(cmp.Compare(r.cover(b), r.cover(a)), cmp.Compare(a.worth, b.worth), cmp.Compare(b.Placed, a.Placed), cmp.Compare(a.ID, b.ID))
	})
	try(lower)
	if !same {
		slices.SortStableFunc(lower, func(a, b victim) int { return cmp.Compare(a.worth, b.worth) })
		try(lower)
	}
	return best
}

// room is what a member needs on a node, and what is free there.
type room struct {
	shape   *fit.Shape
	devices []muster.Device
	// plain members need no devices or ports, so that resources alone decide.
	plain bool
	space fit.Space
	// need is what is short; what there is enough of is negative.
	need muster.Resources
}

func (r *room) fits(space fit.Space) bool { return r.shape.Times(space, r.devices, 1) == 1 }

// add is a space once an allocation has ended, as far as it matters to the member.
func (r *room) add(space fit.Space, a *state.Alloc) fit.Space {
	if r.plain {
		space.Resources = space.Add(a.Run.Ask)
		return space
	}
	return without(space, a)
}

// remaining is the space when all of the victims end but one; free is what there is when all of them end.
func (r *room) remaining(free fit.Space, victims []victim, but int) fit.Space {
	if r.plain {
		free.Resources = free.Sub(victims[but].Run.Ask)
		return free
	}
	rest := r.space
	for k, a := range victims {
		if k != but {
			rest = without(rest, a.Alloc)
		}
	}
	return rest
}

// cover is how much of what is short an allocation would free: the sum of the parts, each one at most.
func (r *room) cover(a victim) float64 {
	sum := 0.0
	for _, d := range [...][2]int64{
		{int64(a.Run.Ask.CPU), int64(r.need.CPU)}, {int64(a.Run.Ask.Memory), int64(r.need.Memory)}, {int64(a.Run.Ask.Disk), int64(r.need.Disk)},
	} {
		if d[1] > 0 {
			sum += min(float64(d[0])/float64(d[1]), 1)
		}
	}
	if r.shape.Names.Scarce() && a.Run.Names.Scarce() {
		sum++
	}
	return sum
}

// least takes allocations in order until the member fits, and then spares
// those that are not needed after all, the highest priority first.
func (r *room) least(at *seat, order []victim) *eviction {
	n, free := 0, r.space
	for n < len(order) && !r.fits(free) {
		free = r.add(free, order[n].Alloc)
		n++
	}
	if !r.fits(free) {
		return nil
	}
	e := &eviction{seat: at, victims: slices.Clone(order[:n])}
	slices.SortFunc(e.victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.worth, a.worth), cmp.Compare(a.Placed, b.Placed), cmp.Compare(a.ID, b.ID))
	})
	for i := 0; i < len(e.victims); {
		if rest := r.remaining(free, e.victims, i); r.fits(rest) {
			e.victims = slices.Delete(e.victims, i, i+1)
			free = rest
		} else {
			i++
		}
	}
	for _, a := range e.victims {
		e.newest = max(e.newest, a.Placed)
	}
	over := free.Resources.Sub(r.space.Resources).Sub(most(r.need, muster.Resources{}))
	for _, d := range [...][2]int64{
		{int64(over.CPU), int64(at.row.Capacity.CPU)}, {int64(over.Memory), int64(at.row.Capacity.Memory)}, {int64(over.Disk), int64(at.row.Capacity.Disk)},
	} {
		if d[1] > 0 {
			e.surplus += float64(max(d[0], 0)) / float64(d[1])
		}
	}
	return e
}

// stop plans an eviction.
func (p *pass) stop(s *setting, e *eviction) {
	if p.leaving == nil {
		p.leaving = map[muster.AllocID]bool{}
	}
	if p.evicted != nil {
		p.evicted(e)
	}
	space, why := p.spaceOf(e.seat), fmt.Sprintf("job %s of priority %d needs its capacity", s.job.Key, s.job.Priority())
	for _, a := range e.victims {
		p.leaving[a.ID] = true
		space = without(space, a.Alloc)
		p.decision.Stops = append(p.decision.Stops, state.Stop{Alloc: a.ID, Reason: muster.StopPreempted, For: s.job.UID, Why: why})
	}
	p.claim(e.seat, s.field.shape.Take(space, e.seat.row.Cores(), e.seat.row.Devices(), 1))
}
