package server

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/state"
)

// insight is what the loops of the present leadership know beside the state. Without a leadership it knows nothing.
type insight struct {
	stats *loopStats
}

// Usage is the link's.
func (i insight) Usage(id muster.NodeID) (*api.NodeUsage, []string) {
	l := i.stats.now.Load()
	if l == nil {
		return nil, nil
	}
	u, ok := l.link.Usage(id)
	if !ok || u.Heard == 0 {
		return nil, u.Problems
	}
	heard := u.Heard.Std()
	return &api.NodeUsage{
		CPUSeconds: (time.Duration(u.CPUMicros) * time.Microsecond).Seconds(), Memory: int64(u.Memory), FreeDisk: u.FreeDisk, Heard: &heard,
	}, u.Problems
}

// Fleet is the fleet's.
func (i insight) Fleet() (*size.Decisions, []size.Block) {
	l := i.stats.now.Load()
	if l == nil {
		return nil, nil
	}
	return l.fleet.Decisions(), l.fleet.Blocks()
}

// Blind is the fleet's.
func (i insight) Blind(provider muster.ProviderName) (muster.Time, error) {
	l := i.stats.now.Load()
	if l == nil {
		return 0, nil
	}
	b := l.fleet.Blind(provider)
	return b.Since, b.Err
}

// Unsold is the fleet's.
func (i insight) Unsold(provider muster.ProviderName) (muster.Time, error) {
	l := i.stats.now.Load()
	if l == nil {
		return 0, nil
	}
	b := l.fleet.Unsold(provider)
	return b.Since, b.Err
}

// Troubles are the fleet's, in words.
func (i insight) Troubles() func(*state.Node) string {
	l := i.stats.now.Load()
	if l == nil {
		return func(*state.Node) string { return "" }
	}
	all := l.fleet.Troubles()
	return func(n *state.Node) string {
		if why := l.fleet.Unmanaged(n); why != "" {
			return why
		}
		t := all[n.ID]
		if t.Err == nil {
			return ""
		}
		return explain.Trouble(t.Call, t.Times, t.Since, t.Err)
	}
}

// unblock has the providers asked again for what they refused to a pool, and returns how many blocks that ended.
func (i insight) unblock(pool muster.PoolName) int {
	l := i.stats.now.Load()
	if l == nil {
		return 0
	}
	return l.fleet.Unblock(pool)
}

// Unstored are the link's.
func (i insight) Unstored(job muster.JobUID) (int, error) {
	l := i.stats.now.Load()
	if l == nil {
		return 0, nil
	}
	return l.link.Unstored(job)
}

// Paused says why nothing is placed at all, if so.
func (i insight) Paused() string {
	if l := i.stats.now.Load(); l != nil && l.paused {
		return explain.Paused
	}
	return ""
}
