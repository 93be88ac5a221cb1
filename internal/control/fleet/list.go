package fleet

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// listTimeout bounds a list with all its pages, and a read of offerings.
	listTimeout = 2 * time.Minute
	// thrift is how many times longer sweeps are apart while the cloud has few calls left.
	thrift = 5
	// listGap is the shortest time between the starts of two lists.
	listGap = 250 * time.Millisecond
	// The delays after a failed list: the first, which doubles, and the longest.
	listRetry, listRetryLongest = time.Second, time.Minute
	// maxPages stops a list whose cursor never ends.
	maxPages = 10_000
)

// lister lists the instances of one provider: at the start, when the fleet wants to know something,
// and at least every Config.SweepEvery. Its own goroutine runs it.
type lister struct {
	f    *Fleet
	name muster.ProviderName
	p    cloud.Provider
	wake chan struct{}

	// mu guards the fields below. It may be taken while Fleet.mu is held, never the reverse.
	mu sync.Mutex
	// next is when a list is wanted; 0 means only the sweep.
	next muster.Time
	// asked is when the newest list began; busy is true until it ends.
	asked muster.Time
	busy  bool // it is under way
	// tries counts lists that have ended, well or not.
	tries int
	// blind describes the failures since the last list that succeeded.
	blind Blind
}

// Blind describes a provider whose lists fail or are incomplete: since when, and the last error.
// Until a list succeeds, no missing instance is known to be gone. The zero Blind means that lists
// succeed.
type Blind struct {
	Since muster.Time
	Err   error
}

// Blind returns since when a provider cannot be listed, and why.
func (f *Fleet) Blind(name muster.ProviderName) Blind {
	l := f.listers[name]
	if l == nil {
		return Blind{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blind
}

// after returns the Blind after one more call that began at the given time.
func (b Blind) after(err error, at muster.Time) Blind {
	switch {
	case err == nil:
		return Blind{}
	case b.Err == nil:
		return Blind{Since: at, Err: err}
	}
	return Blind{Since: b.Since, Err: err}
}

func newLister(f *Fleet, name muster.ProviderName, p cloud.Provider) *lister {
	return &lister{f: f, name: name, p: p, wake: make(chan struct{}, 1)}
}

// want asks for a list that begins at the given time or soon after. A list that began then or later
// serves as well.
func (l *lister) want(at muster.Time) {
	l.mu.Lock()
	sooner := at > l.asked && (l.next == 0 || at < l.next)
	if sooner {
		l.next = at
	}
	l.mu.Unlock()
	if sooner {
		wait.Poke(l.wake)
	}
}

// look is want for a pass. While a list is under way it does nothing: that list is followed by
// another pass, which asks again if it must.
func (l *lister) look(at muster.Time) {
	l.mu.Lock()
	busy := l.busy
	l.mu.Unlock()
	if !busy {
		l.want(at)
	}
}

// listedOnce returns the providers of which a list has ended since the start, well or not. What it
// showed is in the state by then.
func (f *Fleet) listedOnce() map[muster.ProviderName]bool {
	out := map[muster.ProviderName]bool{}
	for name, l := range f.listers {
		l.mu.Lock()
		out[name] = l.tries > 0
		l.mu.Unlock()
	}
	return out
}

// due returns when to list next. last is when the last list began; notBefore is the end of a
// back-off. All times are by the log's clock.
func (l *lister) due(last, notBefore muster.Time) muster.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The sweep is the latest time; a request may be earlier, but not before the gap and the
	// back-off.
	every := l.f.cfg.SweepEvery
	if isScarce(l.p) {
		every *= thrift
	}
	at := last.Add(every)
	if l.next != 0 {
		at = min(at, l.next)
	}
	return max(at, last.Add(listGap), notBefore)
}

// isScarce reports whether a provider's cloud has few calls left, as far as it knows.
func isScarce(p cloud.Provider) bool {
	s, ok := cloud.As[cloud.Sparing](p)
	return ok && s.Scarce()
}

// run lists until ctx ends. The first list begins at once, unless the provider has forbidden that.
func (l *lister) run(ctx context.Context) {
	var last muster.Time
	// An earlier leader may have been asked to wait.
	notBefore := l.f.keeper.forbidden(l.name, state.CallList)
	faults := 0
	for first := notBefore == 0; ; first = false {
		for !first {
			delay := l.due(last, notBefore).Sub(l.f.cfg.Clock.Now())
			if delay <= 0 {
				break
			}
			timer := time.NewTimer(delay)
			select {
			case <-ctx.Done():
			case <-l.wake:
			case <-timer.C:
			}
			timer.Stop()
			if ctx.Err() != nil {
				return
			}
		}
		// The time is taken before the call: the list shows the instances as of some moment after
		// it.
		last = l.f.cfg.Clock.Now()
		l.mu.Lock()
		l.busy = true
		if l.asked = last; l.next <= l.asked {
			l.next = 0
		}
		l.mu.Unlock()
		list, seen, err := l.list(ctx)
		if ctx.Err() != nil {
			return
		}
		// Even a failed list has shown some instances, and those exist. Only absence needs a
		// complete list.
		l.f.listed(ctx, l.name, list, seen)
		before := l.ended(err)
		l.f.keeper.answered(l.name, state.CallList, err)
		if notBefore = 0; err == nil {
			faults = 0
			if before.Err != nil {
				l.f.log.Info("provider listed again", "provider", l.name, "after", last.Sub(before.Since))
			}
		} else {
			faults++
			// After a failure the next list is asked for by time, since the sweep may be far away.
			delay := backoff(listRetry, listRetryLongest, faults)
			if after := afterOf(err); after > 0 {
				delay = after
			}
			notBefore = l.f.cfg.Clock.Now().Add(delay)
			l.f.log.Log(ctx, newsLevel(before.Err, err), "provider not listed", "provider", l.name, "again", delay, "error", err)
			l.want(notBefore)
		}
		wait.Poke(l.f.wake)
	}
}

// ended records how a list ended, and returns how those before it did.
func (l *lister) ended(err error) (before Blind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.blind
	l.tries++
	l.busy = false
	l.blind = before.after(err, l.asked)
	return before
}

// list reads all pages. With an error it returns what it has seen, marked as incomplete. A list
// that calls itself incomplete is an error too: it confirms no absence, so whoever waits for it
// would ask again at once, and no operator would know why.
func (l *lister) list(ctx context.Context) (*mend.List, []cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, l.f.limitOf(l.name, listTimeout))
	defer cancel()
	// Asked is the time before the first page, so nothing created later is expected in the list.
	out := &mend.List{Asked: l.f.cfg.Clock.Now()}
	var seen []cloud.Instance
	cursor := ""
	for range maxPages {
		page, err := l.p.List(ctx, cursor)
		if err != nil {
			return out, seen, err
		}
		seen = append(seen, page.Instances...)
		for _, in := range page.Instances {
			out.Instances = append(out.Instances, mend.Instance{ID: in.ID, Token: in.Tags.Token, Node: in.Tags.Node, Pool: in.Tags.Pool,
				Offering: in.Offering, Zone: in.Zone, Market: in.Market, Intent: in.Tags.Intent, Failed: failureOf(in.Failed)})
		}
		if page.Next == "" {
			if out.Complete = page.Complete; !page.Complete {
				return out, seen, muster.Faultf(muster.FaultTransient, "the list of provider %s says that it is not complete", l.name)
			}
			return out, seen, nil
		}
		cursor = page.Next
	}
	return out, seen, muster.Faultf(muster.FaultInternal, "list of provider %s does not end", l.name)
}

// listed processes a list: instances that it confirms, and instances that the state does not know.
func (f *Fleet) listed(ctx context.Context, name muster.ProviderName, list *mend.List, seen []cloud.Instance) {
	// The snapshot is newer than the answer. So an instance in the list whose intent was committed
	// before its creation always finds its node here, and is not taken for a stray.
	snap := f.cfg.State.Latest()
	f.mu.Lock()
	f.stats.Lists++
	f.sights[name].Take(list, snap)
	refused := f.refusedLocked(name, seen, snap)
	f.mu.Unlock()
	for _, r := range refused {
		f.log.Warn("instance failed after it was accepted", "node", r.node, "instance", r.instance, "kind", r.fault.Kind, "error", r.fault, "again", r.again)
	}
	strays, adopt := f.unsheltered(mend.Reconcile(snap, name, list))
	f.destroyStrays(ctx, name, strays)
	f.adopt(ctx, adopt)
	f.tag(ctx, f.cfg.State.Latest(), name, seen)
}

// readOffers keeps the provider's offerings in the state up to date.
func (f *Fleet) readOffers(ctx context.Context, name muster.ProviderName) {
	faults := 0
	left := map[offerKey]muster.Time{}
	// An earlier leader may have been asked to wait.
	if !wait.For(ctx, f.keeper.forbidden(name, state.CallOffers).Sub(f.cfg.Clock.Now())) {
		return
	}
	for {
		delay := f.cfg.OffersEvery
		callCtx, cancel := context.WithTimeout(ctx, f.limitOf(name, listTimeout))
		offers, err := f.providers[name].Offers(callCtx)
		cancel()
		if err == nil {
			err = f.sell(ctx, name, offers, left)
		}
		if faults++; err == nil {
			faults = 0
		} else {
			if ctx.Err() != nil {
				return
			}
			delay = max(min(delay, backoff(listRetry, listRetryLongest, faults)), afterOf(err))
		}
		f.keeper.answered(name, state.CallOffers, err)
		f.offersRead(ctx, name, err)
		if !wait.For(ctx, delay) {
			return
		}
	}
}

// offerGone is how long a provider must leave an offering out of its answers before the fleet
// believes that it is gone, and its nodes are given up. Until then it counts as sold out. A lost
// page, a missing price or a bug in a custom provider must not end a pool.
const offerGone = 10 * time.Minute

// offerKey identifies an offering across answers.
type offerKey struct {
	name   muster.OfferingName
	zone   string
	market muster.Market
}

// keyOf returns the key of an offering.
func keyOf(o *muster.Offering) offerKey { return offerKey{o.Name, o.Zone, o.Market} }

// sell proposes the offerings if they differ from those in the state. left records since when
// earlier answers lacked an offering; only readOffers of this provider uses it.
func (f *Fleet) sell(ctx context.Context, name muster.ProviderName, offers []muster.Offering, left map[offerKey]muster.Time) error {
	// A clone, because the answer belongs to the provider.
	offers = slices.Clone(offers)
	for i := range offers {
		offers[i].Provider = name
		if offers[i].Market == "" {
			offers[i].Market = muster.OnDemand
		}
	}
	// A provider whose offerings are configured cannot lose some by accident: what is missing was
	// removed by the operator.
	if _, configured := cloud.As[cloud.OffersConfigured](f.providers[name]); !configured {
		offers = f.keepLeft(name, offers, left)
	}
	slices.SortFunc(offers, func(a, b muster.Offering) int {
		return strings.Compare(string(a.Name)+"\x00"+a.Zone+"\x00"+string(a.Market), string(b.Name)+"\x00"+b.Zone+"\x00"+string(b.Market))
	})
	var known []muster.Offering
	f.cfg.State.Latest().Offerings(func(o *muster.Offering) bool {
		if o.Provider == name {
			known = append(known, *o)
		}
		return true
	})
	if slices.EqualFunc(offers, known, sameOffering) {
		return nil
	}
	return f.propose(ctx, &state.OfferingsSeen{Provider: name, Offerings: offers})
}

// keepLeft adds the known offerings that the answer lacks, as sold out, until they have been
// missing for offerGone. An answer without any offering ends none: it is no reason to end what
// runs.
func (f *Fleet) keepLeft(name muster.ProviderName, offers []muster.Offering, left map[offerKey]muster.Time) []muster.Offering {
	named := map[offerKey]bool{}
	for i := range offers {
		named[keyOf(&offers[i])] = true
		delete(left, keyOf(&offers[i]))
	}
	now := f.cfg.Clock.Now()
	var missing []string
	f.cfg.State.Latest().Offerings(func(o *muster.Offering) bool {
		k := keyOf(o)
		if o.Provider != name || named[k] {
			return true
		}
		since, before := left[k]
		if !before {
			since = now
			left[k] = since
			missing = append(missing, string(o.Name))
		}
		if now.Sub(since) < offerGone || len(named) == 0 {
			c := *o
			c.Available = false
			offers = append(offers, c)
		} else {
			delete(left, k)
		}
		return true
	})
	if len(missing) > 0 {
		f.log.Warn("the provider's answer lacks offerings that it had; they are taken for sold out, and their nodes go on unless that lasts", "provider", name, "offerings", strings.Join(missing, ", "), "for", offerGone)
	}
	return offers
}

// newsLevel returns the log level of a failure: a warning if it differs from the one before, else
// debug.
func newsLevel(before, now error) slog.Level {
	if before != nil && before.Error() == now.Error() {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
