package size

import (
	"maps"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
)

// seat is a node in the view, with what it counts as.
type seat struct {
	row   *state.Node
	class *class // nil: gone before it joined
	pool  *pool  // nil: it is not configured
	free  fit.Space
	lot   *lot // if it is open
	// onWay: room to come, of a node that has not joined or that may come back.
	onWay, odd, idle, kept, ending bool
	// unready: in service without work, and it says itself that it can take none. One whose agent obeys a newer server, or that runs
	// what nobody knows, is unready as well, and not for this one to destroy.
	unready bool
}

// lot is how many open nodes of one class there are with equal room.
type lot struct {
	key   lotKey
	count int
}

type lotKey struct {
	class *class
	free  fit.Space
	idle  bool
}

// refreshNode reads a node's row from the snapshot.
func (v *View) refreshNode(id muster.NodeID) {
	n := v.snap.Node(id)
	s := v.nodes[id]
	if s != nil && s.row == n {
		return
	}
	// Allocations that come and go change nothing but room.
	if s != nil && n != nil && s.row.Stage == muster.NodeServing && n.Stage == muster.NodeServing && s.lot != nil && n.Schedulable() &&
		s.row.Joined == n.Joined && s.row.Capacity == n.Capacity && maps.Equal(s.row.Attributes, n.Attributes) {
		v.outOfLot(s)
		s.row = n
		v.intoLot(s)
		return
	}
	if s != nil {
		v.takeAway(s)
	}
	if n == nil || n.Stage == muster.NodeGone && n.Joined == 0 {
		v.nodeGen++
		return
	}
	s = &seat{row: n}
	v.nodes[id] = s
	v.nodeGen++
	if n.Stage == muster.NodeGone {
		s.class = v.classOf(n)
		return
	}
	v.sit(s)
}

// sit counts a node that is not gone.
func (v *View) sit(s *seat) {
	n := s.row
	s.class = v.classOf(n)
	if n.Stage == muster.NodeStopped {
		v.sitStopped(s)
		return
	}
	t := v.kinds[s.class.key.kind]
	if t == nil {
		t = &tally{}
		v.kinds[s.class.key.kind] = t
	}
	t.live++
	if n.Stage == muster.NodeLaunching {
		t.launching++
	}
	unwanted := v.unwanted(n) != ""
	broken := n.Health == muster.NodeBroken
	s.ending = n.Stage == muster.NodeDraining || n.Stage == muster.NodeTerminating
	s.odd = n.Intent != muster.NodeHold && n.Stage != muster.NodeTerminating &&
		(n.Stage == muster.NodeDraining || n.Intent == muster.NodeDrain || broken || unwanted)
	if s.ending {
		v.ending[s] = true
	}
	if s.odd {
		v.odd.Set(s)
	}
	q := v.byName[n.Pool]
	if q == nil {
		return
	}
	s.pool = q
	q.live++
	q.price += n.Offering.AtMost()
	if coming(n.Stage) {
		q.launching++
	}
	if s.ending {
		q.ending++
		return
	}
	if n.Intent == muster.NodeDrain || unwanted || broken && n.Intent != muster.NodeHold {
		return
	}
	s.kept = true
	q.kept++
	switch {
	case n.Intent != muster.NodeRun:
	case n.Schedulable():
		v.intoLot(s)
	case n.Stage == muster.NodeServing && (n.Health == muster.NodeLost || n.Health == muster.NodeUnready):
		s.onWay, s.free = true, fit.SpaceOf(n)
		if s.unready = n.Health == muster.NodeUnready && n.Incapable && !n.Busy() && n.IdleSince != 0; s.unready {
			q.unready.Set(s)
		}
	case n.Stage != muster.NodeServing:
		s.onWay, s.free = true, empty(&n.Offering)
	}
	if s.onWay {
		v.onWay.Set(s)
	}
}

// sitStopped counts a node whose machine is switched off. It costs nothing and has no room: it counts
// neither for the limits of its pool nor as what will serve, until it is started.
func (v *View) sitStopped(s *seat) {
	n := s.row
	if n.Intent != muster.NodeHold && (n.Intent == muster.NodeDrain || v.unwanted(n) != "") {
		s.odd = true
		v.odd.Set(s)
	}
	if s.pool = v.byName[n.Pool]; s.pool == nil {
		return
	}
	s.pool.stopped.Set(s)
}

func coming(stage muster.NodeStage) bool {
	return stage == muster.NodeLaunching || stage == muster.NodeBooting || stage == muster.NodeStarting
}

func (v *View) takeAway(s *seat) {
	n := s.row
	delete(v.nodes, n.ID)
	v.leave(s.class)
	if n.Stage == muster.NodeGone {
		return
	}
	if s.odd {
		v.odd.Delete(s)
	}
	if n.Stage == muster.NodeStopped {
		if s.pool != nil {
			s.pool.stopped.Delete(s)
		}
		return
	}
	t := v.kinds[s.class.key.kind]
	t.live--
	if n.Stage == muster.NodeLaunching {
		t.launching--
	}
	if t.live == 0 {
		delete(v.kinds, s.class.key.kind)
	}
	delete(v.ending, s)
	if s.onWay {
		v.onWay.Delete(s)
	}
	q := s.pool
	if q == nil {
		return
	}
	q.live--
	q.price -= n.Offering.AtMost()
	if coming(n.Stage) {
		q.launching--
	}
	if s.ending {
		q.ending--
	}
	if s.kept {
		q.kept--
	}
	if s.unready {
		q.unready.Delete(s)
		s.unready = false
	}
	v.outOfLot(s)
}

func (v *View) intoLot(s *seat) {
	n := s.row
	s.free = fit.SpaceOf(n)
	s.free.Taken = s.free.Taken.WithoutCores()
	key := lotKey{s.class, s.free, !n.Busy() && n.IdleSince != 0}
	l := v.lots[key]
	if l == nil {
		l = &lot{key: key}
		v.lots[key] = l
	}
	l.count++
	s.lot = l
	if s.idle = key.idle; s.idle {
		s.pool.idle.Set(s)
	}
}

func (v *View) outOfLot(s *seat) {
	if s.lot == nil {
		return
	}
	if s.idle {
		s.pool.idle.Delete(s)
		s.idle = false
	}
	if s.lot.count--; s.lot.count == 0 {
		delete(v.lots, s.lot.key)
	}
	s.lot = nil
}

// unwanted says why a node has no place in the configuration any more, or "".
func (v *View) unwanted(n *state.Node) string {
	q := v.byName[n.Pool]
	switch {
	case q == nil:
		return "pool " + string(n.Pool) + " is no longer configured"
	case !q.Covers(&n.Offering):
		return "pool " + string(n.Pool) + " does not use offering " + string(n.Offering.Name) + " any more"
	case v.sold[n.Offering.Provider] != nil && !v.sold[n.Offering.Provider][n.Offering.Name]:
		return "provider " + string(n.Offering.Provider) + " does not offer " + string(n.Offering.Name) + " any more"
	}
	return ""
}
