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
func (s *State) waits(m *Member) {
	r := &s.t.retryIndexes
	wake := r.next(m.UID, longAgo)
	head := r.firstOf(m)
	r.retries.Set(m)
	r.alike.Set(m)
	if head == nil || compareDue(m, head) < 0 {
		if head != nil {
			r.retryHeads.Delete(head)
		}
		r.retryHeads.Set(m)
	}
	r.count(m, 1)
	s.rewake(m.UID, wake)
}

func (s *State) leaves(m *Member) {
	r := &s.t.retryIndexes
	wake := r.next(m.UID, longAgo)
	head := r.firstOf(m)
	r.retries.Delete(m)
	r.alike.Delete(m)
	if head != nil && compareDue(m, head) == 0 {
		r.retryHeads.Delete(head)
		if second := r.firstOf(m); second != nil {
			r.retryHeads.Set(second)
		}
	}
	r.count(m, -1)
	s.rewake(m.UID, wake)
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
func (s *State) rewake(uid muster.JobUID, was *Member) {
	is := s.t.next(uid, longAgo)
	if was == is {
		return
	}
	if was != nil {
		s.t.wakeAt.Delete(Wake{was.RetryAt, uid, was.Index})
	}
	if is != nil {
		s.t.wakeAt.Set(Wake{is.RetryAt, uid, is.Index})
	}
}

// rank is how many rows of a tree come before one that need not be in it.
func rank[T any](t *btree.BTreeG[T], pivot T) int {
	return sort.Search(t.Len(), func(i int) bool {
		row, _ := t.GetAt(i)
		return !t.Less(row, pivot)
	})
}

// DueRetries iterates over a job's waiting members whose back-off is over, the
// longest due first. Members never placed are Job.NextIndex to Count-1.
func (s *Snapshot) DueRetries(uid muster.JobUID, now muster.Time, fn func(*Member) bool) {
	s.t.retries.Ascend(&Member{UID: uid, RetryAt: longAgo, Index: -1}, func(m *Member) bool {
		return m.UID == uid && m.RetryAt <= now && fn(m)
	})
}

// DueCount is how many members DueRetries iterates over, without a walk over them. The job is the snapshot's row.
func (s *Snapshot) DueCount(j *Job, now muster.Time) int {
	if j.Retrying == 0 {
		return 0
	}
	uid := j.UID
	switch first := s.t.next(uid, longAgo); {
	case first == nil || first.RetryAt > now:
		return 0
	case s.NextRetry(uid, now) == nil:
		return j.Retrying
	}
	return rank(s.t.retries, &Member{UID: uid, RetryAt: now + 1, Index: -1}) - rank(s.t.retries, &Member{UID: uid, RetryAt: longAgo, Index: -1})
}

// NextRetry is the first of a job's waiting members that is due after a time; nil: there is none.
func (s *Snapshot) NextRetry(uid muster.JobUID, after muster.Time) *Member {
	if after == never {
		return nil
	}
	return s.t.next(uid, after+1)
}

// RetriesBetween iterates over a job's waiting members that are due after a time and not after another, in that order.
func (s *Snapshot) RetriesBetween(uid muster.JobUID, after, until muster.Time, fn func(*Member) bool) {
	s.t.retries.Ascend(&Member{UID: uid, RetryAt: after + 1, Index: -1}, func(m *Member) bool {
		return m.UID == uid && m.RetryAt <= until && fn(m)
	})
}

// RetryHeads iterates over the first due of each retry set of a job, that is of its waiting members that failed on the same
// nodes: the longest due first, those after the given one (nil: all) whose back-off is over.
func (s *Snapshot) RetryHeads(uid muster.JobUID, after *Member, now muster.Time, fn func(*Member) bool) {
	from := &Member{UID: uid, RetryAt: longAgo, Index: -1}
	if after != nil {
		from = after
	}
	s.t.retryHeads.Ascend(from, func(m *Member) bool {
		return m.UID == uid && m.RetryAt <= now && (m == after || fn(m))
	})
}

// RetriesAlike iterates over the due waiting members of a member's retry set that come after it, the longest due first.
func (s *Snapshot) RetriesAlike(m *Member, now muster.Time, fn func(*Member) bool) {
	s.t.alike.Ascend(m, func(x *Member) bool {
		return compareSets(x, m) == 0 && x.RetryAt <= now && (x.Index == m.Index || fn(x))
	})
}

// DueRetriesIn iterates over all due waiting members of the member's retry set, the longest due first.
func (s *Snapshot) DueRetriesIn(m *Member, now muster.Time, fn func(*Member) bool) {
	s.t.alike.Ascend(&Member{UID: m.UID, FailedNodes: m.FailedNodes, RetryAt: longAgo, Index: -1}, func(x *Member) bool {
		return compareSets(x, m) == 0 && x.RetryAt <= now && fn(x)
	})
}

// RetrySets iterates over the retry sets of a job by their nodes, with how many members of each are due at a time.
func (s *Snapshot) RetrySets(uid muster.JobUID, now muster.Time, fn func(nodes []muster.NodeID, due int) bool) {
	s.t.retrySets.Ascend(&retrySet{uid: uid}, func(set *retrySet) bool {
		return set.uid == uid && fn(set.nodes, s.due(set, now))
	})
}

// DueIn is how many waiting members of a job that failed on just these nodes are due at a time.
func (s *Snapshot) DueIn(uid muster.JobUID, nodes []muster.NodeID, now muster.Time) int {
	set, ok := s.t.retrySets.Get(&retrySet{uid: uid, nodes: nodes})
	if !ok {
		return 0
	}
	return s.due(set, now)
}

func (s *Snapshot) due(set *retrySet, now muster.Time) int {
	if now == never {
		return set.waiting
	}
	later := false
	after := &Member{UID: set.uid, FailedNodes: set.nodes, RetryAt: now + 1, Index: -1}
	s.t.alike.Ascend(after, func(x *Member) bool {
		later = compareSets(x, after) == 0
		return false
	})
	if !later {
		return set.waiting
	}
	return rank(s.t.alike, after) - rank(s.t.alike, &Member{UID: set.uid, FailedNodes: set.nodes, RetryAt: longAgo, Index: -1})
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
		if sets[k] == nil {
			sets[k] = &set{}
		}
		if x := sets[k]; x.head == nil || compareDue(m, x.head) < 0 {
			x.head = m
		}
		sets[k].waiting++
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
