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
	listTimeout = 2 * time.Minute
	// listGap is the shortest time between the beginnings of two lists.
	listGap                    = 250 * time.Millisecond
	listRetry, listRetryLonges = time.Second, time.Minute
	// maxPages bounds a list whose cursor never ends.
	maxPages = 10_000
)

// lister lists one provider: at the start, when somebody wants to know, and once in a while.
type lister struct {
	f    *Fleet
	name muster.ProviderName
	p    cloud.Provider
	wake chan struct{}

	mu    sync.Mutex
	next  muster.Time // when a list is wanted; 0: only the sweep
	asked muster.Time // when the newest list began
	busy  bool        // it is under way
	tries int         // lists that ended, well or not
	blind Blind       // since the last list that did not fail
}

// Blind is a provider whose list fails or is not complete: since when, and how it failed last. Until one succeeds, no instance
// that is missing is known to be gone. The zero Blind is of one that can be listed.
type Blind struct {
	Since muster.Time
	Err   error
}

// Blind says since when a provider cannot be listed, and why.
func (f *Fleet) Blind(name muster.ProviderName) Blind {
	l := f.listers[name]
	if l == nil {
		return Blind{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blind
}

// after is how a provider stands after one more call, which began at a time.
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

// want asks for a list at a time, or before. One that began then, or later, will do.
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

// look is want, for a pass: while a list is under way it is left to the pass that follows it.
func (l *lister) look(at muster.Time) {
	l.mu.Lock()
	busy := l.busy
	l.mu.Unlock()
	if !busy {
		l.want(at)
	}
}

// looked reports whether one list has ended since the start, well or not.
func (l *lister) looked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tries > 0
}

// due is when to list, given when the last list began and what it may not be before. All times are the log's.
func (l *lister) due(last, notBefore muster.Time) muster.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := last.Add(l.f.cfg.SweepEvery)
	if l.next != 0 {
		at = min(at, l.next)
	}
	return max(at, last.Add(listGap), notBefore)
}

func (l *lister) run(ctx context.Context) {
	var last, notBefore muster.Time
	faults := 0
	for first := true; ; first = false {
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
		l.f.listed(ctx, l.name, list, seen)
		before := l.ended(err)
		if notBefore = 0; err == nil {
			faults = 0
			if before.Err != nil {
				l.f.log.Info("provider listed again", "provider", l.name, "after", last.Sub(before.Since))
			}
		} else {
			faults++
			delay := backoff(listRetry, listRetryLonges, faults)
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

// ended notes how a list ended, and returns how the lists before it did.
func (l *lister) ended(err error) (before Blind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.blind
	l.tries++
	l.busy = false
	l.blind = before.after(err, l.asked)
	return before
}

// list reads all pages. With an error it is what was seen, and not complete. A list that calls itself incomplete is an error too:
// it confirms nothing, so whoever waits for it would ask again at once, and nobody would know why.
func (l *lister) list(ctx context.Context) (*mend.List, []cloud.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, l.f.limitOf(l.name, listTimeout))
	defer cancel()
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
				Offering: in.Offering, Zone: in.Zone, Market: in.Market, Intent: in.Tags.Intent})
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

// listed takes in a list: what it confirms, and what it shows that nobody knows.
func (f *Fleet) listed(ctx context.Context, name muster.ProviderName, list *mend.List, seen []cloud.Instance) {
	snap := f.cfg.State.Latest() // after the answer: what is in the list and was intended is in it
	f.mu.Lock()
	f.stats.Lists++
	f.sights[name].Take(list, snap)
	f.mu.Unlock()
	strays, adopt := f.unsheltered(mend.Reconcile(snap, name, list))
	f.destroyStrays(ctx, name, strays)
	f.adopt(ctx, adopt)
	f.tag(ctx, f.cfg.State.Latest(), name, seen)
}

// readOffers keeps what a provider sells in the state.
func (f *Fleet) readOffers(ctx context.Context, name muster.ProviderName) {
	faults := 0
	left := map[offerKey]muster.Time{}
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
			delay = min(delay, backoff(listRetry, listRetryLonges, faults))
		}
		f.offersRead(ctx, name, err)
		if !wait.For(ctx, delay) {
			return
		}
	}
}

// offerGone is for how long a provider must have left an offering out of all its answers until it is believed that there is none
// of it any more, and its nodes are given up. Until then it is sold out: a page that was lost, a price that was missing or a
// slip of somebody's own program must not end a pool.
const offerGone = 10 * time.Minute

// offerKey is what makes an offering the same in two answers.
type offerKey struct {
	name   muster.OfferingName
	zone   string
	market muster.Market
}

func keyOf(o *muster.Offering) offerKey { return offerKey{o.Name, o.Zone, o.Market} }

// sell proposes the offerings if they are other ones than before. left are those that the answers before lacked, since when.
func (f *Fleet) sell(ctx context.Context, name muster.ProviderName, offers []muster.Offering, left map[offerKey]muster.Time) error {
	offers = slices.Clone(offers)
	for i := range offers {
		offers[i].Provider = name
		if offers[i].Market == "" {
			offers[i].Market = muster.OnDemand
		}
	}
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

// keepLeft adds what a provider was known to sell and did not name now, as sold out, until that has lasted for offerGone.
// An answer without any offering ends none: that nothing at all is sold is no reason to end what runs.
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

// newsLevel is the level of a failure that may be the same as the one before it: a warning only when it is new.
func newsLevel(before, now error) slog.Level {
	if before != nil && before.Error() == now.Error() {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
