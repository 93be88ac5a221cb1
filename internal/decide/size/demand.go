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

// group is waiting members that are decided as one: same shape, same priority,
// failed on the same nodes.
type group struct {
	groupKey
	shape   *shape
	avoid   []muster.NodeID
	age     uint64 // of the oldest job in it
	members int
	tried   int            // jobs in it of which some member has run
	parts   *sorted[*part] // the oldest first
}

type groupKey struct {
	id       state.ShapeID
	priority int
	avoided  string
}

// part is the members of one job in a group.
type part struct {
	group   *group
	job     *state.Job
	members int
	tried   bool
}

// waiter is a job with members that wait, now or after a back-off.
type waiter struct {
	row   *state.Job
	parts []*part
	next  muster.Time // when the next retry is due; 0: none is to come
}

// inLine is the order in which groups are served: higher priority first, then the older.
func inLine(a, b *group) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.age, b.age), cmp.Compare(a.id, b.id), cmp.Compare(a.avoided, b.avoided))
}

// refreshJob reads what waits of a job from the snapshot. Members that were never
// tried are counted and not walked; retries that are due are walked. Members of system jobs want no node made.
func (v *View) refreshJob(uid muster.JobUID) {
	j := v.snap.JobByUID(uid)
	w := v.jobs[uid]
	if w != nil && w.row == j && (w.next == 0 || w.next > v.now) {
		return
	}
	if w != nil {
		for _, p := range w.parts {
			v.drop(p)
		}
		if w.next != 0 {
			v.wakes.Delete(wake{w.next, uid})
		}
		delete(v.jobs, uid)
	}
	if j == nil || j.Stage != muster.JobLive || j.Parked != "" || j.Waiting() == 0 || j.Run.System() {
		return
	}
	w = &waiter{row: j}
	v.jobs[uid] = w
	home := v.occupied(j)
	if k := j.Untried(); k > 0 {
		v.add(w, k, home)
	}
	if j.Retrying == 0 {
		return
	}
	const never = muster.Time(1<<63 - 1)
	v.snap.DueRetries(uid, never, func(m *state.Member) bool {
		if m.RetryAt > v.now {
			w.next = m.RetryAt
			v.wakes.Set(wake{w.next, uid})
			return false
		}
		avoid := m.FailedNodes
		if len(home) > 0 {
			avoid = append(slices.Clone(home), avoid...)
		}
		v.add(w, 1, avoid)
		return true
	})
}

// occupied are the nodes that have a member of a job on distinct hosts: another finds no room there.
func (v *View) occupied(j *state.Job) (on []muster.NodeID) {
	if !j.Run.Spec.DistinctHosts || j.LiveAllocs == 0 {
		return nil
	}
	v.snap.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
		if a.Live() {
			on = append(on, a.Node)
		}
		return true
	})
	slices.Sort(on)
	return slices.Compact(on)
}

func (v *View) add(w *waiter, k int, avoid []muster.NodeID) {
	j := w.row
	key := groupKey{j.Run.Shape, j.Priority(), joined(avoid)}
	for _, p := range w.parts {
		if p.group.groupKey == key {
			p.members += k
			p.group.members += k
			return
		}
	}
	g := v.groups[key]
	if g == nil {
		g = &group{groupKey: key, avoid: avoid, shape: v.shapes[key.id]}
		g.parts = ordered(func(a, b *part) int {
			return cmp.Or(cmp.Compare(a.job.Age, b.job.Age), cmp.Compare(a.job.UID, b.job.UID))
		})
		if g.shape == nil {
			g.shape = &shape{Shape: fit.ShapeOf(j.Run)}
			v.name(g.shape.Shape)
			v.shapes[key.id] = g.shape
		}
		g.shape.groups++
		if len(avoid) > 0 {
			v.avoids++
		}
		v.groups[key] = g
	}
	p := &part{group: g, job: j, members: k, tried: j.MaxAttempt > j.AttemptBase || j.Env != nil}
	w.parts = append(w.parts, p)
	g.members += k
	if p.tried {
		g.tried++
	}
	g.parts.Set(p)
	v.lineUp(g)
}

// lineUp puts a group where its oldest part belongs, or away if it has none.
func (v *View) lineUp(g *group) {
	oldest, ok := g.parts.Min()
	if ok && oldest.job.Age == g.age {
		return
	}
	v.waiting.Delete(g)
	v.lineGen++
	if ok {
		g.age = oldest.job.Age
		v.waiting.Set(g)
		return
	}
	delete(v.groups, g.groupKey)
	if len(g.avoid) > 0 {
		v.avoids--
	}
	if g.shape.groups--; g.shape.groups == 0 {
		delete(v.shapes, g.id)
	}
}

func (v *View) drop(p *part) {
	g := p.group
	g.members -= p.members
	if p.tried {
		g.tried--
	}
	g.parts.Delete(p)
	v.lineUp(g)
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
