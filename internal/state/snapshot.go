package state

import (
	"strconv"
	"strings"
	"sync"

	"github.com/tidwall/btree"

	"github.com/musterhq/muster"
)

// Snapshot is the state as of one entry; it never changes. Reading needs no
// lock. Rows may be kept. Iterators go in the order named and stop when fn returns false.
type Snapshot struct {
	t    tables
	meta Meta

	// mu is held while the trees are copied; see share.
	mu sync.Mutex
}

// Meta is what there is one of.
func (s *Snapshot) Meta() Meta { return s.meta }

// Index is the log index of the snapshot.
func (s *Snapshot) Index() uint64 { return s.meta.Index }

func get[T any](t *btree.BTreeG[T], key T) T {
	v, _ := t.Get(key)
	return v
}

// Job by key; nil if there is none.
func (s *Snapshot) Job(key muster.JobKey) *Job { return s.t.job(key) }

func (t *tables) job(key muster.JobKey) *Job {
	l, ok := t.names.Get(&life{key: key})
	if !ok {
		return nil
	}
	return t.jobByUID(l.uid)
}

// JobByUID is the job with this uid; nil if there is none.
func (s *Snapshot) JobByUID(uid muster.JobUID) *Job { return s.t.jobByUID(uid) }

// jobKeys has rows to search by. A job's row is large, and every pass looks up every job that it considers.
var jobKeys = sync.Pool{New: func() any { return new(Job) }}

func (t *tables) jobByUID(uid muster.JobUID) *Job {
	key := jobKeys.Get().(*Job)
	key.UID = uid
	j := get(t.jobsUID, key)
	jobKeys.Put(key)
	return j
}

// Jobs iterates by (namespace, name) over those after the key (zero: all).
func (s *Snapshot) Jobs(after muster.JobKey, fn func(*Job) bool) {
	s.t.names.Ascend(&life{key: after}, func(l *life) bool {
		return l.key == after || fn(s.t.jobByUID(l.uid))
	})
}

// JobCount is how many jobs there are.
func (s *Snapshot) JobCount() int { return s.t.names.Len() }

// EndedJobs iterates over ended jobs, the longest ended first.
func (s *Snapshot) EndedJobs(fn func(*Job) bool) { s.t.endedJobs.Scan(fn) }

// EndedJobCount is how many have ended.
func (s *Snapshot) EndedJobCount() int { return s.t.endedJobs.Len() }

// EndedJobBytes is about what the specs of those take in memory.
func (s *Snapshot) EndedJobBytes() int64 { return s.t.endedBytes }

// Member of a job; nil if it has no row yet (Job.NextIndex) or does not exist.
func (s *Snapshot) Member(uid muster.JobUID, index int) *Member {
	return get(s.t.members, &Member{UID: uid, Index: index})
}

// Members iterates over those of a job that have a row, by
// index, from the given one on.
func (s *Snapshot) Members(uid muster.JobUID, from int, fn func(*Member) bool) {
	s.t.members.Ascend(&Member{UID: uid, Index: from}, func(m *Member) bool { return m.UID == uid && fn(m) })
}

// Alloc by id; nil if there is none.
func (s *Snapshot) Alloc(id muster.AllocID) *Alloc { return s.t.alloc(id) }

func (t *tables) alloc(id muster.AllocID) *Alloc {
	key := allocKey(id)
	if a, ok := t.allocs.Get(&key); ok && a.ID == id {
		return a
	}
	return nil
}

// allocKey is an id as the tree of allocations sorts it. What is no id is a uid without attempts.
func allocKey(id muster.AllocID) Alloc {
	if last := strings.LastIndexByte(string(id), '-'); last > 0 {
		if mid := strings.LastIndexByte(string(id[:last]), '-'); mid > 0 {
			index, e1 := strconv.Atoi(string(id[mid+1 : last]))
			attempt, e2 := strconv.Atoi(string(id[last+1:]))
			if e1 == nil && e2 == nil {
				return Alloc{UID: muster.JobUID(id[:mid]), Index: index, Attempt: attempt}
			}
		}
	}
	return Alloc{UID: muster.JobUID(id), Index: -1}
}

// Allocs iterates over those after the id ("": all), by job uid, index and attempt.
func (s *Snapshot) Allocs(after muster.AllocID, fn func(*Alloc) bool) {
	key := allocKey(after)
	s.t.allocs.Ascend(&key, func(a *Alloc) bool { return a.ID == after || fn(a) })
}

// AllocCount and LiveAllocCount are how many there are.
func (s *Snapshot) AllocCount() int { return s.t.allocs.Len() }

// LiveAllocCount is how many have not ended.
func (s *Snapshot) LiveAllocCount() int { return s.t.nodeAllocs.Len() }

// JobAllocs iterates over a job's allocations by index, then attempt, from the given index on.
func (s *Snapshot) JobAllocs(uid muster.JobUID, from int, fn func(*Alloc) bool) {
	s.t.allocs.Ascend(&Alloc{UID: uid, Index: from}, func(a *Alloc) bool { return a.UID == uid && fn(a) })
}

// LiveAllocs iterates over all that have not ended, by node, then id.
func (s *Snapshot) LiveAllocs(fn func(*Alloc) bool) { s.t.nodeAllocs.Scan(fn) }

// LiveAllocsAfter iterates over those that have not ended after the id ("": all), by job uid, index
// and attempt. Jobs that have none cost no more than a look at them.
func (s *Snapshot) LiveAllocsAfter(after muster.AllocID, fn func(*Alloc) bool) {
	first := allocKey(after)
	s.t.jobsUID.Ascend(&Job{UID: first.UID}, func(j *Job) bool {
		if j.LiveAllocs == 0 {
			return true
		}
		from := Alloc{UID: j.UID, Index: -1}
		if j.UID == first.UID {
			from = first
		}
		more := true
		s.t.allocs.Ascend(&from, func(a *Alloc) bool {
			if a.UID == j.UID && a.Live() && a.ID != after {
				more = fn(a)
			}
			return more && a.UID == j.UID
		})
		return more
	})
}

// NodeAllocs iterates over a node's live allocations, by id.
func (s *Snapshot) NodeAllocs(id muster.NodeID, fn func(*Alloc) bool) {
	s.t.nodeAllocs.Ascend(&Alloc{Node: id}, func(a *Alloc) bool { return a.Node == id && fn(a) })
}

// OpenOutputs iterates over a node's ended allocations whose output is not yet stored, by id.
func (s *Snapshot) OpenOutputs(id muster.NodeID, fn func(*Alloc) bool) {
	s.t.openOutput.Ascend(&Alloc{Node: id}, func(a *Alloc) bool { return a.Node == id && fn(a) })
}

// Node by id; nil if there is none.
func (s *Snapshot) Node(id muster.NodeID) *Node { return get(s.t.nodes, &Node{ID: id}) }

// Nodes iterates over all, gone ones included, by id, after the given one.
func (s *Snapshot) Nodes(after muster.NodeID, fn func(*Node) bool) {
	s.t.nodes.Ascend(&Node{ID: after}, func(n *Node) bool { return n.ID == after || fn(n) })
}

// LiveNodes iterates over nodes that are not gone, by id.
func (s *Snapshot) LiveNodes(fn func(*Node) bool) { s.t.liveNodes.Scan(fn) }

// LiveNodeCount is how many are not gone.
func (s *Snapshot) LiveNodeCount() int { return s.t.liveNodes.Len() }

// GoneNodes iterates over gone nodes, the longest gone first.
func (s *Snapshot) GoneNodes(fn func(*Node) bool) { s.t.goneNodes.Scan(fn) }

// GoneNodeCount is how many are gone.
func (s *Snapshot) GoneNodeCount() int { return s.t.goneNodes.Len() }

// Pools iterates by name.
func (s *Snapshot) Pools(fn func(*Pool) bool) { s.t.pools.Scan(fn) }

// Pool by name; nil if there is none.
func (s *Snapshot) Pool(name muster.PoolName) *Pool { return get(s.t.pools, &Pool{Name: name}) }

// Breaker of a pool; nil if it has nothing to remember.
func (s *Snapshot) Breaker(pool muster.PoolName) *Breaker {
	return get(s.t.breakers, &Breaker{Pool: pool})
}

// Breakers iterates by pool over those that have something to remember.
func (s *Snapshot) Breakers(fn func(*Breaker) bool) { s.t.breakers.Scan(fn) }

// Offerings iterates over what was last seen on sale, by provider, name, zone, market.
func (s *Snapshot) Offerings(fn func(*muster.Offering) bool) { s.t.offers.Scan(fn) }

// Unsettled iterates over live jobs with members that were never placed and
// that are not parked, by uid. Jobs with only retries are in WakeAt.
func (s *Snapshot) Unsettled(fn func(*Job) bool) { s.t.unsettled.Scan(fn) }

// UnsettledCount is how many there are.
func (s *Snapshot) UnsettledCount() int { return s.t.unsettled.Len() }

// WakeAt iterates over deadlines, the earliest first. One not after now is due. A job has at most two: when the first of its
// retries is due, and when it is parked no more.
func (s *Snapshot) WakeAt(fn func(Wake) bool) { s.t.wakeAt.Scan(fn) }
