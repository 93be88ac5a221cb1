package agent

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// endExclusive ends the exclusive allocations that have begun, as the guard has lapsed. Those that
// have not begun wait for the server.
func (a *Agent) endExclusive(limit time.Duration) {
	for _, al := range a.list() {
		if al.exclusive {
			al.endUnguarded(a.node.lapsed(limit))
		}
	}
}

// endUnguarded kills an allocation that has begun, for a reason that its end tells.
func (al *allocation) endUnguarded(why *muster.Failure) {
	al.mu.Lock()
	if !al.begun || al.ended || al.unguarded != nil {
		al.mu.Unlock()
		return
	}
	al.unguarded = why
	if !al.stopping {
		al.stopping = true
		close(al.stop)
		al.mu.Unlock()
		return
	}
	// It was asked to stop, and may take its time no longer.
	b := al.box
	if b != nil {
		b.refs++
	}
	al.mu.Unlock()
	if b != nil {
		al.node.log.Warn("no word from the server: exclusive allocation is killed", "alloc", al.id)
		b.sandbox.Stop(0)
		al.drop(b)
	}
}

// lapsed is why an exclusive allocation ends when the guard has lapsed; limit is how long the last
// word had granted, 0 if this agent heard none.
func (n *node) lapsed(limit time.Duration) *muster.Failure {
	if limit == 0 {
		return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and the agent of node %s was away for longer than its fence allows", n.cfg.Node)
	}
	return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and no server has spoken to node %s for its fence of %s", n.cfg.Node, limit)
}

// whyUnguarded is why it was ended because the guard lapsed; nil if that is not so.
func (al *allocation) whyUnguarded() *muster.Failure {
	al.mu.Lock()
	defer al.mu.Unlock()
	return al.unguarded
}

// guards reports whether anything exclusive is held or about to be.
func (a *Agent) guards(d *wire.Desired) bool {
	for i := range d.Allocs {
		if s := d.Allocs[i].Spec; s != nil && s.Exclusive {
			return true
		}
	}
	for _, al := range a.list() {
		if al.exclusive && !al.progress().ended {
			return true
		}
	}
	return false
}
