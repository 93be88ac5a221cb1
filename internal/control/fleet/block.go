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

// blocks are the scopes of which the providers said no, for a time that
// doubles with each no and starts anew with the first yes.
type blocks struct {
	list []block
	// fails are boots that failed, since one did not; by offering.
	fails map[offerKey]int
}

type block struct {
	size.Block
	times int
	// kind is apart as well: the end of a quota is not that of a rate limit that came meanwhile.
	kind muster.FaultKind
}

// faultBoot is a block of our own: what was made did not come into service. That the provider makes another one says nothing
// against it; only a node that joins does.
const faultBoot muster.FaultKind = "boot"

// blockFor is how long the first no of a kind holds.
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

const blockLongest = 10 * time.Minute

// scopeOf is what a fault of creating the offering blocks. It always covers the offering: a provider that names something
// else, as a zone by another name, would be asked again at once, without an end.
func scopeOf(o *muster.Offering, fault *muster.Fault) muster.Scope {
	s := fault.Scope
	named := s.Zone != "" || s.Offering != "" || s.Market != "" || s.Family != ""
	s.Provider = o.Provider
	named = named && s.Covers(o)
	switch fault.Kind {
	case muster.FaultRateLimited, muster.FaultAuth, muster.FaultQuota:
		// Of the offering's quota family or the whole account, unless it says otherwise.
		if !named {
			if fault.Kind == muster.FaultQuota {
				return muster.Scope{Provider: o.Provider, Family: o.Family}
			}
			return muster.Scope{Provider: o.Provider}
		}
	case muster.FaultCapacity:
	default:
		named = false
	}
	if !named {
		s.Zone, s.Offering, s.Market, s.Family = o.Zone, o.Name, o.Market, ""
	}
	return s
}

// add takes in a no, and answers with the block as it is now: a copy, for the list is shared.
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
	// Answers to calls made before the block say it once.
	if x.Until <= muster.At(now) {
		x.times++
	}
	first := blockFor(fault.Kind)
	wait := backoff(first, max(first, blockLongest), x.times)
	if fault.After > 0 {
		wait = fault.After
	}
	if x.kind == muster.FaultQuota {
		x.Held = held(snap, scope)
	}
	x.Until, x.Why = max(x.Until, muster.At(now.Add(wait))), err.Error()
	return x.Block
}

// clear takes in a yes.
func (b *blocks) clear(o *muster.Offering) {
	b.list = slices.DeleteFunc(b.list, func(x block) bool { return x.kind != faultBoot && x.Covers(o) })
}

// forget ends the blocks of what a pool may launch, failed boots included, and returns how many there were.
func (b *blocks) forget(offers []muster.Offering) int {
	before := len(b.list)
	b.list = slices.DeleteFunc(b.list, func(x block) bool {
		return slices.ContainsFunc(offers, func(o muster.Offering) bool { return x.Covers(&o) })
	})
	for i := range offers {
		delete(b.fails, keyOf(&offers[i]))
	}
	return before - len(b.list)
}

// bootsBefore is how many boots in a row may fail before the next one is put off: single machines fail everywhere.
const bootsBefore = 3

// unbooted takes in that an instance did not come into service: without it every one that fails has a successor at once, which is
// paid for as long. ok: others are launched later, as the block says.
func (b *blocks) unbooted(o *muster.Offering, why string, now muster.Time, snap *state.Snapshot) (_ size.Block, ok bool) {
	if b.fails == nil {
		b.fails = map[offerKey]int{}
	}
	b.fails[keyOf(o)]++
	n := b.fails[keyOf(o)]
	if n < bootsBefore {
		return size.Block{}, false
	}
	text := fmt.Sprintf("instances did not come into service %d times in a row, the last: %s", n, why)
	return b.add(o, &muster.Fault{Kind: faultBoot, Message: text}, now.Std(), snap), true
}

// booted takes in that an instance did.
func (b *blocks) booted(o *muster.Offering) {
	delete(b.fails, keyOf(o))
	b.list = slices.DeleteFunc(b.list, func(x block) bool { return x.kind == faultBoot && x.Covers(o) })
}

// watch raises what blocks of a quota are held to: an instance that was made before the no may be in the
// log only after it.
func (b *blocks) watch(snap *state.Snapshot, now muster.Time) {
	for i := range b.list {
		if x := &b.list[i]; x.kind == muster.FaultQuota && x.Until > now {
			x.Held = max(x.Held, held(snap, x.Scope))
		}
	}
}

// held is how many nodes in a scope have an instance.
func held(snap *state.Snapshot, scope muster.Scope) int {
	k := 0
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Instance != "" && scope.Covers(&n.Offering) {
			k++
		}
		return true
	})
	return k
}

// now are those that hold, and those that nobody has said yes to since.
func (b *blocks) now(now muster.Time) []size.Block {
	b.list = slices.DeleteFunc(b.list, func(x block) bool { return x.Until.Add(blockLongest) < now })
	out := make([]size.Block, len(b.list))
	for i, x := range b.list {
		out[i] = x.Block
	}
	return out
}
