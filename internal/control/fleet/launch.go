package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// createTimeout bounds one call, unless its provider allows more (limitOf). createsPerCall is
	// how many intents one call has, and so how many a lost answer affects.
	createTimeout  = 2 * time.Minute
	createsPerCall = 8
	// The delays after an unclear answer: the first, which doubles, and the longest.
	retryFirst, retryLongest = 500 * time.Millisecond, time.Minute
)

// limitSlack is how much longer a call may take than the provider's own limit. So the provider's
// limit ends the call, with a better error.
const limitSlack = 5 * time.Second

// limitOf returns the time limit of a call: least, or more if the provider's configuration allows
// more.
func (f *Fleet) limitOf(name muster.ProviderName, least time.Duration) time.Duration {
	if p, ok := cloud.As[cloud.CallLimiter](f.cfg.Providers[name]); ok {
		return max(least, p.CallLimit()+limitSlack)
	}
	return least
}

// launch commits the intents and then asks for the instances. It skips a provider whose first list
// had not ended when the pass began: that list may show that the wanted instances exist already,
// and the decision knows nothing of an instance adopted since. The next pass decides again.
func (f *Fleet) launch(ctx context.Context, launches []size.Launch, listed map[muster.ProviderName]bool) {
	var b batch
	var nodes []muster.NodeID
	for _, l := range launches {
		if !listed[l.Offering.Provider] {
			continue
		}
		id := f.ids.node()
		token := f.ids.token()
		boot, err := f.Boot(l.Offering.Provider, token)
		if err != nil {
			f.unbootable(&l, err)
			continue
		}
		nodes = append(nodes, id)
		b.add(&state.NodeLaunching{ID: id, Token: token, Pool: l.Pool, Offering: l.Offering, Reason: l.Reason, HostKey: boot.HostKey})
	}
	// The nodes are marked before they are in the log. Otherwise a pass in between could take them
	// for intents that an earlier leader left without a call.
	f.mu.Lock()
	for _, id := range nodes {
		f.memory.Creating[id] = true
	}
	f.mu.Unlock()
	f.commit(ctx, &b)
	var committed []muster.NodeID
	f.mu.Lock()
	// An intent that the log refused is dropped. The next pass decides again.
	for i, id := range nodes {
		delete(f.memory.Creating, id)
		if b.errs[i] == nil {
			committed = append(committed, id)
		}
	}
	f.mu.Unlock()
	f.create(ctx, f.cfg.State.Latest(), committed)
}

// Boot is what the instance of a token gets for its first start; nothing unless its provider is
// cloud.Bootable.
func (f *Fleet) Boot(name muster.ProviderName, token muster.Token) (cloud.Boot, error) {
	if _, ok := cloud.As[cloud.Bootable](f.cfg.Providers[name]); !ok || f.cfg.Boot == nil {
		return cloud.Boot{}, nil
	}
	meta := f.cfg.State.Latest().Meta()
	if got := meta.LogFormat(); got < state.FormatHostKey {
		return cloud.Boot{}, muster.Faultf(muster.FaultUnavailable,
			"its instances need log format %d, and the log has format %d until every server of the cluster reads a newer one", state.FormatHostKey, got)
	}
	return f.cfg.Boot(name, token)
}

// unbootable blocks what cannot be launched for want of user data, and logs it once per block.
func (f *Fleet) unbootable(l *size.Launch, err error) {
	now := f.cfg.Clock.Now()
	snap := f.cfg.State.Latest()
	if muster.KindOf(err) == muster.FaultInternal {
		err = &muster.Fault{Kind: muster.FaultInvalid, Err: err}
	}
	f.mu.Lock()
	b := f.blocks.add(&l.Offering, err, now.Std(), snap)
	f.mu.Unlock()
	// The next pass looks for another offering, or says what the work waits for.
	wait.Poke(f.wake)
	f.log.Warn("nothing is launched: no user data for an instance", "offering", l.Offering.Name, "pool", l.Pool, "error", err, "again", b.Until.Sub(now))
}

// create asks the providers for the instances of launching nodes. It returns at once.
func (f *Fleet) create(ctx context.Context, snap *state.Snapshot, ids []muster.NodeID) {
	wanted := func(n *state.Node) bool { return n.Stage == muster.NodeLaunching }
	f.inParts(snap, ids, wanted, f.memory.Creating, createsPerCall, func(name muster.ProviderName, nodes []*state.Node) {
		f.createPart(ctx, name, nodes)
	})
}

// createPart makes one call and handles its answers. Each intent has one of three results: the
// instance exists, it does not, or the answer is unclear. In the last case only a list can tell,
// and no other call is made before one has.
func (f *Fleet) createPart(ctx context.Context, name muster.ProviderName, nodes []*state.Node) {
	intents := make([]cloud.Intent, len(nodes))
	for i, n := range nodes {
		intents[i] = cloud.Intent{Token: n.Token, Node: n.ID, Pool: n.Pool, Offering: n.Offering.Name, Zone: n.Offering.Zone, Market: n.Offering.Market}
		// Only a changed configuration can make this fail where the launch did not. The driver then
		// refuses the intent, because it lacks the user data.
		intents[i].Boot, _ = f.Boot(name, n.Token)
	}
	callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, createTimeout))
	results := f.providers[name].Create(callCtx, intents)
	cancel()
	for i, n := range nodes {
		err := error(nil)
		r := cloud.Created{Err: muster.Faultf(muster.FaultAmbiguous, "provider %s did not answer for it", name)}
		if i < len(results) {
			r = results[i]
		}
		switch {
		case ctx.Err() != nil:
			// The next leader finds out.
		case r.Err == nil:
			err = f.propose(ctx, &state.NodeLaunched{ID: n.ID, Instance: r.Instance.ID})
		case f.shown(n):
			f.log.Warn("create answers with an error, and a list shows the instance", "node", n.ID, "error", r.Err)
			// The provider may have undone the instance since.
			f.listers[name].want(f.cfg.Clock.Now())
		default:
			err = f.notCreated(ctx, n, r.Err)
		}
		found := err != nil && f.shown(n)
		f.mu.Lock()
		delete(f.memory.Creating, n.ID)
		if r.Err == nil {
			f.stats.Created++
			delete(f.backoff, n.ID)
			f.troubles.over(n.ID, "create")
			f.blocks.clear(&n.Offering, f.cfg.Clock.Now(), f.cfg.State.Latest())
		} else {
			f.stats.CreateFaults++
		}
		if err != nil && !found {
			// The result is not in the log. A list finds out what became of the instance.
			f.memory.Tried[n.ID] = f.cfg.Clock.Now()
		}
		f.mu.Unlock()
	}
	wait.Poke(f.wake)
}

// shown reports whether a list has shown the instance of an intent. Then the late answer of its
// create does not matter: the node has the instance or gets it soon.
func (f *Fleet) shown(n *state.Node) bool {
	if row := f.cfg.State.Latest().Node(n.ID); row != nil && row.Instance != "" {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sights[n.Offering.Provider].Has(n.Token)
}

// notCreated handles an error of a create. An unclear one leaves the node as it is, for a list to
// resolve. A clear refusal blocks the scope and ends the node.
func (f *Fleet) notCreated(ctx context.Context, n *state.Node, err error) error {
	now := f.cfg.Clock.Now().Std()
	if unclear(err) {
		f.mu.Lock()
		f.backoff[n.ID]++
		wait := backoff(retryFirst, retryLongest, f.backoff[n.ID])
		f.memory.Tried[n.ID] = muster.At(now)
		f.memory.NotBefore[n.ID] = muster.At(now.Add(wait))
		f.troubles.failed(n.ID, "create", err, muster.At(now), f.memory.NotBefore[n.ID])
		f.mu.Unlock()
		f.log.Warn("create: the answer says nothing certain; looking for it", "node", n.ID, "error", err)
		return nil
	}
	snap := f.cfg.State.Latest()
	f.mu.Lock()
	b := f.blocks.add(&n.Offering, err, now, snap)
	f.mu.Unlock()
	f.log.Warn("create refused", "node", n.ID, "offering", n.Offering.Name, "kind", muster.KindOf(err), "error", err, "again", b.Until.Sub(muster.At(now)))
	// The block is in the log first: a leader that finds the node gone must not ask again at once.
	f.keeper.keep(ctx)
	return f.propose(ctx, &state.NodeGone{ID: n.ID, Reason: fmt.Sprintf("not created: %v", err)})
}

// unclear reports whether the instance may have been created although the call failed.
func unclear(err error) bool {
	var fault *muster.Fault
	if !errors.As(err, &fault) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	return fault.Kind == muster.FaultAmbiguous || fault.Kind == muster.FaultInternal || fault.Kind == muster.FaultUnavailable
}

// backoff is first × 2^(n-1), at most longest.
func backoff(first, longest time.Duration, n int) time.Duration {
	d := first
	for i := 1; i < n && d < longest; i++ {
		d *= 2
	}
	return min(d, longest)
}
