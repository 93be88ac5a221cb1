package fleet

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
)

// watchWorkLocked remembers by when an allocation should have ended. Package mend uses that for
// nodes that cannot end their work. f.mu is held.
func (f *Fleet) watchWorkLocked(before, a *state.Alloc, at muster.Time) {
	if a == nil || !a.Live() {
		if before != nil {
			delete(f.memory.Due, before.ID)
			delete(f.stopped, before.ID)
		}
		return
	}
	if a.Desired == muster.AllocStop && f.stopped[a.ID] == 0 {
		f.stopped[a.ID] = at
	}
	if due := mend.DueBy(a, f.stopped[a.ID]); due != 0 {
		f.memory.Due[a.ID] = due
	} else {
		delete(f.memory.Due, a.ID)
	}
}

// surveyLocked takes the whole live state, when changes were missed or at the start. An allocation
// that is stopping before counts as told now: a new leader must not end anything sooner. f.mu
// is held.
func (f *Fleet) surveyLocked(snap *state.Snapshot, now muster.Time) {
	for id := range f.memory.Due {
		if a := snap.Alloc(id); a == nil || !a.Live() {
			delete(f.memory.Due, id)
			delete(f.stopped, id)
		}
	}
	for id := range f.stopped {
		if a := snap.Alloc(id); a == nil || !a.Live() {
			delete(f.stopped, id)
		}
	}
	snap.LiveAllocs(func(a *state.Alloc) bool { f.watchWorkLocked(nil, a, now); return true })
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Health == muster.NodeBroken {
			f.broken[n.ID] = true
		}
		return true
	})
	f.boots.catchUp(snap)
}
