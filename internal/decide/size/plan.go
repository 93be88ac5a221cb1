package size

import (
	"cmp"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// OutputWait is how long a node that is about to go waits for output that is
// not stored yet.
const OutputWait = 10 * time.Minute

// Block keeps what its scope names from being launched for a time. After it,
// until the provider has said yes, one launch at a time tries.
type Block struct {
	Scope muster.Scope
	Until muster.Time
	Why   string
}

// Covers reports whether the block keeps the offering from being launched.
func (b *Block) Covers(o *muster.Offering) bool {
	s := &b.Scope
	return (s.Provider == "" || s.Provider == o.Provider) && (s.Zone == "" || s.Zone == o.Zone) &&
		(s.Offering == "" || s.Offering == o.Name) && (s.Market == "" || s.Market == o.Market)
}

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
	Launch    []Launch
	Drain     []Turn
	Terminate []Turn
	Fail      []Fail
	Waits     []Wait
	// Wake is when to plan again if nothing changes; 0: never.
	Wake muster.Time
}

// planner is one pass.
type planner struct {
	snap   *state.Snapshot
	blocks []Block
	now    muster.Time
	out    Decisions

	pools   []*pool
	byName  map[muster.PoolName]*pool
	sold    map[muster.ProviderName]map[muster.OfferingName]bool
	nodes   []*supply
	demands []*demand
	looks   map[look]looked
	// kinds counts the nodes of each kind of a provider, planned launches included.
	kinds map[kind]int
}

// pool is a pool with its counts, planned launches included.
type pool struct {
	*state.Pool
	offers []*muster.Offering // covered by it, as the provider lists them
	// live are all its nodes that are not gone; launching those in that stage;
	// kept those that nothing ends; ending those being destroyed.
	live, launching, kept, ending int
}

// supply is a node with room, now or soon.
type supply struct {
	node *state.Node // nil: to be launched by this plan
	pool *pool
	// open: work may go there now.
	open bool
	// offering of a node that has not joined.
	offering *muster.Offering
	free     muster.Resources
}

// Plan says what to do about the fleet.
func Plan(snap *state.Snapshot, blocks []Block, now muster.Time) *Decisions {
	p := &planner{snap: snap, blocks: blocks, now: now, byName: map[muster.PoolName]*pool{}, sold: map[muster.ProviderName]map[muster.OfferingName]bool{}, looks: map[look]looked{}, kinds: map[kind]int{}}
	p.readPools()
	p.readDemand()
	p.readNodes()
	for _, d := range p.demands {
		p.assign(d)
	}
	for _, d := range p.demands {
		p.launchFor(d)
	}
	p.keepMinimum()
	p.turnNodes()
	for i := range blocks {
		p.wakeAt(blocks[i].Until)
	}
	return &p.out
}

func (p *planner) wakeAt(t muster.Time) {
	if t > p.now && (p.out.Wake == 0 || t < p.out.Wake) {
		p.out.Wake = t
	}
}

func micros(t muster.Time) time.Duration { return time.Duration(t) * time.Microsecond }

func (p *planner) readPools() {
	p.snap.Pools(func(row *state.Pool) bool {
		q := &pool{Pool: row}
		p.pools = append(p.pools, q)
		p.byName[row.Name] = q
		return true
	})
	p.snap.Offerings(func(o *muster.Offering) bool {
		names := p.sold[o.Provider]
		if names == nil {
			names = map[muster.OfferingName]bool{}
			p.sold[o.Provider] = names
		}
		names[o.Name] = true
		for _, q := range p.pools {
			if q.Covers(o) {
				q.offers = append(q.offers, o)
			}
		}
		return true
	})
}

// unwanted says why a node has no place in the configuration any more, or "".
func (p *planner) unwanted(n *state.Node) string {
	q := p.byName[n.Pool]
	switch {
	case q == nil:
		return "pool " + string(n.Pool) + " is not configured any more"
	case !q.Covers(&n.Offering):
		return "pool " + string(n.Pool) + " does not use offering " + string(n.Offering.Name) + " any more"
	case p.sold[n.Offering.Provider] != nil && !p.sold[n.Offering.Provider][n.Offering.Name]:
		return "offering " + string(n.Offering.Name) + " is not configured any more"
	}
	return ""
}

// readNodes counts pools and finds what is free or coming.
func (p *planner) readNodes() {
	p.snap.LiveNodes(func(n *state.Node) bool {
		p.kinds[kindOf(&n.Offering)]++
		q := p.byName[n.Pool]
		if q == nil {
			return true
		}
		q.live++
		switch n.Stage {
		case muster.NodeLaunching:
			q.launching++
		case muster.NodeTerminating, muster.NodeDraining:
			q.ending++
			return true
		}
		if n.Intent == muster.NodeDrain || p.unwanted(n) != "" || n.Health == muster.NodeBroken && n.Intent != muster.NodeHold {
			return true
		}
		q.kept++
		if n.Intent != muster.NodeRun {
			return true
		}
		s := &supply{node: n, pool: q}
		switch {
		case n.Schedulable():
			s.open, s.free = true, fit.Room(n)
		case n.Stage == muster.NodeServing && n.Health == muster.NodeLost && n.HealthSince.Add(micros(q.Grace)) > p.now:
			// It may come back within the grace; until then nothing is replaced.
			p.wakeAt(n.HealthSince.Add(micros(q.Grace)))
			s.free = fit.Room(n)
		case n.Stage == muster.NodeServing:
			return true
		default:
			s.offering, s.free = &n.Offering, n.Offering.Capacity
		}
		p.nodes = append(p.nodes, s)
		return true
	})
	// First what is open, then by id. Ids rise in the order of launches, so that
	// planning again after them finds each demand on the nodes that were launched for it.
	slices.SortFunc(p.nodes, func(a, b *supply) int {
		switch {
		case a.open != b.open && a.open:
			return -1
		case a.open != b.open:
			return 1
		}
		return cmp.Compare(a.node.ID, b.node.ID)
	})
}

// takes is how many members of d, at most limit, may go to s.
func (p *planner) takes(s *supply, d *demand, limit int) int {
	if s.offering == nil {
		if fit.Feasible(d.shape, s.node) != "" || slices.Contains(d.avoid, s.node.ID) {
			return 0
		}
		return d.shape.Ask.Times(s.free, limit)
	}
	obstacle, unsure := fit.OfferingFits(d.shape, s.pool.Pool, s.offering)
	if obstacle.Kind != fit.None {
		return 0
	}
	if len(unsure) > 0 {
		met, seen := p.seen(d.shape, s.pool, s.offering)
		// Of kinds that nobody has seen, one node is counted on, and no more.
		if seen && !met || !seen && p.guess(d) != s {
			return 0
		}
	}
	return d.shape.Ask.Times(s.free, limit)
}

// assign takes from the supply what a demand will use of it.
func (p *planner) assign(d *demand) {
	for _, s := range p.nodes {
		if d.left == 0 {
			return
		}
		p.give(s, d)
	}
}

// give uses the room of s for as many members of d as fit.
func (p *planner) give(s *supply, d *demand) int {
	k := p.takes(s, d, d.left)
	if k > 0 {
		d.left -= k
		s.free = s.free.Sub(times(d.shape.Ask, k))
	}
	return k
}

func times(r muster.Resources, k int) muster.Resources {
	return muster.Resources{CPU: r.CPU * muster.MilliCPU(k), Memory: r.Memory * muster.Bytes(k), Disk: r.Disk * muster.Bytes(k)}
}
