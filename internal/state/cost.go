package state

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// Where the money goes. A node costs its price from the intent to launch it
// until it is gone, if an instance ever stood behind it. An allocation's part of that is its share of
// the node, fixed when it is placed, from then until its end; it is booked at the end. What no allocation
// had is idle, and booked when the node is gone. Until then it is worked out on reading, as are
// allocations that live. Each end costs apply a few lookups, however much there is.
//
// All of it is in whole numbers, and rounded down by part and month: what is booked and idle
// together are exactly what the nodes cost.

// wholeNode is the share of who has all of a node.
const wholeNode = 1 << 30

// maxJobCosts is how many jobs, months and pools are told apart; past it the longest not
// booked to are added up by namespace. maxNamespaceCosts bounds those in turn, by month.
const (
	maxJobCosts       = 20_000
	maxNamespaceCosts = 20_000
)

// Month is a calendar month in UTC.
type Month int32

// MonthOf is the month of a moment.
func MonthOf(t muster.Time) Month {
	y, m, _ := time.UnixMicro(int64(t)).UTC().Date()
	return Month(y*12 + int(m) - 1)
}

// Start is the first moment of the month.
func (m Month) Start() muster.Time {
	return muster.Time(time.Date(int(m)/12, time.Month(int(m)%12+1), 1, 0, 0, 0, 0, time.UTC).UnixMicro())
}

// String is the month as 2026-09.
func (m Month) String() string { return fmt.Sprintf("%04d-%02d", int(m)/12, int(m)%12+1) }

// Spend is an amount of money and of time on nodes that it bought.
type Spend struct {
	// Cost is in millionths of the operator's currency.
	Cost int64 `cbor:"1,keyasint,omitempty"`
	// Time is microseconds of whole nodes: half a node for an hour is half an hour.
	Time muster.Time `cbor:"2,keyasint,omitempty"`
}

// Add is both together.
func (s Spend) Add(o Spend) Spend { return Spend{s.Cost + o.Cost, s.Time + o.Time} }

// Sub is s without o.
func (s Spend) Sub(o Spend) Spend { return Spend{s.Cost - o.Cost, s.Time - o.Time} }

// MonthSpend is what was spent in a month.
type MonthSpend struct {
	Month Month `cbor:"1,keyasint"`
	Spend Spend `cbor:"2,keyasint"`
}

// Cost is what jobs of one name spent in one month on one pool's nodes. Job is empty for
// jobs of the namespace that are not told apart any more, Namespace as well if those are not.
type Cost struct {
	Month     Month            `cbor:"1,keyasint"`
	Pool      muster.PoolName  `cbor:"2,keyasint,omitempty"`
	Namespace muster.Namespace `cbor:"3,keyasint,omitempty"`
	Job       string           `cbor:"4,keyasint,omitempty"`
	Spend     Spend            `cbor:"5,keyasint"`
	// Last is the log index of the last booking.
	Last uint64 `cbor:"6,keyasint,omitempty"`
}

// PoolCost is what a pool's nodes cost in one month, and how much of it was idle; the rest is in jobs' Costs.
type PoolCost struct {
	Month Month           `cbor:"1,keyasint"`
	Pool  muster.PoolName `cbor:"2,keyasint,omitempty"`
	Whole Spend           `cbor:"3,keyasint"`
	Idle  Spend           `cbor:"4,keyasint"`
}

func compareCosts(a, b *Cost) int {
	return cmp.Or(cmp.Compare(a.Month, b.Month), compareStrings(a.Pool, b.Pool),
		compareStrings(a.Namespace, b.Namespace), strings.Compare(a.Job, b.Job))
}

// money is the trees of package state that are about cost.
type money struct {
	jobCosts  *btree.BTreeG[*Cost]     // of jobs told apart
	costAge   *btree.BTreeG[*Cost]     // the same, the longest not booked to first
	sumCosts  *btree.BTreeG[*Cost]     // of the others, added up
	poolCosts *btree.BTreeG[*PoolCost] // of nodes that are gone
}

func newMoney() money {
	return money{
		jobCosts:  tree(compareCosts),
		costAge:   tree(func(a, b *Cost) int { return cmp.Or(cmp.Compare(a.Last, b.Last), compareCosts(a, b)) }),
		sumCosts:  tree(compareCosts),
		poolCosts: tree(func(a, b *PoolCost) int { return cmp.Or(cmp.Compare(a.Month, b.Month), compareStrings(a.Pool, b.Pool)) }),
	}
}

func (m *money) copy() money {
	return money{m.jobCosts.Copy(), m.costAge.Copy(), m.sumCosts.Copy(), m.poolCosts.Copy()}
}

// shareOf is how much of a node an allocation takes: the mean of its parts of cores and
// memory. Unlike the larger of the two, means never add up to more than the node, and
// are the same whoever else is there.
func shareOf(ask, capacity muster.Resources) int64 {
	part := func(ask, all int64) int64 {
		if all <= 0 || ask <= 0 {
			return 0
		}
		hi, lo := bits.Mul64(uint64(min(ask, all)), wholeNode)
		q, _ := bits.Div64(hi, lo, uint64(all))
		return int64(q)
	}
	cpu, memory := part(int64(ask.CPU), int64(capacity.CPU)), part(int64(ask.Memory), int64(capacity.Memory))
	switch {
	case capacity.Memory <= 0:
		return cpu
	case capacity.CPU <= 0:
		return memory
	}
	return (cpu + memory) / 2
}

// take gives an allocation its share of a node's copy. A node whose capacity has
// changed under those it has may have less left.
func (n *Node) take(ask muster.Resources) int64 {
	share := min(shareOf(ask, n.Capacity), wholeNode-n.Shared)
	n.Shared += share
	return share
}

// dearest bounds prices, so that no offering can overflow a sum: a million an hour.
const dearest = 1_000_000_000_000

// spent is what a share of a node costs for a time.
func (n *Node) spent(share int64, d muster.Time) Spend {
	hi, lo := bits.Mul64(uint64(d), uint64(share))
	q, _ := bits.Div64(hi, lo, wholeNode)
	price := min(max(int64(n.Offering.Price), 0), dearest)
	hi, lo = bits.Mul64(q, uint64(price))
	const hour = uint64(time.Hour / time.Microsecond)
	cost, _ := bits.Div64(hi, lo, hour)
	return Spend{Cost: int64(cost), Time: muster.Time(q)}
}

// billed reports whether an instance stands or stood behind the node.
func (n *Node) billed() bool { return n.Instance != "" || n.Joined != 0 }

// byMonth calls fn for each month of a share's time, in order.
func (n *Node) byMonth(share int64, from, to muster.Time, fn func(Month, Spend)) {
	if share == 0 {
		return
	}
	for m := MonthOf(from); from < to; m++ {
		end := min((m + 1).Start(), to)
		fn(m, n.spent(share, end-from))
		from = end
	}
}

// whole calls fn for each month of what the node costs until its end, or until now. While its machine is
// switched off it costs nothing: what its cloud takes for the disk is not known here.
func (n *Node) whole(now muster.Time, fn func(Month, Spend)) {
	if n.Stage == muster.NodeGone {
		now = n.Gone
	}
	if !n.billed() {
		return
	}
	for m, from := MonthOf(n.Launched), n.Launched; from < now; m++ {
		end := min((m + 1).Start(), now)
		fn(m, n.spent(wholeNode, max(end-from-n.offIn(m, now), 0)))
		from = end
	}
}

// offIn is for how long the machine was switched off in a month, until now.
func (n *Node) offIn(m Month, now muster.Time) muster.Time {
	var sum muster.Time
	for _, o := range n.Off {
		if o.Month == m {
			sum += o.Spend.Time
		}
	}
	if n.Stage == muster.NodeStopped {
		sum += max(min((m+1).Start(), now)-max(m.Start(), n.StageSince), 0)
	}
	return sum
}

// offUntil is Off with the time until now, of a node that leaves the stage stopped; else it is Off.
func (n *Node) offUntil(now muster.Time) []MonthSpend {
	if n.Stage != muster.NodeStopped {
		return n.Off
	}
	off := slices.Clone(n.Off)
	for m, from := MonthOf(n.StageSince), n.StageSince; from < now; m++ {
		end := min((m + 1).Start(), now)
		if at := slices.IndexFunc(off, func(o MonthSpend) bool { return o.Month == m }); at >= 0 {
			off[at].Spend.Time += end - from
		} else {
			off = append(off, MonthSpend{m, Spend{Time: end - from}})
		}
		from = end
	}
	return off
}

// bookedIn is what ended allocations had of a node that lives.
func (n *Node) bookedIn(m Month) Spend {
	for _, b := range n.Booked {
		if b.Month == m {
			return b.Spend
		}
	}
	return Spend{}
}

// book adds to Booked, which must be the copy's own.
func (n *Node) book(m Month, s Spend) {
	for i := range n.Booked {
		if b := &n.Booked[i]; b.Month == m {
			b.Spend = b.Spend.Add(s)
			return
		}
	}
	n.Booked = append(n.Booked, MonthSpend{m, s})
}

// charge books an allocation that has ended, b, on its job, and gives its share of the node's copy back.
func (s *State) charge(n *Node, b *Alloc) {
	n.Shared -= b.Share
	n.byMonth(b.Share, b.Placed, b.Ended, func(m Month, sp Spend) {
		if sp == (Spend{}) {
			return
		}
		n.book(m, sp)
		s.bookJob(Cost{Month: m, Pool: n.Pool, Namespace: b.Run.Key.Namespace, Job: b.Run.Key.Name, Spend: sp})
	})
}

func (s *State) bookJob(c Cost) {
	if before, ok := s.t.jobCosts.Get(&c); ok {
		c.Spend = c.Spend.Add(before.Spend)
		s.t.costAge.Delete(before)
	}
	c.Last = s.meta.Index
	s.t.putCost(&c)
	for s.t.jobCosts.Len() > s.costRows {
		old := s.t.oldestCost()
		s.t.costAge.Delete(old)
		s.t.jobCosts.Delete(old)
		s.addUp(Cost{Month: old.Month, Pool: old.Pool, Namespace: old.Namespace, Spend: old.Spend})
	}
}

// putCost puts a row into the tree that it belongs to.
func (t *tables) putCost(c *Cost) {
	if c.Job == "" {
		t.sumCosts.Set(c)
		return
	}
	t.jobCosts.Set(c)
	t.costAge.Set(c)
}

// oldestCost is the longest not booked to; among the first few, rather of a job that has ended.
func (t *tables) oldestCost() *Cost {
	var oldest *Cost
	looked := 0
	t.costAge.Scan(func(c *Cost) bool {
		if oldest == nil {
			oldest = c
		}
		j := t.job(muster.JobKey{Namespace: c.Namespace, Name: c.Job})
		if j == nil || j.Stage == muster.JobEnded {
			oldest = c
			return false
		}
		looked++
		return looked < 8
	})
	return oldest
}

func (s *State) addUp(c Cost) {
	if before, ok := s.t.sumCosts.Get(&c); ok {
		c.Spend = c.Spend.Add(before.Spend)
	}
	s.t.sumCosts.Set(&c)
	if s.t.sumCosts.Len() <= s.sumRows {
		return
	}
	var old *Cost
	s.t.sumCosts.Scan(func(c *Cost) bool { old = c; return c.Namespace == "" })
	if old.Namespace != "" {
		s.t.sumCosts.Delete(old)
		s.addUp(Cost{Month: old.Month, Pool: old.Pool, Spend: old.Spend})
	}
}

// closeCost books what a node that is gone cost, and what of it was idle.
func (s *State) closeCost(id muster.NodeID) {
	node, err := s.node(id)
	if err != nil {
		return
	}
	node.whole(node.Gone, func(m Month, whole Spend) {
		c := &PoolCost{Month: m, Pool: node.Pool}
		if before, ok := s.t.poolCosts.Get(c); ok {
			*c = *before
		}
		c.Whole, c.Idle = c.Whole.Add(whole), c.Idle.Add(whole.Sub(node.bookedIn(m)))
		s.t.poolCosts.Set(c)
	})
	if node.Booked != nil {
		b := *node
		b.Booked = nil // Off stays: whoever reads what the node has cost still needs it
		s.putNode(node, &b, "")
	}
}

// Spent is what a pool's nodes, gone and living, have cost in the month of now, in millionths of the
// currency. It walks over the living nodes.
func (s *Snapshot) Spent(pool muster.PoolName, now muster.Time) int64 {
	now = max(now, s.meta.Time)
	month := MonthOf(now)
	var sum int64
	if c, ok := s.t.poolCosts.Get(&PoolCost{Month: month, Pool: pool}); ok {
		sum = c.Whole.Cost
	}
	start := month.Start()
	s.t.liveNodes.Scan(func(n *Node) bool {
		if n.Pool == pool && n.billed() {
			sum += n.spent(wholeNode, max(now-max(n.Launched, start)-n.offIn(month, now), 0)).Cost
		}
		return true
	})
	return sum
}

// Costs goes through what jobs spent from a month on, until now: what is
// booked, by month, pool, namespace and job, then what live allocations have had. One
// name may come several times.
func (s *Snapshot) Costs(since Month, now muster.Time, fn func(Cost) bool) {
	now = max(now, s.meta.Time)
	more := true
	each := func(c *Cost) bool { more = fn(*c); return more }
	s.t.sumCosts.Ascend(&Cost{Month: since}, each)
	if more {
		s.t.jobCosts.Ascend(&Cost{Month: since}, each)
	}
	if !more {
		return
	}
	s.LiveAllocs(func(a *Alloc) bool {
		n := s.Node(a.Node)
		if n == nil {
			return true
		}
		n.byMonth(a.Share, max(a.Placed, since.Start()), now, func(m Month, sp Spend) {
			more = more && fn(Cost{Month: m, Pool: n.Pool, Namespace: a.Run.Key.Namespace, Job: a.Run.Key.Name, Spend: sp})
		})
		return more
	})
}

// PoolCosts goes through what pools' nodes cost from a month on, until now, by month and pool.
func (s *Snapshot) PoolCosts(since Month, now muster.Time, fn func(PoolCost) bool) {
	now = max(now, s.meta.Time)
	all := newMoney().poolCosts
	add := func(c PoolCost) {
		if before, ok := all.Get(&c); ok {
			c.Whole, c.Idle = c.Whole.Add(before.Whole), c.Idle.Add(before.Idle)
		}
		all.Set(&c)
	}
	s.t.poolCosts.Ascend(&PoolCost{Month: since}, func(c *PoolCost) bool { add(*c); return true })
	s.LiveNodes(func(n *Node) bool {
		n.whole(now, func(m Month, whole Spend) {
			if m >= since {
				add(PoolCost{Month: m, Pool: n.Pool, Whole: whole, Idle: whole.Sub(n.bookedIn(m))})
			}
		})
		s.NodeAllocs(n.ID, func(a *Alloc) bool {
			n.byMonth(a.Share, max(a.Placed, since.Start()), now, func(m Month, sp Spend) {
				add(PoolCost{Month: m, Pool: n.Pool, Idle: Spend{}.Sub(sp)})
			})
			return true
		})
		return true
	})
	all.Scan(func(c *PoolCost) bool { return fn(*c) })
}

// money checks that shares are those of live allocations, and that what is
// booked and what is idle are together what the nodes cost.
func (c *checker) money() {
	shares := map[muster.NodeID]int64{}
	c.snap.LiveAllocs(func(a *Alloc) bool { shares[a.Node] += a.Share; return true })
	type key struct {
		month Month
		pool  muster.PoolName
	}
	booked := map[key]Spend{}
	add := func(r *Cost) bool {
		k := key{r.Month, r.Pool}
		booked[k] = booked[k].Add(r.Spend)
		return true
	}
	c.snap.t.jobCosts.Scan(add)
	c.snap.t.sumCosts.Scan(add)
	if aged, all := c.snap.t.costAge.Len(), c.snap.t.jobCosts.Len(); aged != all {
		c.bad("%d rows of cost are in order of age, of %d", aged, all)
	}
	c.snap.Nodes("", func(n *Node) bool {
		if n.Shared != shares[n.ID] || n.Shared < 0 || n.Shared > wholeNode {
			c.bad("node %s says that %d of it is shared out, the sum over its allocations is %d", n.ID, n.Shared, shares[n.ID])
		}
		if n.Stage == muster.NodeGone && len(n.Booked) > 0 {
			c.bad("node %s is gone, and not all that was booked on it is accounted for", n.ID)
		}
		for _, b := range n.Booked {
			k := key{b.Month, n.Pool}
			booked[k] = booked[k].Sub(b.Spend)
		}
		return true
	})
	c.snap.t.poolCosts.Scan(func(r *PoolCost) bool {
		k := key{r.Month, r.Pool}
		if booked[k].Add(r.Idle) != r.Whole || r.Idle.Cost < 0 || r.Idle.Time < 0 {
			c.bad("pool %s in %s: jobs had %v and idle were %v of %v", r.Pool, r.Month, booked[k], r.Idle, r.Whole)
		}
		delete(booked, k)
		return true
	})
	for k, left := range booked {
		if left != (Spend{}) {
			c.bad("pool %s in %s: %v is booked to jobs and on no node", k.pool, k.month, left)
		}
	}
}
