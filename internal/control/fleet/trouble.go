package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Trouble describes the failing calls to a provider for one node, until a call of the same kind
// succeeds. The zero Trouble means none.
type Trouble struct {
	// Call is the kind of call that fails: create, destroy or tags.
	Call string
	// Since is when the first call failed, Times is how many have. Again is when the next call may
	// be made; 0 means after the next list.
	Since muster.Time
	Times int
	Again muster.Time
	Err   error
}

// troubles holds the troubles of all nodes. Fleet.mu guards it.
type troubles map[muster.NodeID]Trouble

// failed records one more failure, and reports whether it differs from the one before. Only then is
// it worth a log line. A failure to tag does not replace one that keeps the node from going on.
func (t troubles) failed(id muster.NodeID, call string, err error, now, again muster.Time) (news bool) {
	was, known := t[id]
	if known && was.Call != call && call == "tags" {
		return false
	}
	is := Trouble{Call: call, Since: now, Times: 1, Again: again, Err: err}
	if known && was.Call == call {
		is.Since, is.Times = was.Since, was.Times+1
		news = was.Err.Error() != err.Error()
	} else {
		news = true
	}
	t[id] = is
	return news
}

// over ends the trouble of a node with one kind of call.
func (t troubles) over(id muster.NodeID, call string) {
	if t[id].Call == call {
		delete(t, id)
	}
}

// Troubles returns, by node, the errors of providers that keep calls from succeeding.
func (f *Fleet) Troubles() map[muster.NodeID]Trouble {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(map[muster.NodeID]Trouble(f.troubles))
}

// Unmanaged returns a sentence for a node whose provider is not configured; empty if it is.
func (f *Fleet) Unmanaged(n *state.Node) string {
	if f.cfg.Providers[n.Offering.Provider] != nil {
		return ""
	}
	return fmt.Sprintf("provider %s is not configured, so nothing can destroy its instance; put the provider back until its nodes are gone", n.Offering.Provider)
}

// warnUnmanaged logs one line for each provider that has nodes and is not configured.
func (f *Fleet) warnUnmanaged() {
	nodes := map[muster.ProviderName]int{}
	f.cfg.State.Latest().LiveNodes(func(n *state.Node) bool {
		if p := n.Offering.Provider; f.cfg.Providers[p] == nil {
			nodes[p]++
		}
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		f.log.Warn("a provider with nodes is not configured: nothing can destroy their instances; put it back until they are gone", "provider", name, "nodes", nodes[name])
	}
}

// createdAfterAll ends the trouble with the create of a node when a list shows its instance.
func (f *Fleet) createdAfterAll(id muster.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.troubles.over(id, "create")
}

// Unsold returns since when a provider's offerings cannot be read, and why. The zero Blind means
// that they can.
func (f *Fleet) Unsold(name muster.ProviderName) Blind {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unsold[name]
}

// offersRead records how a read of offerings ended, and logs it if it is news.
func (f *Fleet) offersRead(ctx context.Context, name muster.ProviderName, err error) {
	now := f.cfg.Clock.Now()
	f.mu.Lock()
	before := f.unsold[name]
	f.unsold[name] = before.after(err, now)
	f.mu.Unlock()
	switch {
	case err != nil:
		f.log.Log(ctx, newsLevel(before.Err, err), "offerings not read", "provider", name, "error", err)
	case before.Err != nil:
		f.log.Info("offerings read again", "provider", name, "after", now.Sub(before.Since))
	}
}
