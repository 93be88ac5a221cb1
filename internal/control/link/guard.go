package link

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// guardShare is how often the guard of a node with exclusive work is renewed, at the least, while it lasts.
const guardShare = 6

// guardAgain is how soon a node that is promised nothing is looked at again.
const guardAgain = 250 * time.Millisecond

// guardNow is for how long exclusive work may go on from the agent's last answer on; 0: nothing is renewed. A node that is lost is
// promised nothing: when its work is given up is counted from there. Nor is one that is to be destroyed.
func (s *session) guardNow() time.Duration {
	snap := s.n.l.cfg.State.Latest()
	n := snap.Node(s.n.id)
	if n == nil || n.Health == muster.NodeLost || n.Stage != muster.NodeServing && n.Stage != muster.NodeDraining {
		return 0
	}
	return snap.Pool(n.Pool).FenceTime()
}

// guarded takes in that a set was taken.
func (s *session) guarded(d *wire.Desired, answer *wire.DesiredAnswer) {
	// What was asked to run with this set needs the answer's tick at once: it waits for that.
	for i := range d.Allocs {
		if spec := d.Allocs[i].Spec; spec != nil && spec.Exclusive {
			s.exclusive = true
		}
	}
	// What was granted counts from when the tick that was given back was told, however long ago that is.
	if d.Tick != 0 && d.GuardMillis != 0 {
		s.guardFrom = s.tickAt
	}
	s.tick, s.tickAt = answer.Tick, time.Now()
}

// guardDue is when the next set is to be sent so that exclusive work goes on; 0: nothing needs it.
func (s *session) guardDue() time.Duration {
	if !s.exclusive || s.tick == 0 {
		return 0
	}
	snap := s.n.l.cfg.State.Latest()
	s.exclusive = false
	if isTerminating(snap, s.n.id) {
		return 0 // it is never good again
	}
	snap.NodeAllocs(s.n.id, func(a *state.Alloc) bool {
		s.exclusive = a.Live() && a.Run.Spec.Exclusive
		return !s.exclusive
	})
	guard := s.guardNow()
	switch {
	case !s.exclusive:
		return 0
	case guard == 0:
		return guardAgain // it may be good again by then
	}
	return max(time.Until(s.guardFrom.Add(guard/guardShare)), time.Millisecond)
}
