package fleet

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	destroyTimeout                 = 5 * time.Minute
	destroysPerCall                = 16
	destroyRetry, destroyRetryMost = time.Second, time.Minute
)

// destroy asks the providers to destroy the instances of nodes that are terminating.
func (f *Fleet) destroy(ctx context.Context, snap *state.Snapshot, ids []muster.NodeID) {
	byProvider := map[muster.ProviderName][]*state.Node{}
	f.mu.Lock()
	for _, id := range ids {
		n := snap.Node(id)
		if n == nil || n.Intent == muster.NodeHold || f.memory.Destroying[id] || f.cfg.Providers[n.Offering.Provider] == nil {
			continue
		}
		f.memory.Destroying[id] = true
		byProvider[n.Offering.Provider] = append(byProvider[n.Offering.Provider], n)
	}
	f.mu.Unlock()
	for _, name := range f.names {
		nodes := byProvider[name]
		for len(nodes) > 0 {
			part := nodes[:min(len(nodes), destroysPerCall)]
			nodes = nodes[len(part):]
			f.calls.Go(func() { f.destroyPart(ctx, name, part) })
		}
	}
}

func (f *Fleet) destroyPart(ctx context.Context, name muster.ProviderName, nodes []*state.Node) {
	ids := make([]muster.InstanceID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.Instance
	}
	callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, destroyTimeout))
	errs := f.providers[name].Destroy(callCtx, ids)
	cancel()
	now := f.cfg.Clock.Now().Std()
	var again []func() // what is logged once the lock is free
	f.mu.Lock()
	for i, n := range nodes {
		delete(f.memory.Destroying, n.ID)
		var err error = muster.Faultf(muster.FaultAmbiguous, "provider %s did not answer for it", name)
		if i < len(errs) {
			err = errs[i]
		}
		if err == nil {
			f.stats.Destroyed++
			f.memory.Destroyed[n.ID] = muster.At(now)
			delete(f.backoff, n.ID)
			f.troubles.over(n.ID, "destroy")
			continue
		}
		f.stats.DestroyFaults++
		f.backoff[n.ID]++
		wait := max(backoff(destroyRetry, destroyRetryMost, f.backoff[n.ID]), afterOf(err))
		f.memory.NotBefore[n.ID] = muster.At(now.Add(wait))
		if ctx.Err() == nil {
			f.troubles.failed(n.ID, "destroy", err, muster.At(now), f.memory.NotBefore[n.ID])
			again = append(again, func() {
				f.log.Warn("destroy not done, asking again", "node", n.ID, "instance", n.Instance, "in", wait, "error", err)
			})
		}
	}
	f.mu.Unlock()
	for _, say := range again {
		say()
	}
	wait.Poke(f.wake)
}

// destroyStrays destroys instances that stand behind no node. What fails is
// found again by the next list.
func (f *Fleet) destroyStrays(ctx context.Context, name muster.ProviderName, strays []mend.Stray) {
	for _, s := range strays {
		f.mu.Lock()
		busy := f.strays[s.Instance]
		f.strays[s.Instance] = true
		f.mu.Unlock()
		if busy {
			continue
		}
		f.calls.Go(func() {
			f.log.Warn("instance without a node is destroyed", "instance", s.Instance, "why", s.Reason)
			callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, destroyTimeout))
			defer cancel()
			errs := f.providers[name].Destroy(callCtx, []muster.InstanceID{s.Instance})
			done := len(errs) == 1 && errs[0] == nil
			f.mu.Lock()
			delete(f.strays, s.Instance)
			if done {
				f.stats.Strays++
			} else if ctx.Err() == nil {
				f.stats.DestroyFaults++
			}
			f.mu.Unlock()
			if !done && ctx.Err() == nil {
				f.log.Warn("instance without a node is not destroyed", "instance", s.Instance, "error", errs)
			}
		})
	}
}
