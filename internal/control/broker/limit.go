package broker

import (
	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// limitLooks bounds how many of those that a limit blocks are looked at when it
// leaves room: the first in order may ask for more than there is, and who comes after for less.
const limitLooks = 256

// ranked is a tree of entries in the order of service.
func ranked() *btree.BTreeG[*entry] {
	return btree.NewBTreeGOptions(func(x, y *entry) bool { return x.rank(y) < 0 }, btree.Options{NoLocks: true})
}

// boundLocked puts a blocked entry to those that a namespace's limit binds.
func (b *Broker) boundLocked(e *entry, ns muster.Namespace) {
	in := b.bounded[ns]
	if in == nil {
		in = ranked()
		b.bounded[ns] = in
	}
	e.bound = ns
	in.Set(e)
}

// offerLimitLocked wakes those that a namespace's limit blocks, in order, as many
// as it lets have something now. Nothing else wakes them: room is of no use to them.
func (b *Broker) offerLimitLocked(ns muster.Namespace, snap *state.Snapshot) {
	in := b.bounded[ns]
	if in == nil {
		return
	}
	allow := fit.NewAllowance(snap)
	var wake, move []*entry
	looks := 0
	in.Scan(func(e *entry) bool {
		n, bound := allow.Of(e.key.Namespace, e.run.Ask, e.waiting)
		switch {
		case n > 0:
			allow.Take(e.key.Namespace, e.run.Ask, n)
			wake = append(wake, e)
		case bound.Namespace != ns:
			move = append(move, e) // another limit binds it by now
		}
		looks++
		return looks < limitLooks
	})
	for _, e := range move {
		in.Delete(e)
		_, bound := allow.Of(e.key.Namespace, e.run.Ask, e.waiting)
		b.boundLocked(e, bound.Namespace)
	}
	if in.Len() == 0 {
		delete(b.bounded, ns)
	}
	for _, e := range wake {
		b.stats.Woken++
		b.moveLocked(e, ready)
	}
}

// missedLimitsLocked wakes those of the entries, blocked just now, whose limit
// has come to leave room since they were tried.
func (b *Broker) missedLimitsLocked(entries []*entry, snap *state.Snapshot) {
	seen := map[muster.Namespace]bool{}
	for _, e := range entries {
		if ns := e.bound; ns != "" && !seen[ns] && snap.Index() > e.tried {
			seen[ns] = true
			b.offerLimitLocked(ns, snap)
		}
	}
}
