package fleet

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/state"
)

const (
	tagsTimeout = time.Minute
	// tagsAtOnce bounds the calls that one list starts. The next list sees the rest.
	tagsAtOnce = 16
)

// tag corrects the tags of instances that differ from the state. Tags are a copy of what the log
// knows: if the log is lost, a new server adopts the instances by them. A failure needs no retry
// here: the next list shows the instance again.
func (f *Fleet) tag(ctx context.Context, snap *state.Snapshot, name muster.ProviderName, seen []cloud.Instance) {
	if len(seen) == 0 {
		return
	}
	nodes := map[muster.InstanceID]*state.Node{}
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Offering.Provider == name && n.Instance != "" && n.Stage != muster.NodeTerminating {
			nodes[n.Instance] = n
		}
		return true
	})
	// started counts the calls begun here.
	started := 0
	for _, in := range seen {
		n := nodes[in.ID]
		// Not an instance that a node here stands for; adoption and strays are handled elsewhere.
		if n == nil || n.Token != in.Tags.Token {
			continue
		}
		// Its agent obeys another server, whose tags these are.
		if n.Intent == muster.NodeHold && n.IntentWho == state.WhoLink {
			continue
		}
		want := in.Tags
		want.Node, want.Pool, want.Intent = n.ID, n.Pool, tagOf(n.Intent)
		// The usual intent may be written or left out; both are the same.
		has := in.Tags
		has.Intent = tagOf(has.Intent)
		if has == want || started == tagsAtOnce {
			continue
		}
		f.mu.Lock()
		busy := f.tagging[in.ID]
		f.tagging[in.ID] = true
		f.mu.Unlock()
		if busy {
			continue
		}
		started++
		f.calls.Go(func() {
			callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, tagsTimeout))
			err := f.providers[name].SetTags(callCtx, in.ID, want)
			cancel()
			f.mu.Lock()
			delete(f.tagging, in.ID)
			news := false
			if err == nil {
				f.troubles.over(n.ID, "tags")
			} else if ctx.Err() == nil {
				news = f.troubles.failed(n.ID, "tags", err, f.cfg.Clock.Now(), 0)
			}
			f.mu.Unlock()
			if news {
				f.log.Warn("instance not tagged", "instance", in.ID, "node", want.Node, "error", err)
			}
		})
	}
}

// tagOf returns an intent as it is written in tags: the usual intent is the empty one.
func tagOf(i muster.NodeIntent) muster.NodeIntent {
	if i == muster.NodeRun {
		return ""
	}
	return i
}
