package fit

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Space is what is free on a node: its room, and what is taken of what has names.
// Spaces compare, and may be keys.
type Space struct {
	muster.Resources
	Taken muster.Taken
}

// Room is the amounts that are free on a node: its capacity less what its allocations hold
// until they have ended, and less what is reserved there for one job, which may be more than is free
// yet. An allocation that is stopping holds its room until it has ended.
func Room(n *state.Node) muster.Resources { return n.Free().Sub(n.ReservedFor("")) }

// SpaceOf is all that is free on a node.
func SpaceOf(n *state.Node) Space { return Space{Room(n), n.Taken} }

// Short names the first of what the shape asks for that lacks: a dimension, a
// device or a port; or "". Whole cores need no check: enough cpu means enough cores.
func (s *Shape) Short(r Space, devices []muster.Device) string {
	if dim := s.Ask.Short(r.Resources); dim != "" || !s.Names.Scarce() {
		return dim
	}
	_, short := r.Taken.Give(&muster.NamedAsk{Devices: s.Names.Devices, Ports: s.Names.Ports}, 0, devices)
	return short
}

// Times is how many members fit at once, bounded by limit; of a job on distinct
// hosts one at most.
func (s *Shape) Times(r Space, devices []muster.Device, limit int) int {
	if s.Distinct {
		limit = min(limit, 1)
	}
	n := s.Ask.Times(r.Resources, limit)
	if n == 0 || !s.Names.Scarce() {
		return n
	}
	return r.Taken.Times(&muster.NamedAsk{Devices: s.Names.Devices, Ports: s.Names.Ports}, 0, devices, n)
}

// Take is the room that n members leave, who must fit; of cores and devices the
// ones that Give names. If cores is negative, no cores are named.
func (s *Shape) Take(r Space, cores int, devices []muster.Device, n int) Space {
	r.Resources = r.Resources.Sub(s.Ask.By(n))
	ask := s.Names
	if ask != nil && cores < 0 {
		ask = &muster.NamedAsk{Devices: ask.Devices, Ports: ask.Ports}
	}
	if ask == nil || cores < 0 && !ask.Scarce() {
		return r
	}
	for range n {
		g, _ := r.Taken.Give(ask, cores, devices)
		r.Taken, _ = r.Taken.Take(ask, g, cores, devices)
	}
	return r
}

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
	// What has names is given back with the amounts that come with it.
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
