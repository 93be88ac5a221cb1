package fleet

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// noticeEvery is how often a provider is asked which spot instances it will take back. Most
	// clouds give two minutes of notice, so little of it may be lost.
	noticeEvery   = 5 * time.Second
	noticeTimeout = 10 * time.Second
)

// readNotices asks a provider that has notices which spot instances it will take back, as long as
// there are any. Other providers need no goroutine.
func (f *Fleet) readNotices(ctx context.Context, name muster.ProviderName) {
	reader, ok := cloud.As[cloud.NoticeReader](f.cfg.Providers[name])
	if !ok {
		return
	}
	faults := 0
	for wait.For(ctx, noticeEvery) {
		byInstance := f.spotNodes(name)
		if len(byInstance) == 0 {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, noticeTimeout)
		notices, err := reader.Notices(callCtx)
		cancel()
		if err != nil {
			// Only the first failure in a row is logged: the next one is seconds away.
			if faults++; faults == 1 && ctx.Err() == nil {
				f.log.Warn("spot notices not read; asking again", "provider", name, "every", noticeEvery, "error", err)
			}
			continue
		}
		faults = 0
		if f.noticed(byInstance, notices) {
			wait.Poke(f.wake)
		}
	}
}

// spotNodes returns the nodes of a provider's spot instances, by instance; nil if there are none.
func (f *Fleet) spotNodes(name muster.ProviderName) map[muster.InstanceID]muster.NodeID {
	var out map[muster.InstanceID]muster.NodeID
	f.cfg.State.Latest().LiveNodes(func(n *state.Node) bool {
		if n.Offering.Provider == name && n.Offering.Market == muster.Spot && n.Instance != "" {
			if out == nil {
				out = map[muster.InstanceID]muster.NodeID{}
			}
			out[n.Instance] = n.ID
		}
		return true
	})
	return out
}

// noticed processes all open notices for these instances, and reports whether one is new. Then a
// pass must drain its node.
func (f *Fleet) noticed(nodes map[muster.InstanceID]muster.NodeID, notices []cloud.Notice) (fresh bool) {
	now := f.cfg.Clock.Now()
	heard, fresh := f.takeNotices(nodes, notices, now)
	f.logNotices(nodes, heard, now)
	return fresh
}

// logNotices logs notices that are the first for their node.
func (f *Fleet) logNotices(nodes map[muster.InstanceID]muster.NodeID, heard []cloud.Notice, now muster.Time) {
	for _, n := range heard {
		switch n.Kind {
		case cloud.NoticeAtRisk:
			f.log.Info("the cloud may take an instance soon", "node", nodes[n.Instance], "instance", n.Instance)
		case cloud.NoticeMaintenance:
			f.log.Warn("maintenance notice", "node", nodes[n.Instance], "instance", n.Instance, "restarted in", n.At.Sub(now).Round(time.Second))
		default:
			f.log.Warn("spot notice", "node", nodes[n.Instance], "instance", n.Instance, "taken in", n.At.Sub(now).Round(time.Second))
		}
	}
}

// AgentNoticed takes what a node's agent has read from its cloud's metadata service. The zero kind
// withdraws its notice; kinds that are not known are ignored. The agent speaks for its own node only,
// so n.Instance is not looked at. A notice of the provider for the same node gives way to it.
func (f *Fleet) AgentNoticed(id muster.NodeID, n cloud.Notice) {
	row := f.cfg.State.Latest().Node(id)
	if row == nil || row.Stage == muster.NodeGone {
		return
	}
	n.Instance = row.Instance
	now := f.cfg.Clock.Now()
	heard, fresh := f.takeAgentNotice(id, n, now)
	if heard {
		f.logNotices(map[muster.InstanceID]muster.NodeID{n.Instance: id}, []cloud.Notice{n}, now)
	}
	if fresh {
		wait.Poke(f.wake)
	}
}

// takeAgentNotice stores an agent's notice. It returns whether it is the first for its node, and
// whether the notice or its time is new.
func (f *Fleet) takeAgentNotice(id muster.NodeID, n cloud.Notice, now muster.Time) (heard, fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.Kind != cloud.NoticeTaken && n.Kind != cloud.NoticeMaintenance {
		// What the provider says stands, and is read again soon.
		if f.fromAgent[id] {
			delete(f.fromAgent, id)
			delete(f.memory.Notices, id)
		}
		if n.Kind == cloud.NoticeAtRisk && f.atRisk[id] == 0 {
			f.atRisk[id] = now
			return true, false
		}
		return false, false
	}
	f.fromAgent[id] = true
	return f.storeNoticeLocked(id, n, now)
}

// storeNoticeLocked stores a notice that drains its node. f.mu is held.
func (f *Fleet) storeNoticeLocked(id muster.NodeID, n cloud.Notice, now muster.Time) (heard, fresh bool) {
	known, ok := f.memory.Notices[id]
	if ok && known.At == n.At {
		return false, false
	}
	if !ok {
		known.Heard = now
		f.stats.Notices++
	}
	known.At, known.Maintenance = n.At, n.Kind == cloud.NoticeMaintenance
	f.memory.Notices[id] = known
	return !ok, true
}

// takeNotices stores the notices. It returns those that are the first for their node, to be logged,
// and whether any notice or its time is new.
func (f *Fleet) takeNotices(nodes map[muster.InstanceID]muster.NodeID, notices []cloud.Notice, now muster.Time) (heard []cloud.Notice, fresh bool) {
	open := map[muster.NodeID]bool{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range notices {
		id, ours := nodes[n.Instance]
		if !ours {
			continue
		}
		if n.Kind == cloud.NoticeAtRisk {
			// It may never happen: the node goes on, and the operator is told once.
			if f.atRisk[id] == 0 {
				f.atRisk[id] = now
				heard = append(heard, n)
			}
			continue
		}
		open[id] = true
		if f.fromAgent[id] {
			continue // the machine itself has read it, from the same cloud
		}
		first, other := f.storeNoticeLocked(id, n, now)
		if first {
			heard = append(heard, n)
		}
		fresh = fresh || other
	}
	// The cloud has withdrawn a notice. A node that drains already goes on draining; another is
	// left alone.
	for _, id := range nodes {
		if !open[id] && !f.fromAgent[id] {
			delete(f.memory.Notices, id)
		}
	}
	return heard, fresh
}
