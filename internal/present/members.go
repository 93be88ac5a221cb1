package present

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Members shows the members of a job by index, from the index from on, until show returns false. It
// includes members that were never placed and have no row. A member beyond the count of a service,
// or of a node that is gone, is shown only while it still runs.
func Members(snap *state.Snapshot, j *state.Job, from int, show func(api.Member) bool) {
	next := from
	// Members without a row come between and after those with one. next is the index after the last
	// one shown.
	upTo := func(end int) bool {
		for ; next < end; next++ {
			if !show(Member(j, next, nil)) {
				return false
			}
		}
		return true
	}
	// full says that the reader wants no more. Otherwise the members without a row after the last
	// row follow.
	full := false
	snap.Members(j.UID, from, func(m *state.Member) bool {
		if m.Index >= j.Count() {
			next = max(next, m.Index) // a service had more members, and those between are not even ending any more
		}
		if m.Index >= j.Count() && m.Status != muster.MemberPlaced {
			return true
		}
		if j.Run.System() {
			next = m.Index // those between were of nodes that are gone
		}
		if !upTo(m.Index) || !show(Member(j, m.Index, m)) {
			full = true
			return false
		}
		next = m.Index + 1
		return true
	})
	if j.Run.System() {
		next = max(next, j.NextIndex) // likewise after the last
	}
	if !full {
		upTo(j.Count())
	}
}
