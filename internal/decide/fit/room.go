package fit

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Room is what is free on a node: its capacity less what its allocations hold
// until they have ended. One that was told to stop and still runs holds its room.
func Room(n *state.Node) muster.Resources { return n.Free() }

// Grew reports whether a change of a node's row may help a member that did not
// fit: it opened, has more room, or says something else of itself.
// Either side may be nil.
func Grew(before, after *state.Node) bool {
	switch {
	case after == nil || !after.Schedulable():
		return false
	case before == nil || !before.Schedulable():
		return true
	}
	if !Room(after).Fits(Room(before)) {
		return true
	}
	// Allocations come and go far more often than nodes speak of themselves, and
	// never in the same change.
	return after.LiveAllocs == before.LiveAllocs && !sameAttributes(before, after)
}

func sameAttributes(a, b *state.Node) bool {
	if a.Pool != b.Pool || len(a.Attributes) != len(b.Attributes) || a.Offering.Provider != b.Offering.Provider ||
		a.Offering.Name != b.Offering.Name || a.Offering.Zone != b.Offering.Zone || a.Offering.Market != b.Offering.Market {
		return false
	}
	for k, v := range a.Attributes {
		if w, ok := b.Attributes[k]; !ok || v != w {
			return false
		}
	}
	return true
}
