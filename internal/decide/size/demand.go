package size

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// demand is waiting members that are decided as one: same shape, same priority,
// failed on the same nodes.
type demand struct {
	shape    *fit.Shape
	priority int
	avoid    []muster.NodeID
	age      uint64 // of the oldest job in it
	members  int
	left     int // without room so far
	// fresh jobs have never run; tried: some have.
	fresh []*state.Job
	tried bool
	guess *supply // see planner.guess
}

type demandKey struct {
	shape    state.ShapeID
	priority int
	avoid    string
}

// readDemand groups what waits, in the order in which it is served: higher
// priority first, then the older. It walks jobs and retries that are due, never members that were not yet tried.
func (p *planner) readDemand() {
	groups := map[demandKey]*demand{}
	shapes := map[state.ShapeID]*fit.Shape{}
	var last *demand
	add := func(j *state.Job, k int, avoid []muster.NodeID) {
		key := demandKey{j.Run.Shape, j.Run.Priority(), joined(avoid)}
		d := last
		// Thousands of equal jobs follow each other: the group of the one before is nearly always the one.
		if d == nil || d.shape.ID != key.shape || d.priority != key.priority || len(d.avoid)+len(avoid) > 0 {
			d = groups[key]
		}
		if d == nil {
			shape := shapes[j.Run.Shape]
			if shape == nil {
				shape = fit.ShapeOf(j.Run)
				shapes[j.Run.Shape] = shape
			}
			d = &demand{shape: shape, priority: key.priority, avoid: avoid, age: j.Age}
			groups[key] = d
			p.demands = append(p.demands, d)
		}
		last = d
		d.age = min(d.age, j.Age)
		d.members += k
		if j.MaxAttempt > j.AttemptBase {
			d.tried = true
		} else {
			d.fresh = append(d.fresh, j)
		}
	}
	p.snap.Unsettled(func(j *state.Job) bool {
		add(j, j.Untried(), nil)
		return true
	})
	p.snap.WakeAt(func(w state.Wake) bool {
		if w.At > p.now {
			p.wakeAt(w.At)
			return false
		}
		j := p.snap.JobByUID(w.UID)
		if w.Index < 0 || j == nil || j.Stage != muster.JobLive || j.Parked != "" {
			return true
		}
		if m := p.snap.Member(w.UID, w.Index); m != nil {
			add(j, 1, m.FailedNodes)
		}
		return true
	})
	for _, d := range p.demands {
		d.left = d.members
	}
	slices.SortFunc(p.demands, func(a, b *demand) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.age, b.age),
			cmp.Compare(a.shape.ID, b.shape.ID), cmp.Compare(joined(a.avoid), joined(b.avoid)))
	})
}

func joined(ids []muster.NodeID) string {
	if len(ids) == 0 {
		return ""
	}
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(string(id))
		b.WriteByte(' ')
	}
	return b.String()
}

// members is "3 members of 0.5 cpu, 64MiB memory".
func members(k int, shape *fit.Shape) string {
	noun := " members of "
	if k == 1 {
		noun = " member of "
	}
	return strconv.Itoa(k) + noun + shape.Ask.String()
}
