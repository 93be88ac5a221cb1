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
// priority. What is told to stop already goes anyway. Here is the place for what must never be
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
	for _, seat := range seats {
		n := p.arrivals(s, seat)
		waiting -= n
		if waiting <= 0 {
			return
		}
		if n > 0 && s.field.shape.Distinct {
			continue
		}
		if e := p.evict(s, seat); e != nil {
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
		again := p.evict(s, options[0].seat)
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

// arrivals is how many members of the job will fit on a node when what was
// stopped for it has ended. Their room is nobody else's in this pass.
func (p *pass) arrivals(s *setting, at *seat) (n int) {
	space, some := p.spaceOf(at), false
	p.snap.NodeAllocs(at.row.ID, func(a *state.Alloc) bool {
		if a.StopFor == s.job.UID && a.Desired == muster.AllocStop {
			space, some = without(space, a), true
		}
		return true
	})
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

// evict finds the least harm that makes room for one member on a node; nil: there is no way.
func (p *pass) evict(s *setting, at *seat) *eviction {
	var lower []victim
	space := p.spaceOf(at)
	all := space
	p.snap.NodeAllocs(at.row.ID, func(a *state.Alloc) bool {
		if !givesWay(a) || leastWorth(a) >= s.job.Priority() || p.leaving[a.ID] {
			return true
		}
		if worth := p.worth(a); worth < s.job.Priority() {
			lower = append(lower, victim{a, worth})
			all = without(all, a)
		}
		return true
	})
	fits := func(space fit.Space) bool { return s.field.shape.Times(space, at.row.Devices(), 1) == 1 }
	if len(lower) == 0 || !fits(all) {
		return nil
	}
	need := s.field.shape.Ask.Sub(space.Resources)
	cover := func(a victim) float64 {
		sum := 0.0
		for _, d := range [...][2]int64{
			{int64(a.Run.Ask.CPU), int64(need.CPU)}, {int64(a.Run.Ask.Memory), int64(need.Memory)}, {int64(a.Run.Ask.Disk), int64(need.Disk)},
		} {
			if d[1] > 0 {
				sum += min(float64(d[0])/float64(d[1]), 1)
			}
		}
		if s.field.shape.Names.Scarce() && a.Run.Names.Scarce() {
			sum++
		}
		return sum
	}
	var best *eviction
	try := func(order []victim) {
		if e := least(at, space, order, fits, need); e != nil && (best == nil || e.compare(best) < 0) {
			best = e
		}
	}
	// Each alone; then the most useful first; then the lowest first.
	for i := range lower {
		try(lower[i : i+1])
	}
	if best != nil {
		return best
	}
	byUse := func(a, b victim) int {
		return cmp.Or(cmp.Compare(cover(b), cover(a)), cmp.Compare(a.worth, b.worth), cmp.Compare(b.Placed, a.Placed), cmp.Compare(a.ID, b.ID))
	}
	slices.SortFunc(lower, byUse)
	try(lower)
	slices.SortStableFunc(lower, func(a, b victim) int { return cmp.Compare(a.worth, b.worth) })
	try(lower)
	return best
}

// least takes allocations in order until the member fits, and then spares
// those that are not needed after all, the highest priority first.
func least(at *seat, space fit.Space, order []victim, fits func(fit.Space) bool, need muster.Resources) *eviction {
	e := &eviction{seat: at}
	free := space
	for _, a := range order {
		if fits(free) {
			break
		}
		e.victims = append(e.victims, a)
		free = without(free, a.Alloc)
	}
	if !fits(free) {
		return nil
	}
	slices.SortFunc(e.victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.worth, a.worth), cmp.Compare(a.Placed, b.Placed), cmp.Compare(a.ID, b.ID))
	})
	for i := 0; i < len(e.victims); {
		rest := space
		for k, a := range e.victims {
			if k != i {
				rest = without(rest, a.Alloc)
			}
		}
		if fits(rest) {
			e.victims = slices.Delete(e.victims, i, i+1)
			free = rest
		} else {
			i++
		}
	}
	for _, a := range e.victims {
		e.newest = max(e.newest, a.Placed)
	}
	need = most(need, muster.Resources{})
	over := free.Resources.Sub(space.Resources).Sub(need)
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
	space := p.spaceOf(e.seat)
	for _, a := range e.victims {
		p.leaving[a.ID] = true
		space = without(space, a.Alloc)
		p.decision.Stops = append(p.decision.Stops, state.Stop{
			Alloc: a.ID, Reason: muster.StopPreempted, For: s.job.UID,
			Why: fmt.Sprintf("job %s of priority %d needs its room", s.job.Key, s.job.Priority()),
		})
	}
	p.claim(e.seat, s.field.shape.Take(space, e.seat.row.Cores(), e.seat.row.Devices(), 1))
}
