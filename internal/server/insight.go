package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// insight tells what the present leadership's loops know beside the state.
type insight struct {
	stats *loopStats
	clock clock.Clock // the log's
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
		times := "once"
		if t.Times > 1 {
			times = fmt.Sprintf("%d times", t.Times)
		}
		return fmt.Sprintf("%s failed %s since %s: %v", t.Call, times, t.Since.Std().UTC().Format(time.RFC3339), t.Err)
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

// Waits joins what placement finds in the way now and what the fleet does about it.
func (i insight) Waits(snap *state.Snapshot, j *state.Job) string {
	if j.Waiting() == 0 {
		return ""
	}
	if j.Parked != "" {
		return j.Parked
	}
	now := i.clock.Now()
	if due, next := j.Untried() > 0, muster.Time(0); !due {
		last := ""
		snap.DueRetries(j.UID, 1<<62, func(m *state.Member) bool { next, last = m.RetryAt, m.Reason; return false })
		if next > now {
			in := fmt.Sprintf("the next attempt is in %s", next.Sub(now).Round(time.Second))
			if last != "" {
				in += "; the last one ended: " + last
			}
			return in
		}
	}
	if why := i.Paused(); why != "" {
		return why
	}
	why := []string{place.Why(j, snap, now).String()}
	if coming := launching(snap); coming > 0 {
		why = append(why, onTheirWay(coming))
	}
	if l := i.stats.now.Load(); l != nil {
		if d := l.fleet.Decisions(); d != nil {
			for _, w := range d.Waits {
				if w.Shape == j.Run.Shape && w.Priority == j.Priority() {
					why = append(why, "the fleet launches nothing more for it: "+w.Reason)
					break
				}
			}
		}
	}
	return strings.Join(why, "; ")
}

// launching is how many nodes are not yet serving.
func launching(snap *state.Snapshot) int {
	n := 0
	snap.LiveNodes(func(node *state.Node) bool {
		if node.Stage == muster.NodeLaunching || node.Stage == muster.NodeBooting {
			n++
		}
		return true
	})
	return n
}

func onTheirWay(nodes int) string {
	if nodes == 1 {
		return "1 node is on its way"
	}
	return fmt.Sprintf("%d nodes are on their way", nodes)
}

// Paused says why nothing is placed at all, if so.
func (i insight) Paused() string {
	if l := i.stats.now.Load(); l != nil && l.paused {
		return "the scheduler is paused: an operator has set scheduler.paused in the server's configuration"
	}
	return ""
}
