package agent

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// endExclusive kills what is exclusive and was begun. What was not waits for the server.
func (a *Agent) endExclusive(limit time.Duration) {
	var held []*alloc
	var boxes []*box
	a.mu.Lock()
	for _, al := range a.allocs {
		if !al.exclusive || !al.begun || al.ended || al.unguarded != nil {
			continue
		}
		al.unguarded = a.lapsed(limit)
		if al.stopping {
			if al.box != nil {
				al.box.refs++
				held, boxes = append(held, al), append(boxes, al.box)
			}
			continue
		}
		al.stopping = true
		close(al.stop)
	}
	a.mu.Unlock()
	for i, al := range held {
		a.log.Warn("no word from the server: exclusive allocation is killed", "alloc", al.id)
		boxes[i].sandbox.Stop(0)
		a.drop(al, boxes[i])
	}
}

func (a *Agent) lapsed(limit time.Duration) *muster.Failure {
	if limit == 0 {
		return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and the agent of node %s was away for longer than its fence allows", a.cfg.Node)
	}
	return contract.Failure(muster.FailureOutside, muster.ReasonUnguarded, "its job is exclusive, and no server has spoken to node %s for its fence of %s", a.cfg.Node, limit)
}

// whyUnguarded is why it was ended because the guard lapsed; nil if that is not so.
func (a *Agent) whyUnguarded(al *alloc) *muster.Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	return al.unguarded
}

// guards reports whether anything exclusive is held or about to be.
func (a *Agent) guards(d *wire.Desired) bool {
	for i := range d.Allocs {
		if s := d.Allocs[i].Spec; s != nil && s.Exclusive {
			return true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, al := range a.allocs {
		if al.exclusive && !al.ended {
			return true
		}
	}
	return false
}
