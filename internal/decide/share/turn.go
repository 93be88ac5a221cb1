package share

import (
	"cmp"
	"container/heap"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Turns says whose turn it is among classes of namespaces that want room now.
// What a class has is the part of all room that its allocations hold, of cores or of memory,
// whichever is more. It is a value of one pass.
type Turns struct {
	snap  *state.Snapshot
	total muster.Resources
	had   map[string]muster.Resources // by class, once it is known
	// waiting are the classes that want something, the next one first.
	waiting turns
	byName  map[string]*Class
}

// Class is one that wants room, with what it wants it for. It is served in the order in which it was added to.
type Class struct {
	Name   string
	weight int
	has    muster.Resources
	jobs   []*state.Job
	// level is what it has for its weight, with one more member of the first of its jobs.
	level float64
	at    int
}

// NewTurns begins a pass. Total is all room that there is, used or not.
func NewTurns(snap *state.Snapshot, total muster.Resources) *Turns {
	return &Turns{snap: snap, total: total, byName: map[string]*Class{}}
}

// Add has a job wait for its class's turn, behind those of the class that were added before.
func (t *Turns) Add(j *state.Job) {
	name, weight := t.snap.Shares().Class(j.Key.Namespace)
	c := t.byName[name]
	if c == nil {
		c = &Class{Name: name, weight: weight, has: t.has(name), at: -1}
		t.byName[name] = c
	}
	c.jobs = append(c.jobs, j)
	if c.at < 0 {
		c.level = t.level(c, 1)
		heap.Push(&t.waiting, c)
	}
}

// has is what a class's allocations hold in the snapshot.
func (t *Turns) has(name string) muster.Resources {
	if t.had == nil {
		t.had = map[string]muster.Resources{}
		shares := t.snap.Shares()
		t.snap.Uses(func(u *state.NamespaceUse) bool {
			if u.Name != muster.AllNamespaces && u.Allocs > 0 {
				class, _ := shares.Class(u.Name)
				t.had[class] = t.had[class].Add(u.Used)
			}
			return true
		})
	}
	return t.had[name]
}

// Next is the job whose turn it is, and how many of its members may be placed
// before it could be another class's; nil if nobody waits.
func (t *Turns) Next() (j *state.Job, members int) {
	if len(t.waiting) == 0 {
		return nil, 0
	}
	c := t.waiting[0]
	j = c.jobs[0]
	if len(t.waiting) == 1 {
		return j, j.Waiting()
	}
	next := t.waiting[1]
	if len(t.waiting) > 2 && t.waiting.Less(2, 1) {
		next = t.waiting[2]
	}
	if c.weight == 0 || next.weight == 0 {
		if c.weight > 0 {
			return j, j.Waiting()
		}
		return j, 1
	}
	// Members until its level with one more is above that of the next.
	each := t.part(j.Run.Ask) / float64(c.weight)
	if each <= 0 {
		return j, j.Waiting()
	}
	n := min(1+int((next.level-c.level)/each), max(j.Waiting(), 1))
	// Rounding, and who comes first of two that are level: as if they were taken one by one.
	for n > 1 && !before(c, t.level(c, n), next, next.level) {
		n--
	}
	return j, n
}

// Placed tells that so many members of the job whose turn it was were placed. If
// it is through, or can have no more, its class goes on with its next job.
func (t *Turns) Placed(members int, through bool) {
	c := t.waiting[0]
	c.has = c.has.Add(c.jobs[0].Run.Ask.By(members))
	if through {
		c.jobs = c.jobs[1:]
	}
	if len(c.jobs) == 0 {
		heap.Pop(&t.waiting)
		return
	}
	c.level = t.level(c, 1)
	heap.Fix(&t.waiting, 0)
}

// level is what a class would have for its weight with so many members more.
func (t *Turns) level(c *Class, members int) float64 {
	return t.part(c.has.Add(c.jobs[0].Run.Ask.By(members))) / float64(max(c.weight, 1))
}

// part is the larger of the parts of all cores and all memory.
func (t *Turns) part(r muster.Resources) float64 {
	return max(float64(r.CPU)/float64(max(t.total.CPU, 1)), float64(r.Memory)/float64(max(t.total.Memory, 1)))
}

// turns is a heap: those with a weight before those without, the lowest level, the heaviest, by name.
type turns []*Class

func (w turns) Len() int { return len(w) }

func (w turns) Less(i, k int) bool {
	return before(w[i], w[i].level, w[k], w[k].level)
}

func before(a *Class, atA float64, b *Class, atB float64) bool {
	if (a.weight == 0) != (b.weight == 0) {
		return b.weight == 0
	}
	return cmp.Or(cmp.Compare(atA, atB), cmp.Compare(b.weight, a.weight), cmp.Compare(a.Name, b.Name)) < 0
}

func (w turns) Swap(i, k int) {
	w[i], w[k] = w[k], w[i]
	w[i].at, w[k].at = i, k
}

// Push and Pop are for package heap.
func (w *turns) Push(x any) {
	c := x.(*Class)
	c.at = len(*w)
	*w = append(*w, c)
}

func (w *turns) Pop() any {
	last := len(*w) - 1
	c := (*w)[last]
	*w = (*w)[:last]
	c.at = -1
	return c
}
