package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// massStop is the number of running sandboxes from which on a set may not stop more than half of
// them without naming them.
const massStop = 5

// obey does what a set says, or refuses all of it: then the error is a *wire.Refusal. It obeys one
// set after the other. ctx is of the request, life of the agent.
func (a *Agent) obey(ctx, life context.Context, d wire.Desired) (wire.DesiredAnswer, error) {
	select {
	case a.sets <- struct{}{}:
		defer func() { <-a.sets }()
	case <-ctx.Done():
		return wire.DesiredAnswer{}, ctx.Err()
	}
	if r := a.fences.Check(d.Fence); r != nil {
		return wire.DesiredAnswer{}, r
	}
	if r := a.massStop(d); r != nil {
		return wire.DesiredAnswer{}, r
	}
	// The fence is saved first: nothing is done on the word of a fence that the agent could forget.
	if err := a.fences.Save(d.Fence); err != nil {
		return wire.DesiredAnswer{}, err
	}
	if err := a.lease.Renew(d.LeaseMillis); err != nil {
		return wire.DesiredAnswer{}, err
	}
	a.node.guard.Renew(d.Tick, d.GuardMillis, a.guards(&d))
	a.mu.Lock()
	a.fence = d.Fence
	a.mu.Unlock()
	answer := wire.DesiredAnswer{Tick: a.node.guard.Tick()}
	for _, want := range d.Allocs {
		a.desire(life, want, &answer)
	}
	a.forget(d.Forget, &answer)
	return answer, nil
}

// massStop refuses a set that would stop most of what runs here without naming the cause of each:
// an empty or restored server must not end a node's work.
func (a *Agent) massStop(d wire.Desired) *wire.Refusal {
	named := make(map[muster.AllocID]bool, len(d.Named))
	for _, id := range d.Named {
		named[id] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	running, stops, unnamed := 0, 0, 0
	for _, al := range a.allocs {
		if now := al.progress(); now.begun && !now.ended {
			running++
		}
	}
	for _, want := range d.Allocs {
		al := a.allocs[want.ID]
		if want.Desired != muster.AllocStop || al == nil {
			continue
		}
		now := al.progress()
		if !now.begun || now.ended {
			continue
		}
		stops++
		if !now.stopping && !named[want.ID] {
			unnamed++
		}
	}
	if running < massStop || 2*stops <= running || unnamed == 0 {
		return nil
	}
	return &wire.Refusal{Code: wire.RefusedMassStop, Fence: a.fence, Message: fmt.Sprintf(
		"the set would stop %d of %d running sandboxes, and names no cause for %d of them", stops, running, unnamed)}
}

// desire does what the set wants of one allocation.
func (a *Agent) desire(life context.Context, want wire.DesiredAlloc, answer *wire.DesiredAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	al := a.allocs[want.ID]
	switch {
	case al != nil:
	case a.forgotten.has(want.ID):
		// It ran here, and the server has its result. This set is an old one.
		answer.Forgotten = append(answer.Forgotten, want.ID)
		return
	case want.Spec == nil:
		answer.Unknown = append(answer.Unknown, want.ID)
		return
	default:
		al = newAllocation(a.node, want.ID, want.Spec)
		// It is told before its goroutine begins: one that is to stop has to end without having
		// run.
		al.want(life, want)
		if !a.node.crew.spawn(func() { al.live(life) }) {
			return // the agent ends, and the next one is sent the whole set again
		}
		a.allocs[al.id] = al
		return
	}
	al.want(life, want)
}

// forget deletes allocations that have ended, and names those that have not in the answer.
func (a *Agent) forget(ids []muster.AllocID, answer *wire.DesiredAnswer) {
	var items []trashItem
	a.mu.Lock()
	for _, id := range ids {
		al := a.allocs[id]
		if al != nil && !al.progress().ended {
			answer.NotEnded = append(answer.NotEnded, id)
			continue
		}
		a.forgotten.add(id)
		if al == nil {
			continue
		}
		delete(a.allocs, id)
		a.node.reporter.forget(id)
		items = append(items, al.rubbish())
	}
	a.mu.Unlock()
	if len(answer.NotEnded) > 0 {
		a.log.Warn("asked to forget allocations that have not ended: kept", "allocs", answer.NotEnded)
	}
	a.node.trash.add(items...)
}

// list is all allocations, in no order.
func (a *Agent) list() []*allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.allocs))
}

// release frees the agent from its cluster, so that it may obey another one. An operator asks for
// it, and names the cluster.
func (a *Agent) release(ctx context.Context, cluster string) error {
	select {
	case a.sets <- struct{}{}:
		defer func() { <-a.sets }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if last := a.fences.Last(); last.Cluster != cluster {
		if last.Cluster == "" {
			return nil
		}
		return &wire.Refusal{Code: wire.RefusedCluster, Fence: last,
			Message: fmt.Sprintf("this node obeys cluster %s: name that one to release it", last.Cluster)}
	}
	if err := a.fences.Clear(); err != nil {
		return err
	}
	a.mu.Lock()
	a.fence = wire.Fence{}
	a.mu.Unlock()
	a.log.Info("released by an operator", "cluster", cluster)
	return nil
}

// forgotten remembers the last ids that were forgotten, up to a bound. The fence keeps old sets
// out; this keeps a mistake of the server itself from running a member twice.
type forgotten struct {
	ring []muster.AllocID
	next int
	ids  map[muster.AllocID]struct{}
}

func newForgotten(limit int) *forgotten {
	return &forgotten{ring: make([]muster.AllocID, limit), ids: map[muster.AllocID]struct{}{}}
}

func (f *forgotten) has(id muster.AllocID) bool {
	_, ok := f.ids[id]
	return ok
}

// add remembers an id in the place of the oldest one.
func (f *forgotten) add(id muster.AllocID) {
	if f.has(id) {
		return
	}
	delete(f.ids, f.ring[f.next])
	f.ring[f.next] = id
	f.ids[id] = struct{}{}
	f.next = (f.next + 1) % len(f.ring)
}
