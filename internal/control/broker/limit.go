package broker

import (
	"container/heap"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// kind is what a limit sees of an entry.
//
// Jobs that a limit blocks are kept by kind. If the first of a kind may have nothing, no other of
// the kind may; the next kind, which asks for less, still may. So every kind is considered each
// time, and the cost is one look at each kind plus one at each entry that is woken.
type kind struct {
	namespace muster.Namespace
	ask       muster.Resources
}

// kindOf returns the kind of an entry.
func kindOf(e *entry) kind {
	// A limit counts no disk.
	return kind{e.key.Namespace, muster.Resources{CPU: e.run.Ask.CPU, Memory: e.run.Ask.Memory}}
}

// limited holds the entries that one namespace's limit blocks: each kind in the order of service.
type limited map[kind]*btree.BTreeG[*entry]

// ranked makes a tree of entries in the order of service.
func ranked() *btree.BTreeG[*entry] {
	return btree.NewBTreeGOptions(func(x, y *entry) bool { return x.rank(y) < 0 }, btree.Options{NoLocks: true})
}

// limitLocked adds a blocked entry to those that a namespace's limit blocks.
func (b *Broker) limitLocked(e *entry, ns muster.Namespace) {
	in := b.limited[ns]
	if in == nil {
		in = limited{}
		b.limited[ns] = in
	}
	k := kindOf(e)
	if in[k] == nil {
		in[k] = ranked()
	}
	e.limitedIn = ns
	in[k].Set(e)
}

// unlimitLocked removes it again.
func (b *Broker) unlimitLocked(e *entry) {
	in, k := b.limited[e.limitedIn], kindOf(e)
	if in[k].Delete(e); in[k].Len() > 0 {
		return
	}
	if delete(in, k); len(in) == 0 {
		delete(b.limited, e.limitedIn)
	}
}

// offerLimitLocked wakes the jobs that a namespace's limit blocks, in order, as many as the limit
// allows now. Nothing else wakes them: room does not help them.
func (b *Broker) offerLimitLocked(ns muster.Namespace, snap *state.Snapshot) {
	in := b.limited[ns]
	if in == nil {
		return
	}
	// allow is what all limits allow now. Each entry that is woken uses up a part of it.
	allow := fit.NewAllowance(snap)
	var wake, move []*entry
	// refused handles a kind that may have no more. If another limit blocks it now, its entries
	// from next on move there.
	refused := func(next *entry, by fit.Bound) {
		if by.Namespace == ns {
			return
		}
		in[kindOf(next)].Ascend(next, func(e *entry) bool { move = append(move, e); return true })
	}
	var heads ranks
	for k, entries := range in {
		first, _ := entries.Min()
		if n, by := allow.Of(k.namespace, first.run.Ask, 1); n > 0 {
			heads = append(heads, first)
		} else {
			refused(first, by)
		}
	}
	// The heap has the first entry of each kind, so the entries of all kinds come out in one order.
	heap.Init(&heads)
	for len(heads) > 0 {
		e := heads[0]
		n, by := allow.Of(e.key.Namespace, e.run.Ask, e.waiting)
		if n == 0 {
			refused(e, by)
			heap.Pop(&heads)
			continue
		}
		allow.Take(e.key.Namespace, e.run.Ask, n)
		wake = append(wake, e)
		if next := after(in[kindOf(e)], e); next != nil {
			heads[0] = next
			heap.Fix(&heads, 0)
		} else {
			heap.Pop(&heads)
		}
	}
	// The trees change only now: the loop above walks them.
	for _, e := range move {
		b.unlimitLocked(e)
		_, by := allow.Of(e.key.Namespace, e.run.Ask, e.waiting)
		b.limitLocked(e, by.Namespace)
	}
	for _, e := range wake {
		b.stats.Woken++
		// Ahead counts by it, and what it was before the job was blocked says nothing now.
		e.wants = e.waiting
		b.moveLocked(e, ready)
	}
}

// after returns the entry behind another in a tree; nil if that is the last.
func after(in *btree.BTreeG[*entry], e *entry) (next *entry) {
	in.Ascend(e, func(x *entry) bool {
		if x != e {
			next = x
		}
		return next == nil
	})
	return next
}

// ranks is a heap of entries in the order of service. It implements heap.Interface.
type ranks []*entry

func (r ranks) Len() int           { return len(r) }
func (r ranks) Less(i, k int) bool { return r[i].rank(r[k]) < 0 }
func (r ranks) Swap(i, k int)      { r[i], r[k] = r[k], r[i] }
func (r *ranks) Push(x any)        { *r = append(*r, x.(*entry)) }
func (r *ranks) Pop() any {
	last := len(*r) - 1
	x := (*r)[last]
	*r = (*r)[:last]
	return x
}

// missedLimitsLocked wakes those of the newly blocked entries whose limit has left room since they
// were tried. While they were out, no change of the limit could wake them.
func (b *Broker) missedLimitsLocked(entries []*entry, snap *state.Snapshot) {
	seen := map[muster.Namespace]bool{}
	for _, e := range entries {
		if ns := e.limitedIn; ns != "" && !seen[ns] && snap.Index() > e.tried {
			seen[ns] = true
			b.offerLimitLocked(ns, snap)
		}
	}
}
