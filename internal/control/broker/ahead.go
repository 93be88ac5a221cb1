package broker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// maxNeeds bounds how many kinds of work ahead are distinguished. For each kind the applier walks
// over nodes to find room, and that takes its time.
const maxNeeds = 32

// bands sums up the ready queue: by priority, then by shape, how many members want an allocation.
// Every move of an entry updates it, so a reader does not walk the queue. Broker.mu guards it.
type bands map[int]map[state.ShapeID]*want

// want is the sum for one shape in one band. It is deleted when entries is 0.
type want struct {
	shape   *fit.Shape
	members int
	entries int
}

// add counts an entry that becomes ready. The first of its kind makes the shape.
func (b bands) add(e *entry) {
	band := b[e.priority]
	if band == nil {
		band = map[state.ShapeID]*want{}
		b[e.priority] = band
	}
	w := band[e.shapeID]
	if w == nil {
		w = &want{shape: fit.ShapeOf(e.run)}
		band[e.shapeID] = w
	}
	w.members += e.wants
	w.entries++
}

// remove undoes add. The entry must still have the priority, shape and wants that it had then.
func (b bands) remove(e *entry) {
	band := b[e.priority]
	w := band[e.shapeID]
	w.members -= e.wants
	if w.entries--; w.entries == 0 {
		if delete(band, e.shapeID); len(band) == 0 {
			delete(b, e.priority)
		}
	}
}

// Ahead returns what comes before a plan of the given priority: how many members of each shape want
// room, over the evaluations of a higher priority that are ready or out. many reports that there
// are too many shapes to list.
//
// The snapshot is the one on which the plan is verified. The queue first catches up with the feed
// to that snapshot: a new job in it, or room in it that wakes a job, must count.
func (b *Broker) Ahead(snap *state.Snapshot, priority int) (needs []verify.Need, many bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.followed < snap.Index() {
		// An error or an empty feed ends the catching up; the answer is then as new as the queue.
		if n, _ := b.followLocked(); n == 0 {
			break
		}
	}
	b.tellWorkersLocked()
	type kind struct {
		priority int
		shape    state.ShapeID
	}
	at := map[kind]int{}
	add := func(shape *fit.Shape, p, members int) {
		if members <= 0 {
			return
		}
		k := kind{p, shape.ID}
		if i, ok := at[k]; ok {
			needs[i].Members += members
			return
		}
		at[k] = len(needs)
		needs = append(needs, verify.Need{Shape: shape, Priority: p, Members: members})
	}
	// First what is ready.
	for p, band := range b.bands {
		if p <= priority {
			continue
		}
		if len(needs)+len(band) > maxNeeds {
			return nil, true
		}
		for _, w := range band {
			add(w.shape, p, w.members)
		}
	}
	now := b.now(snap)
	// Then what is out with a worker. Its entries are in no band, so their members are counted from
	// the snapshot.
	for _, w := range b.windows {
		if w.priority <= priority {
			continue
		}
		for uid, e := range w.jobs {
			if j := snap.JobByUID(uid); j != nil && j.Version == e.version && j.Parked == "" {
				add(w.shape(e), w.priority, wants(snap, j, now))
			}
		}
		if len(needs) > maxNeeds {
			return nil, true
		}
	}
	slices.SortFunc(needs, func(x, y verify.Need) int {
		return cmp.Or(cmp.Compare(y.Priority, x.Priority), strings.Compare(string(x.Shape.ID), string(y.Shape.ID)))
	})
	return needs, false
}

// shape returns the shape of one of the window's entries. Entries of one kind share it.
func (w *window) shape(e *entry) *fit.Shape {
	s := w.shapes[e.shapeID]
	if s == nil {
		if w.shapes == nil {
			w.shapes = map[state.ShapeID]*fit.Shape{}
		}
		s = fit.ShapeOf(e.run)
		w.shapes[e.shapeID] = s
	}
	return s
}

// wants is how many members of a job want an allocation now: those never tried, and those whose
// back-off is over.
func wants(snap *state.Snapshot, j *state.Job, now muster.Time) int {
	return j.Untried() + snap.Retries(j.UID).CountDue(j.Retrying, now)
}
