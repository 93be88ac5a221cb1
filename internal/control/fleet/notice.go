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
	// noticeEvery is how often a provider is asked which instances it is about to
	// take: of the two minutes that most of them give, little may be lost.
	noticeEvery   = 5 * time.Second
	noticeTimeout = 10 * time.Second
)

// readNotices asks a provider that can tell which spot instances it takes, while there are any.
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

// spotNodes are the nodes of a provider's spot instances.
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

// noticed takes in all notices that are open of these instances, and reports whether there is a new one.
func (f *Fleet) noticed(nodes map[muster.InstanceID]muster.NodeID, notices []cloud.Notice) (fresh bool) {
	now := f.cfg.Clock.Now()
	heard, fresh := f.takeNotices(nodes, notices, now)
	for _, n := range heard {
		f.log.Warn("spot notice", "node", nodes[n.Instance], "instance", n.Instance, "taken in", n.At.Sub(now).Round(time.Second))
	}
	return fresh
}

// takeNotices returns which notices are the first of their nodes, and whether there is a new one or a new time.
func (f *Fleet) takeNotices(nodes map[muster.InstanceID]muster.NodeID, notices []cloud.Notice, now muster.Time) (heard []cloud.Notice, fresh bool) {
	open := map[muster.NodeID]bool{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range notices {
		id, ours := nodes[n.Instance]
		if !ours {
			continue
		}
		open[id] = true
		known, ok := f.memory.Notices[id]
		if ok && known.At == n.At {
			continue
		}
		if !ok {
			known.Heard = now
			f.stats.Notices++
			heard = append(heard, n)
		}
		known.At = n.At
		f.memory.Notices[id] = known
		fresh = true
	}
	// The cloud has changed its mind: what has begun to drain goes on, what has not is left alone.
	for _, id := range nodes {
		if !open[id] {
			delete(f.memory.Notices, id)
		}
	}
	return heard, fresh
}
