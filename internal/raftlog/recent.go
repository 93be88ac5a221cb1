package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// recentBytes bounds the entries that are kept in memory.
const recentBytes = 16 << 20

// recent has the newest entries of the log in memory. Among several servers raft reads every entry again
// soon after it was written: a leader once for each follower, a follower to apply it. Without this each is
// read from the disk, by two system calls. A server alone reads none again and has none of this.
type recent struct {
	mu    sync.Mutex
	logs  []*raft.Log // without gaps, oldest first
	bytes int
}

// add takes entries that are on disk now.
func (r *recent) add(logs []*raft.Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range logs {
		if n := len(r.logs); n > 0 && l.Index != r.logs[n-1].Index+1 {
			r.logs, r.bytes = nil, 0 // a follower that was wrong, or got a snapshot
		}
		r.logs = append(r.logs, l)
		r.bytes += size(l)
	}
	for r.bytes > recentBytes && len(r.logs) > 1 {
		r.drop(1)
	}
}

func size(l *raft.Log) int { return len(l.Data) + len(l.Extensions) + 128 } // about, with what holds it

// get copies an entry into out, whose data nobody changes.
func (r *recent) get(index uint64, out *raft.Log) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.logs) == 0 || index < r.logs[0].Index || index > r.logs[len(r.logs)-1].Index {
		return false
	}
	*out = *r.logs[index-r.logs[0].Index]
	return true
}

// forget is called before entries are deleted from the disk: the oldest ones after a snapshot, or the newest
// ones of a follower that was wrong.
func (r *recent) forget(lo, hi uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.logs)
	switch {
	case n == 0 || lo > r.logs[n-1].Index || hi < r.logs[0].Index:
	case lo <= r.logs[0].Index && hi < r.logs[n-1].Index:
		r.drop(int(hi - r.logs[0].Index + 1))
	default:
		r.logs, r.bytes = nil, 0
	}
}

// drop forgets the n oldest.
func (r *recent) drop(n int) {
	for i := range n {
		r.bytes -= size(r.logs[i])
		r.logs[i] = nil // the array behind lives on
	}
	r.logs = r.logs[n:]
}
