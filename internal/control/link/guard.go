package link

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// guardShare is how often the guard of a node with exclusive work is renewed at least during one
// guard period. The guard is the time for which an agent may run exclusive work without a new set;
// after it the agent stops that work itself, so that the server may safely start it elsewhere.
const guardShare = 6

// guardAgain is when to look again at a node that gets no guard now.
const guardAgain = 250 * time.Millisecond

// guardNow returns how long exclusive work may continue, counted from the agent's last answer; 0
// means that the guard is not renewed. A lost node gets no guard, because the deadline for giving
// up its work counts from the loss. A node that is about to be destroyed gets none either.
func (s *session) guardNow() time.Duration {
	snap := s.n.l.cfg.State.Latest()
	n := snap.Node(s.n.id)
	if n == nil || n.Health == muster.NodeLost || n.Stage != muster.NodeServing && n.Stage != muster.NodeDraining {
		return 0
	}
	return snap.Pool(n.Pool).FenceTime()
}

// guarded records that the agent accepted a set. Only the sender calls it.
func (s *session) guarded(d *wire.Desired, answer *wire.DesiredAnswer) {
	// A new exclusive allocation waits on the agent until a guard is granted for a tick of the
	// agent's clock. That tick comes with this answer, so the sender has to send again at once.
	for i := range d.Allocs {
		if spec := d.Allocs[i].Spec; spec != nil && spec.Exclusive {
			s.exclusive = true
		}
	}
	// The guard counts from when the agent gave the tick that this set returns, not from now. The
	// server measures from the same moment, so it never believes in a longer guard than the agent
	// has, however long the answer took.
	if d.Tick != 0 && d.GuardMillis != 0 {
		s.guardFrom = s.tickAt
	}
	s.tick, s.tickAt = answer.Tick, time.Now()
}

// guardDue returns in how long the next set must be sent so that exclusive work may continue; 0
// means that no exclusive work needs it.
func (s *session) guardDue() time.Duration {
	if !s.exclusive || s.tick == 0 {
		return 0
	}
	snap := s.n.l.cfg.State.Latest()
	s.exclusive = false
	if isTerminating(snap, s.n.id) {
		// A terminating node does not return to service.
		return 0
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
		// The node may be healthy again by then.
		return guardAgain
	}
	return max(time.Until(s.guardFrom.Add(guard/guardShare)), time.Millisecond)
}
