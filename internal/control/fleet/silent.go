package fleet

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
)

// heard returns the time from which the silence of each broken node counts, for package mend. It
// calls the link without holding a lock. A node that was not yet seen broken has no entry; the
// change that shows it brings the next pass.
func (f *Fleet) heard(snap *state.Snapshot) map[muster.NodeID]muster.Time {
	if f.cfg.Heard == nil {
		return nil
	}
	var broken []muster.NodeID
	f.mu.Lock()
	for id := range f.broken {
		if n := snap.Node(id); n != nil && n.Health == muster.NodeBroken {
			broken = append(broken, id)
		}
	}
	f.mu.Unlock()
	heard := make(map[muster.NodeID]muster.Time, len(broken))
	for _, id := range broken {
		heard[id] = f.cfg.Heard(id)
	}
	return heard
}

// reported reports whether a node that is to be destroyed for its silence has reported since that
// decision. The state cannot check that: a report of a broken node changes nothing there.
func (f *Fleet) reported(t mend.Turn) bool {
	return t.Silent && f.cfg.Heard(t.Node) > t.SilentSince
}
