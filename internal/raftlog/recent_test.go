package raftlog

import (
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// What is in memory is what was stored, whatever was stored and deleted in which order.
func TestRecentIsTheDisk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		disk := map[uint64]*raft.Log{}
		last := uint64(0)
		largest := recentBytes / 4
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				var logs []*raft.Log
				for range rapid.IntRange(1, 8).Draw(t, "n") {
					last++
					l := &raft.Log{Index: last, Term: rapid.Uint64().Draw(t, "term"), Data: make([]byte, rapid.SampledFrom([]int{0, 100, largest}).Draw(t, "size"))}
					logs, disk[last] = append(logs, l), l
				}
				r.add(logs)
			},
			"compact": func(t *rapid.T) {
				hi := rapid.Uint64Range(0, last).Draw(t, "hi")
				r.forget(1, hi)
				for i := range disk {
					if i <= hi {
						delete(disk, i)
					}
				}
			},
			"cut the end": func(t *rapid.T) {
				lo := rapid.Uint64Range(1, last+1).Draw(t, "lo")
				r.forget(lo, last)
				for i := range disk {
					if i >= lo {
						delete(disk, i)
					}
				}
				last = lo - 1
			},
			"take a snapshot of another": func(t *rapid.T) {
				r.forget(1, last)
				clear(disk)
				last += rapid.Uint64Range(1, 100).Draw(t, "ahead")
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, l := range r.logs {
					sum += size(l)
				}
				if sum != r.bytes || sum > recentBytes && len(r.logs) > 1 {
					t.Fatalf("%d bytes in %d entries, it counts %d", sum, len(r.logs), r.bytes)
				}
				for i := range last + 3 {
					var l raft.Log
					if r.get(i, &l) && (disk[i] == nil || l.Term != disk[i].Term || l.Index != i) {
						t.Fatalf("entry %d is %+v in memory and %+v on disk", i, l.Term, disk[i])
					}
				}
			},
		})
	})
}
