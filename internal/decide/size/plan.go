package size

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// OutputWait is how long a node that is about to go waits for output that is
// not stored yet; Patience how long the first in line waits at a limit before busy nodes that cannot
// hold it are given no more work.
const (
	OutputWait = 10 * time.Minute
	Patience   = 5 * time.Minute
)

// Block keeps what its scope names from being launched for a time. After it,
// until the provider has said yes, one launch at a time tries.
type Block struct {
	Scope muster.Scope
	Until muster.Time
	Why   string
	// Held, of a quota, is what the nodes in the scope that had an instance used of it when the
	// provider refused more: the sum of their offerings' weights. Asked is the weight that was
	// refused, the least if there were several. The quota is below Held + Asked, so whatever keeps
	// the sum below that is tried. Held is 0 where the block counts nothing.
	Held, Asked int
}

// Covers reports whether the block keeps the offering from being launched.
func (b *Block) Covers(o *muster.Offering) bool { return b.Scope.Covers(o) }

// Launch is one node to launch.
type Launch struct {
	Pool     muster.PoolName
	Offering muster.Offering
	Reason   string
}

// Turn is a node whose stage is to change.
type Turn struct {
	Node   muster.NodeID
	Reason string
	// IfIdle: only if it has no live allocation when it is done.
	IfIdle bool
	// Unplaced: because the configuration has no place for the node, or because its pool is above its maximum. When the
	// configuration has a place for it again while it drains, it is kept.
	Unplaced bool
}

// Fail is a job that can never run.
type Fail struct {
	UID      muster.JobUID
	Key      muster.JobKey
	Modified uint64
	Reason   string
}

// Wait is why members wait although nothing is launched for them.
type Wait struct {
	Shape    state.ShapeID
	Priority int
	Members  int
	Reason   string
}

// Decisions are what to do now. Every list is in a fixed order.
type Decisions struct {
	Launch []Launch
	// Start are stopped nodes that are started instead of launches, Stop are idle ones to be stopped
	// instead of destroyed.
	Start, Stop []Turn
	Drain       []Turn
	Terminate   []Turn
	// Keep are nodes that drained for want of a place in the configuration, and have one again.
	Keep    []Turn
	Fail    []Fail
	Waits   []Wait
	Budgets []Budget // of pools that have one, by name
	// Wake is when to plan again if nothing changes; 0: never.
	Wake muster.Time
}

// planner is one pass.
type planner struct {
	*View
	now    muster.Time
	paused bool
	blocks []blocking
	out    Decisions

	counts []counts // of each pool, planned launches included
	queue
	open   int    // members without room so far
	takes  []take // of the last pattern
	stuck  []stuck
	turned map[muster.NodeID]bool
	// sleepers are the stopped nodes of a pool that may be started, by kind, the longest stopped first; made when first asked for.
	sleepers map[*pool]map[kind][]*seat
	usable   map[lotKey][]int32 // of line: what fits nodes of a lot
	// kinds counts the planned launches of each kind.
	planned map[kind]int
}

// counts are a pool's, with what this pass plans.
type counts struct {
	poolCounts
	// unused are nodes without work that nothing waiting will use: ready ones, and those on their way.
	unused, unusedOnWay int
	spent               int64
	// reserved says for whom the rest of the budget is kept.
	reserved string
	// stopped nodes are those that the pool keeps, with those that this pass stops, less those it starts.
	stopped int
}

// queue is the demands of a pass.
type queue struct {
	line  []demand // in the order in which they are served
	sized []int32  // of line: by priority, then the large ones first
	least muster.Resources
	// lineGen and classGen of the view that it was made of: while they are the same, only numbers differ.
	lineGen, classGen uint64
}

// demand is a group in one pass.
type demand struct {
	*group
	left int // without room so far
	// strict are the parts whose members failed on some node, those with any left; made when it is first asked.
	strict []*part
	worth  []worth
	// guess is what a node on its way is of that is being launched to see whether it meets the constraints.
	guess *muster.Offering
}

// Plan says what to do about the fleet. While the scheduler is paused nothing that waits will be placed, so that no machine
// is bought, made empty or given up for it: pools keep their minimum, and what there is goes by the same rules as ever.
func Plan(v *View, blocks []Block, now muster.Time, paused bool) *Decisions {
	v.tick(now)
	p := &planner{View: v, now: now, paused: paused, turned: map[muster.NodeID]bool{}, sleepers: map[*pool]map[kind][]*seat{}, usable: map[lotKey][]int32{}, planned: map[kind]int{}}
	p.begin(blocks)
	p.fillAll()
	for p.serveAll() || p.keepMinimum() || !paused && p.keepSpare() {
		// Planned nodes may have served others than those that they are for, so that what was
		// kept from launching is not any more: what is too dear for two that could share a node may do for the one
		// that is left. Look again until nothing is launched, for that is what the next pass would find.
	}
	p.makeRoom()
	p.turnNodes()
	p.tellBudgets()
	return &p.out
}

func (p *planner) wakeAt(t muster.Time) {
	if t > p.now && (p.out.Wake == 0 || t < p.out.Wake) {
		p.out.Wake = t
	}
}

func micros(t muster.Time) time.Duration { return time.Duration(t) * time.Microsecond }

func (p *planner) begin(blocks []Block) {
	p.counts = make([]counts, len(p.pools))
	for i, q := range p.pools {
		p.counts[i].poolCounts = q.poolCounts
		p.counts[i].stopped = q.stopped.Len()
		if q.BudgetMonth > 0 {
			p.counts[i].spent = p.snap.Spent(q.Name, p.now)
		}
	}
	p.readBlocks(blocks)
	p.readLine()
	if w, ok := p.wakes.Min(); ok {
		p.wakeAt(w.at)
	}
}

// BlocksOf returns what the state says about launches that providers have refused: blocks that hold,
// and those that have ended without a success since.
func BlocksOf(snap *state.Snapshot) (out []Block) {
	state.ProvidersOf(snap).Blocks(func(b *state.Block) bool {
		if b.Call == state.CallCreate && b.Times > 0 {
			out = append(out, Block{Scope: b.Scope, Until: b.Until, Why: b.Why, Held: b.Held, Asked: b.Asked})
		}
		return true
	})
	return out
}
