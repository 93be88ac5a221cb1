package fleet

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// blocks are the scopes (a zone, an offering, an account) in which a provider has refused to create
// instances. A block lasts for a time that doubles with each refusal and ends with the first
// success. Fleet.mu guards it.
type blocks struct {
	list []block
	// fails counts failed boots in a row, by the scope of the offering.
	fails map[muster.Scope]failed
}

// failed is how many boots in a row have failed, and when the last did.
type failed struct {
	times int
	last  muster.Time
}

// offerScope is the scope that covers one offering, in one zone and market, and nothing else.
func offerScope(o *muster.Offering) muster.Scope {
	return muster.Scope{Provider: o.Provider, Zone: o.Zone, Offering: o.Name, Market: o.Market}
}

// block is one blocked scope. times counts refusals in a row.
type block struct {
	size.Block
	times int
	// Blocks of one scope are kept apart by kind: the end of a rate limit says nothing about a
	// quota.
	kind muster.FaultKind
}

// faultBoot is the kind of a block that the fleet itself sets: instances were created and their
// nodes did not join. That the provider creates another instance does not end it; only a node that
// joins does.
const faultBoot muster.FaultKind = "boot"

// blockFor is how long the first refusal of a kind blocks.
func blockFor(kind muster.FaultKind) time.Duration {
	switch kind {
	case muster.FaultCapacity, muster.FaultQuota, faultBoot:
		return 30 * time.Second
	case muster.FaultInvalid, muster.FaultAuth:
		return time.Minute
	case muster.FaultRateLimited:
		return 5 * time.Second
	}
	return time.Second
}

// blockLongest bounds a block, unless the provider asks for longer.
const blockLongest = 10 * time.Minute

// scopeOf returns the scope that a failed create blocks. It always covers the offering. Some
// providers name something else, such as a zone by another name; a block that does not cover the
// offering would let the fleet ask again at once, endlessly.
func scopeOf(o *muster.Offering, fault *muster.Fault) muster.Scope {
	s := fault.Scope
	named := s.Zone != "" || s.Offering != "" || s.Market != "" || s.Family != ""
	s.Provider = o.Provider
	named = named && s.Covers(o)
	switch fault.Kind {
	case muster.FaultRateLimited, muster.FaultAuth, muster.FaultQuota:
		// The refusal is about the offering's quota family or the whole account, unless the
		// provider says otherwise.
		if !named {
			if fault.Kind == muster.FaultQuota {
				return muster.Scope{Provider: o.Provider, Family: o.Family}
			}
			return muster.Scope{Provider: o.Provider}
		}
	case muster.FaultCapacity:
	default:
		// Other faults are about this one offering.
		named = false
	}
	if !named {
		s.Zone, s.Offering, s.Market, s.Family = o.Zone, o.Name, o.Market, ""
	}
	return s
}

// add records a refusal and returns the resulting block. It returns a copy, because the list is
// shared.
func (b *blocks) add(o *muster.Offering, err error, now time.Time, snap *state.Snapshot) size.Block {
	var fault *muster.Fault
	if !errors.As(err, &fault) {
		fault = &muster.Fault{Kind: muster.FaultInternal}
	}
	scope := scopeOf(o, fault)
	i := slices.IndexFunc(b.list, func(x block) bool { return x.Scope == scope && x.kind == fault.Kind })
	if i < 0 {
		i = len(b.list)
		b.list = append(b.list, block{Block: size.Block{Scope: scope}, kind: fault.Kind})
	}
	x := &b.list[i]
	// Several calls that began before the block are one refusal.
	if x.Until <= muster.At(now) {
		x.times++
	}
	first := blockFor(fault.Kind)
	wait := backoff(first, max(first, blockLongest), x.times)
	if fault.After > 0 {
		wait = fault.After
	}
	// Remember what is used of the quota now. When less is used, more can be launched again.
	if x.kind == muster.FaultQuota {
		used, asked := held(snap, scope), o.QuotaWeight()
		if x.Held == used && x.Asked > 0 {
			asked = min(asked, x.Asked)
		}
		x.Held, x.Asked = used, asked
	}
	x.Until, x.Why = max(x.Until, muster.At(now.Add(wait))), err.Error()
	return x.Block
}

// clear records a success: it ends the blocks that cover the offering, but for failed boots. A quota
// that was refused a large instance may hold a small one: that ends its block only if the block is
// over, or if more is used now than the block says there can be.
func (b *blocks) clear(o *muster.Offering, now muster.Time, snap *state.Snapshot) {
	b.list = slices.DeleteFunc(b.list, func(x block) bool {
		if x.kind == faultBoot || !x.Covers(o) {
			return false
		}
		return x.Held == 0 || x.Until <= now || held(snap, x.Scope) >= x.Held+max(x.Asked, 1)
	})
}

// forget ends the blocks of all that a pool may launch, failed boots included. It returns how many
// there were.
func (b *blocks) forget(offers []muster.Offering) int {
	before := len(b.list)
	b.list = slices.DeleteFunc(b.list, func(x block) bool {
		return slices.ContainsFunc(offers, func(o muster.Offering) bool { return x.Covers(&o) })
	})
	for i := range offers {
		delete(b.fails, offerScope(&offers[i]))
	}
	return before - len(b.list)
}

// bootsBefore is after how many failed boots in a row the offering is blocked. Single machines fail
// everywhere, so the first failures are replaced at once.
const bootsBefore = 3

// unbooted records that an instance did not come into service. Without a block each failed instance
// would have a successor at once, and each is paid for. It reports true if the offering is blocked
// now.
func (b *blocks) unbooted(o *muster.Offering, why string, now muster.Time, snap *state.Snapshot) (_ size.Block, ok bool) {
	if b.fails == nil {
		b.fails = map[muster.Scope]failed{}
	}
	n := b.fails[offerScope(o)].times + 1
	b.fails[offerScope(o)] = failed{n, now}
	if n < bootsBefore {
		return size.Block{}, false
	}
	text := fmt.Sprintf("instances did not come into service %d times in a row, the last: %s", n, why)
	return b.add(o, &muster.Fault{Kind: faultBoot, Message: text}, now.Std(), snap), true
}

// booted records that an instance came into service.
func (b *blocks) booted(o *muster.Offering) {
	delete(b.fails, offerScope(o))
	b.list = slices.DeleteFunc(b.list, func(x block) bool { return x.kind == faultBoot && x.Covers(o) })
}

// watch raises what is known to be used of a blocked quota. An instance that was created before the
// refusal may get into the log only after it.
func (b *blocks) watch(snap *state.Snapshot, now muster.Time) {
	for i := range b.list {
		if x := &b.list[i]; x.kind == muster.FaultQuota && x.Until > now {
			x.Held = max(x.Held, held(snap, x.Scope))
		}
	}
}

// held is the sum of the quota weights of the nodes in a scope that have an instance.
func held(snap *state.Snapshot, scope muster.Scope) int {
	k := 0
	snap.LiveNodes(func(n *state.Node) bool {
		// Clouds count no machine for a quota that is switched off.
		if n.Instance != "" && n.Stage != muster.NodeStopped && scope.Covers(&n.Offering) {
			k += n.Offering.QuotaWeight()
		}
		return true
	})
	return k
}

// now returns the blocks for package size: those that hold, and those that have ended without a
// success since, which it tries with care. It drops those that ended long ago.
func (b *blocks) now(now muster.Time) []size.Block {
	b.list = slices.DeleteFunc(b.list, func(x block) bool { return x.Until.Add(blockLongest) < now })
	out := make([]size.Block, len(b.list))
	for i, x := range b.list {
		out[i] = x.Block
	}
	return out
}
