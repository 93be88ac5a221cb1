package place

import (
	"github.com/musterhq/muster"
)

// tree is nodes in an order, each with the most that any below it has free of
// each dimension: the first in order that has room is found without a look at those that have none.
// It is a treap whose shape follows from what is in it and from nothing else.
type tree struct{ root *leaf }

// leaf is a node in one tree. A node is in several.
type leaf struct {
	seat        *seat
	key         float64 // the higher the earlier; then by id
	left, right *leaf
	most        muster.Resources
}

func (l *leaf) before(o *leaf) bool {
	if l.key != o.key {
		return l.key > o.key
	}
	return l.seat.row.ID < o.seat.row.ID
}

func (l *leaf) sum() {
	l.most = l.seat.space.Resources
	if l.left != nil {
		l.most = most(l.most, l.left.most)
	}
	if l.right != nil {
		l.most = most(l.most, l.right.most)
	}
}

func most(a, b muster.Resources) muster.Resources {
	return muster.Resources{CPU: max(a.CPU, b.CPU), Memory: max(a.Memory, b.Memory), Disk: max(a.Disk, b.Disk)}
}

func (t *tree) insert(l *leaf) { t.root = insert(t.root, l) }

func insert(t, l *leaf) *leaf {
	switch {
	case t == nil:
		l.left, l.right = nil, nil
		l.sum()
		return l
	case l.seat.luck > t.seat.luck || l.seat.luck == t.seat.luck && l.before(t):
		l.left, l.right = split(t, l)
		l.sum()
		return l
	case l.before(t):
		t.left = insert(t.left, l)
	default:
		t.right = insert(t.right, l)
	}
	t.most = most(t.most, l.seat.space.Resources)
	return t
}

// split divides a tree into what is before l and what is after it.
func split(t, l *leaf) (before, after *leaf) {
	if t == nil {
		return nil, nil
	}
	if t.before(l) {
		t.right, after = split(t.right, l)
		t.sum()
		return t, after
	}
	before, t.left = split(t.left, l)
	t.sum()
	return before, t
}

// remove takes out a leaf that is in the tree, by the key that it was put in with.
func (t *tree) remove(l *leaf) { t.root = remove(t.root, l) }

func remove(t, l *leaf) *leaf {
	switch {
	case t == nil:
		return nil
	case t == l:
		left, right := t.left, t.right
		t.left, t.right = nil, nil // whoever still holds it does not hold the others
		return join(left, right)
	case l.before(t):
		t.left = remove(t.left, l)
	default:
		t.right = remove(t.right, l)
	}
	t.sum()
	return t
}

func join(a, b *leaf) *leaf {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.seat.luck > b.seat.luck || a.seat.luck == b.seat.luck && a.before(b):
		a.right = join(a.right, b)
		a.sum()
		return a
	}
	b.left = join(a, b.left)
	b.sum()
	return b
}

// first is the first in order with room for ask that will do; nil will: any.
func (t *tree) first(ask muster.Resources, will func(*seat) bool) *leaf {
	return first(t.root, ask, will)
}

func first(t *leaf, ask muster.Resources, will func(*seat) bool) *leaf {
	if t == nil || !ask.Fits(t.most) {
		return nil
	}
	if l := first(t.left, ask, will); l != nil {
		return l
	}
	if ask.Fits(t.seat.space.Resources) && (will == nil || will(t.seat)) {
		return t
	}
	return first(t.right, ask, will)
}

// last is the last in order with room for ask that will do.
func (t *tree) last(ask muster.Resources, will func(*seat) bool) *leaf {
	return last(t.root, ask, will)
}

func last(t *leaf, ask muster.Resources, will func(*seat) bool) *leaf {
	if t == nil || !ask.Fits(t.most) {
		return nil
	}
	if l := last(t.right, ask, will); l != nil {
		return l
	}
	if ask.Fits(t.seat.space.Resources) && (will == nil || will(t.seat)) {
		return t
	}
	return last(t.left, ask, will)
}

// luck of a node balances the trees that it is in: by its id alone, so that
// equal sets make equal trees.
func luck(id muster.NodeID) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	// Ids that differ in the last letter alone must not be close.
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return h ^ h>>32
}
