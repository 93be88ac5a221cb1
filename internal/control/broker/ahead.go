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

// maxNeeds bounds how many kinds of work ahead are told apart: looking for room
// for each costs a walk over nodes, on the applier's time.
const maxNeeds = 32

// bands sums up what is ready: by priority, then shape, how many members want an
// allocation. It is kept with every move, so that asking does not cost a walk over the queue.
type bands map[int]map[state.ShapeID]*want

type want struct {
	shape   *fit.Shape
	members int
	entries int
}

// add counts a ready entry in; the shape is made when it is the first of its kind.
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

// remove is the reverse of add; the entry's priority, shape and wants are still those of then.
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

// Ahead tells what comes before a plan of the given priority: how many members of each shape
// want room, of evaluations of a higher priority that are ready or out. Many says that
// the shapes are too many to tell. The snapshot is the one that the plan is verified on: whatever
// it has, a job that has come or room that has woken one, the queue takes in before it answers.
func (b *Broker) Ahead(snap *state.Snapshot, priority int) (needs []verify.Need, many bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.followed < snap.Index() {
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
	now := b.clock(snap)
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

// shape of one of the window's entries, made once for all of a kind.
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

// wants is how many members of a job want an allocation now.
func wants(snap *state.Snapshot, j *state.Job, now muster.Time) int {
	return j.Untried() + snap.Retries(j.UID).CountDue(j.Retrying, now)
}
