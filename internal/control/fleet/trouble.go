package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Trouble is what a provider answers to calls for one node, until one of the same kind succeeds. The zero Trouble is none.
type Trouble struct {
	// Call is what fails: create, destroy or tags.
	Call string
	// Since is when the first of them failed, Times how many have, and Again when the next may be made; 0: after the next list.
	Since muster.Time
	Times int
	Again muster.Time
	Err   error
}

// troubles are those of all nodes.
type troubles map[muster.NodeID]Trouble

// failed notes one more failure, and reports whether it differs from the one before: only then is it worth a line in the log.
// Failing tags do not hide a failure that keeps the node from going on.
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

// Troubles says what the providers of nodes answer instead of doing what they were asked to.
func (f *Fleet) Troubles() map[muster.NodeID]Trouble {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(map[muster.NodeID]Trouble(f.troubles))
}

// Unmanaged says of a node that its provider is not configured; "" if it is.
func (f *Fleet) Unmanaged(n *state.Node) string {
	if f.cfg.Providers[n.Offering.Provider] != nil {
		return ""
	}
	return fmt.Sprintf("provider %s is not configured, so nothing can destroy its instance; put the provider back until its nodes are gone", n.Offering.Provider)
}

// warnUnmanaged logs once for each provider that is not configured and has nodes.
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

// createdAfterAll ends the trouble with the create of a node whose instance a list shows.
func (f *Fleet) createdAfterAll(id muster.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.troubles.over(id, "create")
}

// Unsold says since when a provider's offerings cannot be read, and why. The zero Blind is of one whose offerings can.
func (f *Fleet) Unsold(name muster.ProviderName) Blind {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unsold[name]
}

// offersRead notes how reading a provider's offerings ended, and logs what is new.
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
