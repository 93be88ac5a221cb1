package place

import (
	"container/heap"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// retryQueue is the members of a job that are due for another attempt, the longest due first. Members that failed on the
// same nodes are one retry set: where the first of them finds no node the others do not either, and are not looked at. A
// pass costs the members that it places and the sets that it looks at, however many members are due.
type retryQueue struct {
	snap *state.Snapshot
	uid  muster.JobUID
	now  muster.Time
	// open are due and were neither placed nor found to fit nowhere, blocked fit nowhere.
	open, blocked int
	// heads are the sets that were begun, by their next member. From last on, sets were not begun yet; ahead holds the next ones.
	heads retryHeads
	last  *state.Member
	ahead []*state.Member
	ended bool // there are none after those ahead
	// room, once a member fitted nowhere, is all nodes with room for the shape. It only shrinks in a pass.
	room   []muster.NodeID
	narrow bool // room is known
	// avoid is what all that fit nowhere avoid.
	avoid  []muster.NodeID
	placed map[int]bool // indexes of members that were placed
}

// retrySet is a set that was begun, with its next members.
type retrySet struct{ next []*state.Member }

type retryHeads []*retrySet

func (h retryHeads) Len() int { return len(h) }
func (h retryHeads) Less(i, k int) bool {
	a, b := h[i].next[0], h[k].next[0]
	return a.RetryAt < b.RetryAt || a.RetryAt == b.RetryAt && a.Index < b.Index
}
func (h retryHeads) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *retryHeads) Push(x any)   { *h = append(*h, x.(*retrySet)) }
func (h *retryHeads) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// retriesOf is the queue of a job.
func retriesOf(snap *state.Snapshot, j *state.Job, now muster.Time) retryQueue {
	q := retryQueue{snap: snap, uid: j.UID, now: now, ended: true}
	if j.Retrying > 0 {
		q.open = snap.Retries(j.UID).CountDue(j.Retrying, now)
		q.ended = q.open == 0
	}
	return q
}

// retryBatch is how many rows are read at once.
const retryBatch = 32

// frontier is the first member of the next set that was not begun; nil: there is none.
func (q *retryQueue) frontier() *state.Member {
	if len(q.ahead) == 0 && !q.ended {
		q.snap.Retries(q.uid).Heads(q.last, q.now, func(m *state.Member) bool {
			q.ahead = append(q.ahead, m)
			return len(q.ahead) < retryBatch
		})
		q.ended = len(q.ahead) < retryBatch
		if len(q.ahead) > 0 {
			q.last = q.ahead[len(q.ahead)-1]
		}
	}
	if len(q.ahead) == 0 {
		return nil
	}
	return q.ahead[0]
}

// peek is the member that is due the longest of those that are open; nil: there is none.
func (q *retryQueue) peek() *state.Member {
	for {
		next := q.frontier()
		if next == nil {
			break
		}
		set := &retrySet{[]*state.Member{next}}
		if len(q.heads) > 0 {
			if h := (retryHeads{q.heads[0], set}); h.Less(0, 1) {
				break
			}
		}
		q.ahead = q.ahead[1:]
		heap.Push(&q.heads, set)
	}
	if len(q.heads) == 0 {
		return nil
	}
	return q.heads[0].next[0]
}

// take says that the member of the last peek was placed.
func (q *retryQueue) take() {
	set := q.heads[0]
	m := set.next[0]
	q.open--
	if q.placed == nil {
		q.placed = map[int]bool{}
	}
	q.placed[m.Index] = true
	if set.next = set.next[1:]; len(set.next) == 0 {
		q.snap.Retries(m.UID).Behind(m, q.now, func(x *state.Member) bool {
			set.next = append(set.next, x)
			return len(set.next) < retryBatch
		})
	}
	if len(set.next) == 0 {
		heap.Pop(&q.heads)
	} else {
		heap.Fix(&q.heads, 0)
	}
}

// pass says that the member of the last peek fits nowhere, and with it all of its set.
func (q *retryQueue) pass() {
	set := heap.Pop(&q.heads).(*retrySet)
	m := set.next[0]
	n := q.snap.Retries(q.uid).CountDueIn(m.FailedNodes, q.now)
	if len(q.placed) > 0 {
		q.snap.Retries(m.UID).Alike(m, q.now, func(x *state.Member) bool {
			if q.placed[x.Index] {
				n--
				return true
			}
			return false // members of a set are placed in order
		})
	}
	q.block(m.FailedNodes, n)
}

// block notes that so many members that failed on these nodes fit nowhere.
func (q *retryQueue) block(failed []muster.NodeID, n int) {
	if q.blocked == 0 {
		q.avoid = failed
	} else if len(q.avoid) > 0 {
		q.avoid = both(q.avoid, failed)
	}
	q.open -= n
	q.blocked += n
}

// blockAll notes that no node has room for any of them.
func (q *retryQueue) blockAll() {
	for m := q.peek(); m != nil && (q.blocked == 0 || len(q.avoid) > 0); m = q.peek() {
		q.pass()
	}
	q.heads, q.ahead, q.ended = nil, nil, true
	q.blocked += q.open
	q.open = 0
}

// useless reports whether a member that failed on these nodes is known to find none.
func (q *retryQueue) useless(failed []muster.NodeID) bool {
	return q.narrow && !slices.ContainsFunc(q.room, func(id muster.NodeID) bool { return !slices.Contains(failed, id) })
}

// narrowTo finds all nodes with room, now that a member that failed on these found none: they are among these.
func (q *retryQueue) narrowTo(f *field, spread *tally, failed []muster.NodeID) {
	q.room, q.narrow = q.room[:0], true
	for range failed {
		o := f.best(q.room, spread)
		if o.seat == nil {
			return
		}
		q.room = append(q.room, o.seat.row.ID)
	}
}
