package fleet

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
)

// heard is the time since which the silence of each broken node counts, for package mend. No lock is held while the link is
// asked. A node that was not seen broken yet has no entry; the change that breaks it brings the next pass.
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

// reported says whether a node that is to be destroyed because it is silent has reported since that was decided. The fact cannot
// be made conditional on it: a report of a broken node changes nothing in the state.
func (f *Fleet) reported(t mend.Turn) bool {
	return t.Silent && f.cfg.Heard(t.Node) > t.SilentSince
}
