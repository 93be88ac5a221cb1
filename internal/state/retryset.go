package state

import (
	"cmp"
	"slices"
	"sort"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// A million members that wait for another attempt must cost a pass no more than those that it places. Waiting members of
// a job that failed on the same nodes are alike to a scheduler but for when they are due: they are one retry set, and
// where one of them finds no node, none does. The indexes here lead to the sets, and from each to its members.

// retrySet counts the waiting members of a job that failed on the same nodes, in the same order.
type retrySet struct {
	uid     muster.JobUID
	nodes   []muster.NodeID
	waiting int // due or not
}

// retryIndexes are derived from the rows of waiting members.
type retryIndexes struct {
	retries    *btree.BTreeG[*Member]   // by uid, time, index
	alike      *btree.BTreeG[*Member]   // by uid, nodes that they failed on, time, index
	retryHeads *btree.BTreeG[*Member]   // the first due of each set, by uid, time, index
	retrySets  *btree.BTreeG[*retrySet] // by uid, nodes
}

func newRetryIndexes() retryIndexes {
	return retryIndexes{
		retries:    tree(compareDue),
		alike:      tree(func(a, b *Member) int { return cmp.Or(compareSets(a, b), compareDue(a, b)) }),
		retryHeads: tree(compareDue),
		retrySets: tree(func(a, b *retrySet) int {
			return cmp.Or(compareStrings(a.uid, b.uid), slices.Compare(a.nodes, b.nodes))
		}),
	}
}

func (r retryIndexes) copy() retryIndexes {
	return retryIndexes{r.retries.Copy(), r.alike.Copy(), r.retryHeads.Copy(), r.retrySets.Copy()}
}

func compareDue(a, b *Member) int {
	return cmp.Or(compareStrings(a.UID, b.UID), cmp.Compare(a.RetryAt, b.RetryAt), cmp.Compare(a.Index, b.Index))
}

func compareSets(a, b *Member) int {
	return cmp.Or(compareStrings(a.UID, b.UID), slices.Compare(a.FailedNodes, b.FailedNodes))
}

// Times before and after all that a row can have.
const (
	longAgo muster.Time = -1 << 62
	never   muster.Time = 1<<63 - 1
)

// firstOf is the first due of the set that a member would belong to; nil: the set is empty.
func (r *retryIndexes) firstOf(m *Member) (first *Member) {
	r.alike.Ascend(&Member{UID: m.UID, FailedNodes: m.FailedNodes, RetryAt: longAgo, Index: -1}, func(x *Member) bool {
		if compareSets(x, m) == 0 {
			first = x
		}
		return false
	})
	return first
}

// next is the first waiting member of a job that is due at a time or later; nil: there is none.
func (r *retryIndexes) next(uid muster.JobUID, from muster.Time) (next *Member) {
	r.retries.Ascend(&Member{UID: uid, RetryAt: from, Index: -1}, func(m *Member) bool {
		if m.UID == uid {
			next = m
		}
		return false
	})
	return next
}

// waits puts a waiting member into the indexes, leaves takes it out.
func (t *tables) waits(m *Member)  { t.reindexRetry(m, 1) }
func (t *tables) leaves(m *Member) { t.reindexRetry(m, -1) }

func (t *tables) reindexRetry(m *Member, by int) {
	r := &t.retryIndexes
	wake, head := r.next(m.UID, longAgo), r.firstOf(m)
	first := head
	if by > 0 {
		r.retries.Set(m)
		r.alike.Set(m)
		if head == nil || compareDue(m, head) < 0 {
			first = m
		}
	} else {
		r.retries.Delete(m)
		r.alike.Delete(m)
		if head != nil && compareDue(m, head) == 0 {
			first = r.firstOf(m)
		}
	}
	if first != head {
		if head != nil {
			r.retryHeads.Delete(head)
		}
		if first != nil {
			r.retryHeads.Set(first)
		}
	}
	r.count(m, by)
	t.rewake(m.UID, wake)
}

func (r *retryIndexes) count(m *Member, by int) {
	set := &retrySet{m.UID, m.FailedNodes, by}
	if before, ok := r.retrySets.Get(set); ok {
		set.nodes, set.waiting = before.nodes, before.waiting+by
	}
	if set.waiting == 0 {
		r.retrySets.Delete(set)
	} else {
		r.retrySets.Set(set)
	}
}

// rewake keeps the deadline of a job's retries right: there is one for all of them, the earliest.
func (t *tables) rewake(uid muster.JobUID, was *Member) {
	is := t.next(uid, longAgo)
	if was == is {
		return
	}
	if was != nil {
		t.wakeAt.Delete(Wake{was.RetryAt, uid, was.Index})
	}
	if is != nil {
		t.wakeAt.Set(Wake{is.RetryAt, uid, is.Index})
	}
}

// rank is how many rows of a tree come before one that need not be in it.
func rank[T any](t *btree.BTreeG[T], pivot T) int {
	return sort.Search(t.Len(), func(i int) bool {
		row, _ := t.GetAt(i)
		return !t.Less(row, pivot)
	})
}

// Retries are the waiting members of one job that have failed before. Members never placed are not among
// them: these are Job.NextIndex to Count-1.
type Retries struct {
	t   *tables
	uid muster.JobUID
}

// Retries of a job; none if there is no such job.
func (s *Snapshot) Retries(uid muster.JobUID) Retries { return Retries{&s.t, uid} }

// from is where the retries that are due at a time or later begin.
func (r Retries) from(at muster.Time) *Member { return &Member{UID: r.uid, RetryAt: at, Index: -1} }

// Due iterates over those whose back-off is over, the longest due first.
func (r Retries) Due(now muster.Time, fn func(*Member) bool) { r.Between(longAgo-1, now, fn) }

// Between iterates over those that are due after a time and not after another, in that order.
func (r Retries) Between(after, until muster.Time, fn func(*Member) bool) {
	r.t.retries.Ascend(r.from(after+1), func(m *Member) bool {
		return m.UID == r.uid && m.RetryAt <= until && fn(m)
	})
}

// CountDue is how many members Due iterates over, without a walk over them. All is how many retries the
// job has: Job.Retrying.
func (r Retries) CountDue(all int, now muster.Time) int {
	if all == 0 {
		return 0
	}
	switch first := r.t.next(r.uid, longAgo); {
	case first == nil || first.RetryAt > now:
		return 0
	case r.Next(now) == nil:
		return all
	}
	return rank(r.t.retries, r.from(now+1)) - rank(r.t.retries, r.from(longAgo))
}

// Next is the first that is due after a time; nil: there is none.
func (r Retries) Next(after muster.Time) *Member {
	if after == never {
		return nil
	}
	return r.t.next(r.uid, after+1)
}

// Heads iterates over the first due of each retry set, that is of the members that failed on the same
// nodes: the longest due first, those after the given one (nil: all) whose back-off is over.
func (r Retries) Heads(after *Member, now muster.Time, fn func(*Member) bool) {
	from := r.from(longAgo)
	if after != nil {
		from = after
	}
	r.t.retryHeads.Ascend(from, func(m *Member) bool {
		return m.UID == r.uid && m.RetryAt <= now && (m == after || fn(m))
	})
}

// Behind iterates over the due members of a member's retry set that come after it, the longest due first.
func (r Retries) Behind(m *Member, now muster.Time, fn func(*Member) bool) {
	r.t.alike.Ascend(m, func(x *Member) bool {
		return compareSets(x, m) == 0 && x.RetryAt <= now && (x.Index == m.Index || fn(x))
	})
}

// Alike iterates over all due members of a member's retry set, the longest due first.
func (r Retries) Alike(m *Member, now muster.Time, fn func(*Member) bool) {
	r.t.alike.Ascend(r.alikeFrom(m.FailedNodes, longAgo), func(x *Member) bool {
		return compareSets(x, m) == 0 && x.RetryAt <= now && fn(x)
	})
}

// alikeFrom is where the members that failed on some nodes and are due at a time or later begin.
func (r Retries) alikeFrom(nodes []muster.NodeID, at muster.Time) *Member {
	return &Member{UID: r.uid, FailedNodes: nodes, RetryAt: at, Index: -1}
}

// Sets iterates over the retry sets by their nodes, with how many members of each are due at a time.
func (r Retries) Sets(now muster.Time, fn func(nodes []muster.NodeID, due int) bool) {
	r.t.retrySets.Ascend(&retrySet{uid: r.uid}, func(set *retrySet) bool {
		return set.uid == r.uid && fn(set.nodes, r.dueOf(set, now))
	})
}

// CountDueIn is how many members that failed on just these nodes are due at a time.
func (r Retries) CountDueIn(nodes []muster.NodeID, now muster.Time) int {
	if set := get(r.t.retrySets, &retrySet{uid: r.uid, nodes: nodes}); set != nil {
		return r.dueOf(set, now)
	}
	return 0
}

func (r Retries) dueOf(set *retrySet, now muster.Time) int {
	if now == never {
		return set.waiting
	}
	later := false
	after := r.alikeFrom(set.nodes, now+1)
	r.t.alike.Ascend(after, func(x *Member) bool {
		later = compareSets(x, after) == 0
		return false
	})
	if !later {
		return set.waiting
	}
	return rank(r.t.alike, after) - rank(r.t.alike, r.alikeFrom(set.nodes, longAgo))
}

// retryIndexes checks them against the rows of members.
func (c *checker) retryIndexes() {
	t := &c.snap.t
	type key struct {
		uid   muster.JobUID
		nodes string
	}
	type set struct {
		waiting int
		head    *Member
	}
	sets, waiting := map[key]*set{}, 0
	t.members.Scan(func(m *Member) bool {
		if m.Status != muster.MemberWaiting {
			return true
		}
		waiting++
		for _, index := range []*btree.BTreeG[*Member]{t.retries, t.alike} {
			if row, ok := index.Get(m); !ok || row != m {
				c.bad("member %d of job %s waits, and is not in an index of retries", m.Index, m.UID)
			}
		}
		k := key{m.UID, joinNodes(m.FailedNodes)}
		x := cmp.Or(sets[k], &set{})
		if x.head == nil || compareDue(m, x.head) < 0 {
			x.head = m
		}
		x.waiting++
		sets[k] = x
		return true
	})
	if n, k := t.retries.Len(), t.alike.Len(); n != waiting || k != waiting {
		c.bad("%d members wait, %d and %d are in the indexes of retries", waiting, n, k)
	}
	if n, k := t.retrySets.Len(), t.retryHeads.Len(); n != len(sets) || k != len(sets) {
		c.bad("there are %d retry sets, %d are counted and %d have a first", len(sets), n, k)
	}
	t.retrySets.Scan(func(r *retrySet) bool {
		x := sets[key{r.uid, joinNodes(r.nodes)}]
		if x == nil || x.waiting != r.waiting {
			c.bad("job %s counts %d members that failed on %v: %+v", r.uid, r.waiting, r.nodes, x)
			return true
		}
		if head, ok := t.retryHeads.Get(x.head); !ok || head != x.head {
			c.bad("job %s: member %d is not known as the first that failed on %v", r.uid, x.head.Index, r.nodes)
		}
		return true
	})
}

func joinNodes(ids []muster.NodeID) string {
	var b []byte
	for _, id := range ids {
		b = append(append(b, id...), 0)
	}
	return string(b)
}
