package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

// destroyTimeout bounds one call. destroysPerCall is how many instances one call destroys. The last
// two are the delays after a failed call: the first, which doubles, and the longest.
const (
	destroyTimeout                 = 5 * time.Minute
	destroysPerCall                = 16
	destroyRetry, destroyRetryMost = time.Second, time.Minute
)

// destroy asks the providers to destroy the instances of terminating nodes. A held node is never
// destroyed. It returns at once; the calls go on in their own goroutines. That a call succeeds is
// not proof: the node is gone only when a list no longer shows its instance.
func (f *Fleet) destroy(ctx context.Context, snap *state.Snapshot, ids []muster.NodeID) {
	wanted := func(n *state.Node) bool { return n.Intent != muster.NodeHold }
	f.inParts(snap, ids, wanted, f.memory.Destroying, destroysPerCall, func(name muster.ProviderName, nodes []*state.Node) {
		f.destroyPart(ctx, name, nodes)
	})
}

// inParts calls the providers for the nodes that are wanted and in no such call yet; a call has no
// more than most nodes. It returns at once: each call has a goroutine of its own.
func (f *Fleet) inParts(snap *state.Snapshot, ids []muster.NodeID, wanted func(*state.Node) bool, inCall map[muster.NodeID]bool, most int, call func(muster.ProviderName, []*state.Node)) {
	byProvider := map[muster.ProviderName][]*state.Node{}
	f.mu.Lock()
	for _, id := range ids {
		n := snap.Node(id)
		if n == nil || !wanted(n) || inCall[id] || f.cfg.Providers[n.Offering.Provider] == nil {
			continue
		}
		// Marked under the lock that checked it, so that no instance is in two calls at once.
		inCall[id] = true
		byProvider[n.Offering.Provider] = append(byProvider[n.Offering.Provider], n)
	}
	f.mu.Unlock()
	for _, name := range f.names {
		for part := range slices.Chunk(byProvider[name], most) {
			f.calls.Go(func() { call(name, part) })
		}
	}
}

// destroyPart makes one call and records the answers. It logs after it has released the lock.
func (f *Fleet) destroyPart(ctx context.Context, name muster.ProviderName, nodes []*state.Node) {
	ids := make([]muster.InstanceID, len(nodes))
	for i, n := range nodes {
		ids[i] = n.Instance
	}
	// The call goes without a lock: it may take minutes.
	callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, destroyTimeout))
	errs := f.providers[name].Destroy(callCtx, ids)
	cancel()
	now := f.cfg.Clock.Now().Std()
	// again holds log lines to write once the lock is free.
	var again []func()
	f.mu.Lock()
	for i, n := range nodes {
		delete(f.memory.Destroying, n.ID)
		// A provider that returns fewer answers than it was asked for has not said what happened.
		var err error = muster.Faultf(muster.FaultAmbiguous, "provider %s did not answer for it", name)
		if i < len(errs) {
			err = errs[i]
		}
		if err == nil {
			f.stats.Destroyed++
			f.memory.Destroyed[n.ID] = muster.At(now)
			delete(f.backoff, n.ID)
			f.troubles.over(n.ID, "destroy")
			f.delays.allow(name, state.CallDestroy)
			continue
		}
		f.stats.DestroyFaults++
		f.backoff[n.ID]++
		wait := max(backoff(destroyRetry, destroyRetryMost, f.backoff[n.ID]), afterOf(err))
		f.memory.NotBefore[n.ID] = muster.At(now.Add(wait))
		f.delays.forbid(name, state.CallDestroy, err, muster.At(now))
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

// destroyStrays destroys instances that belong to no node. Failures need no retry here: the next
// list shows the instance again.
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
