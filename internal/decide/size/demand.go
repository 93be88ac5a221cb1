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

// group is waiting members that are decided as one: same shape, same priority, and of jobs on distinct hosts the same
// nodes that are out of the question. They may avoid different nodes, on which they failed: see part.
type group struct {
	groupKey
	shape   *shape
	home    []muster.NodeID // that have a member of its job on distinct hosts, sorted
	age     uint64          // of the oldest job in it
	members int
	tried   int            // parts in it of jobs of which some member has run
	parts   *sorted[*part] // the oldest first
	// avoided has for each node the parts whose members failed there, strict how many members failed on any.
	avoided map[muster.NodeID]map[*part]bool
	strict  int
}

type groupKey struct {
	id       state.ShapeID
	priority int
	homes    string
}

// part is the members of one job in a group that failed on the same nodes.
type part struct {
	group   *group
	waiter  *waiter
	failed  []muster.NodeID
	key     string
	members int
	// left is how many have no room so far in a pass, and which pass that is.
	left int
	pass uint64
}

// waiter is a job with members that wait, now or after a back-off.
type waiter struct {
	row   *state.Job
	parts map[string]*part // by the nodes that their members failed on
	tried bool             // some member has run
	asOf  muster.Time      // members that were due then are counted
	next  muster.Time      // when the next retry is due after that; 0: none is to come
}

// inLine is the order in which groups are served: higher priority first, then the older.
func inLine(a, b *group) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.age, b.age), cmp.Compare(a.id, b.id), cmp.Compare(a.homes, b.homes))
}

// refreshJob reads all that waits of a job from the snapshot, retry set by retry set: members are counted and not walked.
// Members of system jobs want no node made.
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
		v.wakeFor(w, 0)
		delete(v.jobs, uid)
	}
	if !wants(j) {
		return
	}
	w = &waiter{row: j, tried: hasRun(j), asOf: v.now, parts: map[string]*part{}}
	v.jobs[uid] = w
	home := v.occupied(j)
	v.count(w, nil, home)
	if j.Retrying == 0 {
		return
	}
	v.snap.Retries(uid).Sets(w.asOf, func(failed []muster.NodeID, due int) bool {
		if len(failed) > 0 {
			v.set(w, failed, due, home)
		}
		return true
	})
	v.await(w)
}

// refreshMembers is refreshJob where nothing has changed but members with these indexes: of a job with many retry sets only
// those are counted again to which one of them may have belonged. It only ever fails on more nodes, so that the sets it was in
// are those of the nodes that it failed on first.
func (v *View) refreshMembers(uid muster.JobUID, indexes []int) {
	j := v.snap.JobByUID(uid)
	w := v.jobs[uid]
	if w == nil || !wants(j) || j.Run != w.row.Run || j.Priority() != w.row.Priority() || j.Age != w.row.Age ||
		hasRun(j) != w.tried || j.Run.Spec.DistinctHosts {
		v.refreshJob(uid)
		return
	}
	if w.row == j {
		return
	}
	w.row = j
	v.count(w, nil, nil)
	seen := map[string]bool{}
	for _, i := range indexes {
		m := v.snap.Member(uid, i)
		if m == nil {
			continue
		}
		for k := 1; k <= len(m.FailedNodes); k++ {
			v.recount(w, m.FailedNodes[:k:k], seen)
		}
	}
	v.await(w)
}

// refreshDue counts the members of a job in that have become due.
func (v *View) refreshDue(uid muster.JobUID) {
	w := v.jobs[uid]
	if w == nil || w.asOf == 0 || w.row.Run.Spec.DistinctHosts {
		v.refreshJob(uid)
		return
	}
	since := w.asOf
	w.asOf = v.now
	v.count(w, nil, nil)
	seen := map[string]bool{}
	v.snap.Retries(uid).Between(since, v.now, func(m *state.Member) bool {
		if len(m.FailedNodes) > 0 {
			v.recount(w, m.FailedNodes, seen)
		}
		return true
	})
	v.await(w)
}

func (v *View) recount(w *waiter, failed []muster.NodeID, seen map[string]bool) {
	if key := joined(failed); !seen[key] {
		seen[key] = true
		v.count(w, failed, nil)
	}
}

// count reads from the snapshot how many members of a job want a node that failed on just these.
func (v *View) count(w *waiter, failed, home []muster.NodeID) {
	n := v.snap.Retries(w.row.UID).CountDueIn(failed, w.asOf)
	if len(failed) == 0 {
		n += w.row.Untried()
	}
	v.set(w, failed, n, home)
}

// await notes when the next member of a job is due.
func (v *View) await(w *waiter) {
	next := muster.Time(0)
	if m := v.snap.Retries(w.row.UID).Next(w.asOf); m != nil {
		next = m.RetryAt
	}
	v.wakeFor(w, next)
}

func (v *View) wakeFor(w *waiter, at muster.Time) {
	if w.next == at {
		return
	}
	if w.next != 0 {
		v.wakes.Delete(wake{w.next, w.row.UID})
	}
	if w.next = at; at != 0 {
		v.wakes.Set(wake{at, w.row.UID})
	}
}

// wants reports whether nodes are to be made for a job.
func wants(j *state.Job) bool {
	return j != nil && j.Stage == muster.JobLive && j.Parked == "" && j.Waiting() > 0 && !j.Run.System()
}

// hasRun reports whether some member has run before.
func hasRun(j *state.Job) bool { return j.MaxAttempt > j.AttemptBase || j.Env != nil }

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

// set says how many members of a job want a node that failed on just these.
func (v *View) set(w *waiter, failed []muster.NodeID, members int, home []muster.NodeID) {
	key := joined(failed)
	p := w.parts[key]
	switch {
	case members == 0 && p == nil:
		return
	case members == 0:
		v.drop(p)
		delete(w.parts, key)
		return
	case p == nil:
		p = v.add(w, failed, key, home)
	}
	g := p.group
	g.members += members - p.members
	if len(failed) > 0 {
		g.strict += members - p.members
	}
	p.members = members
}

// add makes an empty part of a job.
func (v *View) add(w *waiter, failed []muster.NodeID, key string, home []muster.NodeID) *part {
	j := w.row
	of := groupKey{j.Run.Shape, j.Priority(), joined(home)}
	g := v.groups[of]
	if g == nil {
		g = &group{groupKey: of, home: home, shape: v.shapes[of.id], avoided: map[muster.NodeID]map[*part]bool{}}
		g.parts = ordered(func(a, b *part) int {
			return cmp.Or(cmp.Compare(a.waiter.row.Age, b.waiter.row.Age), cmp.Compare(a.waiter.row.UID, b.waiter.row.UID), cmp.Compare(a.key, b.key))
		})
		if g.shape == nil {
			g.shape = &shape{Shape: fit.ShapeOf(j.Run)}
			v.name(g.shape.Shape)
			v.shapes[of.id] = g.shape
		}
		g.shape.groups++
		v.avoid(home, 1)
		v.groups[of] = g
	}
	p := &part{group: g, waiter: w, failed: failed, key: key}
	w.parts[key] = p
	if w.tried {
		g.tried++
	}
	for _, id := range failed {
		if g.avoided[id] == nil {
			g.avoided[id] = map[*part]bool{}
		}
		g.avoided[id][p] = true
	}
	v.avoid(failed, 1)
	g.parts.Set(p)
	v.lineUp(g)
	return p
}

// avoid counts nodes that are out of the question for some members.
func (v *View) avoid(ids []muster.NodeID, by int) {
	for _, id := range ids {
		if v.avoided[id] += by; v.avoided[id] == 0 {
			delete(v.avoided, id)
		}
	}
}

// accepts is how many members of a group may use a node, were it empty enough.
func (g *group) accepts(id muster.NodeID) int {
	if g.isHome(id) {
		return 0
	}
	n := g.members
	for p := range g.avoided[id] {
		n -= p.members
	}
	return n
}

func (g *group) isHome(id muster.NodeID) bool {
	_, home := slices.BinarySearch(g.home, id)
	return home
}

// lineUp puts a group where its oldest part belongs, or away if it has none.
func (v *View) lineUp(g *group) {
	oldest, ok := g.parts.Min()
	if ok && oldest.waiter.row.Age == g.age {
		return
	}
	v.waiting.Delete(g)
	v.lineGen++
	if ok {
		g.age = oldest.waiter.row.Age
		v.waiting.Set(g)
		return
	}
	delete(v.groups, g.groupKey)
	v.avoid(g.home, -1)
	if g.shape.groups--; g.shape.groups == 0 {
		delete(v.shapes, g.id)
	}
}

func (v *View) drop(p *part) {
	g := p.group
	g.members -= p.members
	if len(p.failed) > 0 {
		g.strict -= p.members
	}
	if p.waiter.tried {
		g.tried--
	}
	for _, id := range p.failed {
		if delete(g.avoided[id], p); len(g.avoided[id]) == 0 {
			delete(g.avoided, id)
		}
	}
	v.avoid(p.failed, -1)
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
