package mend

import (
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// The breaker of a pool lets the larger of breakerLeast and a share of the pool
// be destroyed within state.BreakerWindow for nothing but lost contact, and lets
// lists lack as many at once. What is more than that is more likely the fault of the network, the
// provider's API or this program than of the machines: it trips, and an operator looks.
//
// Boots that do not come into service are not counted: no work is lost with them,
// and left alone they would cost money.
const breakerLeast, breakerShare = 3, 5

// Trip is a pool whose breaker is to trip.
type Trip struct {
	Pool   muster.PoolName
	Reason string
}

// Release is a node whose intent is to be run again: its hold was for a time.
type Release struct {
	Node  muster.NodeID
	Until muster.Time
}

// breaker is what one pass knows of a pool.
type breaker struct {
	*state.Breaker
	// nodes are the live ones; doomed those that this pass destroys without an explanation;
	// missing those in service that the newest list lacks although it should have them, and of which the
	// provider has not said by itself that they are not there.
	nodes, doomed, missing int
}

// excused reports whether an operator has resumed the pool since contact with the node was lost: it was among what
// they looked at. What becomes of it is not counted again, or resuming would do nothing while more is missing than the limit.
func (b *breaker) excused(n *state.Node) bool {
	silent := n.Health == muster.NodeLost || n.Health == muster.NodeBroken
	return b.Breaker != nil && b.Resumed != 0 && silent && n.HealthSince <= b.Resumed
}

func (b *breaker) limit() int { return max(breakerLeast, b.nodes/breakerShare) }

// readBreakers counts the nodes of each pool.
func (p *planner) readBreakers() {
	p.breakers = map[muster.PoolName]*breaker{}
	p.snap.LiveNodes(func(n *state.Node) bool {
		b := p.breakers[n.Pool]
		if b == nil {
			b = &breaker{Breaker: p.snap.Breaker(n.Pool)}
			p.breakers[n.Pool] = b
		}
		b.nodes++
		if s := p.sights[n.Offering.Provider]; s != nil && s.misses(n) && !b.excused(n) {
			b.missing++
		}
		return true
	})
}

// misses reports whether the newest list should have had the instance of a node in service, and had not.
func (s *Sight) misses(n *state.Node) bool {
	serves := n.Stage == muster.NodeServing || n.Stage == muster.NodeDraining
	return serves && !n.Denied && s.lacks(n.Token, n.Launched.Add(s.listLag()))
}

// mayDestroy asks the breaker for one more node that is out of contact.
func (p *planner) mayDestroy(n *state.Node) bool {
	b := p.breakers[n.Pool]
	if b.excused(n) {
		return true
	}
	if b.IsTripped() {
		return false
	}
	if k := b.Unexplained(p.now) + b.doomed; k >= b.limit() {
		p.trip(n.Pool, fmt.Sprintf("%d nodes were destroyed within %s because contact was lost, and there are more", k, state.BreakerWindow))
		return false
	}
	b.doomed++
	return true
}

// mayForget asks the breaker whether lists that lack a node may be believed.
func (p *planner) mayForget(n *state.Node) bool {
	b := p.breakers[n.Pool]
	if n.Denied || b.missing <= b.limit() || b.excused(n) {
		return true
	}
	if !b.IsTripped() {
		p.trip(n.Pool, fmt.Sprintf("the provider's list lacks %d of %d nodes at once", b.missing, b.nodes))
	}
	return false
}

func (p *planner) trip(pool muster.PoolName, reason string) {
	if !slices.ContainsFunc(p.out.Tripped, func(t Trip) bool { return t.Pool == pool }) {
		p.out.Tripped = append(p.out.Tripped, Trip{pool, reason})
	}
}

// release lets go of a node that was held for a time, and ends what still runs on one whose drain has a deadline.
func (p *planner) release(n *state.Node) {
	switch {
	case n.IntentUntil == 0:
	case p.now < n.IntentUntil:
		p.wakeAt(n.IntentUntil)
	case n.Intent == muster.NodeDrain:
		p.out.Evict = append(p.out.Evict, Release{n.ID, n.IntentUntil})
	default:
		p.out.Release = append(p.out.Release, Release{n.ID, n.IntentUntil})
	}
}
