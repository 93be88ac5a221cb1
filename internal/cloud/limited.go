package cloud

import (
	"context"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/wait"
)

// Rate is how many calls a second there may be, on average, and how many at
// once after a time of quiet. The zero value is no limit.
type Rate struct {
	PerSecond float64
	Burst     int // 0: one
}

// Rates are those of a provider. Each class waits for itself alone: creates that
// are held up never hold up lists.
type Rates struct {
	// Create and Destroy count each instance, for most clouds' batches are calls one by one.
	Create, Destroy Rate
	// Read is of offers and lists, a page each; Tags of SetTags.
	Read, Tags Rate
}

// Limited lets calls through at the pace that an account bears. What waits
// ends with its ctx as FaultTransient: nothing was asked then.
type Limited struct {
	p                           Provider
	create, destroy, read, tags Pace
}

// NewLimited goes around p.
func NewLimited(p Provider, r Rates) *Limited {
	return &Limited{p: p, create: Pace{Rate: r.Create}, destroy: Pace{Rate: r.Destroy}, read: Pace{Rate: r.Read}, tags: Pace{Rate: r.Tags}}
}

// Unwrap is Wrapper's.
func (l *Limited) Unwrap() Provider { return l.p }

// Pace lets calls through at a rate. It is a token bucket, kept as the time at which all that was
// taken is paid for. Drivers use it for limits of their cloud on calls that Rates do not count.
type Pace struct {
	// Rate must not change once Wait was called.
	Rate Rate

	mu   sync.Mutex
	paid time.Time
	// waited is the sum of all waits that have ended, by the pace or with their context; waiting is how
	// many calls wait now.
	waited  time.Duration
	waiting int
}

// Paced is a provider that is called no faster than at some rates.
type Paced interface {
	// Paces are the rates, one for each kind of call that has one.
	Paces() []PaceUse
}

// PaceUse is what a rate did so far.
type PaceUse struct {
	// Calls are what the rate is of: create, destroy, read or tags; a driver may have more.
	Calls string
	Rate  Rate
	// Waited is for how long calls waited in all.
	Waited time.Duration
	// Waiting is how many calls wait now, and Last in how long the last of them may go.
	Waiting int
	Last    time.Duration
}

// Paces is Paced's. Those of the provider itself come after the ones around it.
func (l *Limited) Paces() []PaceUse {
	var out []PaceUse
	for _, p := range []struct {
		calls string
		pace  *Pace
	}{{"create", &l.create}, {"destroy", &l.destroy}, {"read", &l.read}, {"tags", &l.tags}} {
		if p.pace.Rate.PerSecond > 0 {
			out = append(out, p.pace.Use(p.calls))
		}
	}
	if inner, ok := As[Paced](l.p); ok {
		out = append(out, inner.Paces()...)
	}
	return out
}

// Use is what the rate did so far, for calls of that name.
func (b *Pace) Use(calls string) PaceUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := PaceUse{Calls: calls, Rate: b.Rate, Waited: b.waited, Waiting: b.waiting}
	if u.Waiting > 0 {
		// The last one may go when those before it are paid for.
		u.Last = max(time.Until(b.paid.Add(-b.each())), 0)
	}
	return u
}

// each is what one call costs.
func (b *Pace) each() time.Duration { return time.Duration(float64(time.Second) / b.Rate.PerSecond) }

// take is how long to wait for n tokens; they are taken.
func (b *Pace) take(now time.Time, n int) time.Duration {
	if b.Rate.PerSecond <= 0 || n == 0 {
		return 0
	}
	each := b.each()
	// What was saved up is a burst at most, less the one that is due anyway.
	saved := time.Duration(max(b.Rate.Burst, 1)-1) * each
	b.mu.Lock()
	defer b.mu.Unlock()
	if floor := now.Add(-saved); b.paid.Before(floor) {
		b.paid = floor
	}
	// The last of the n may go when the n-1 before it are paid for.
	at := b.paid.Add(time.Duration(n-1) * each)
	b.paid = b.paid.Add(time.Duration(n) * each)
	return max(at.Sub(now), 0)
}

// back returns tokens that were not used.
func (b *Pace) back(n int) {
	if b.Rate.PerSecond <= 0 {
		return
	}
	b.mu.Lock()
	b.paid = b.paid.Add(-time.Duration(float64(n) * float64(time.Second) / b.Rate.PerSecond))
	b.mu.Unlock()
}

// Wait waits for n calls. It reports false when ctx ends first: then they must not be made, and do
// not count.
func (b *Pace) Wait(ctx context.Context, n int) bool {
	began := time.Now()
	d := b.take(began, n)
	if d == 0 {
		return true
	}
	b.waits(n, 0)
	done := wait.For(ctx, d)
	if !done {
		b.back(n)
	}
	b.waits(-n, time.Since(began))
	return done
}

// waits notes that n calls more wait, and for how long some have waited.
func (b *Pace) waits(n int, waited time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting += n
	b.waited += waited
}

// wait is Wait with the fault that Limited answers.
func (b *Pace) wait(ctx context.Context, n int) error {
	if b.Wait(ctx, n) {
		return nil
	}
	return &muster.Fault{Kind: muster.FaultTransient, Message: "not asked: it waited for the pace that its provider may be called at", Err: ctx.Err()}
}

// Offers is Provider's.
func (l *Limited) Offers(ctx context.Context) ([]muster.Offering, error) {
	if err := l.read.wait(ctx, 1); err != nil {
		return nil, err
	}
	return l.p.Offers(ctx)
}

// Create is Provider's.
func (l *Limited) Create(ctx context.Context, intents []Intent) []Created {
	if err := l.create.wait(ctx, len(intents)); err != nil {
		out := make([]Created, len(intents))
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	return l.p.Create(ctx, intents)
}

// Destroy is Provider's.
func (l *Limited) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	if err := l.destroy.wait(ctx, len(ids)); err != nil {
		errs := make([]error, len(ids))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	return l.p.Destroy(ctx, ids)
}

// List is Provider's.
func (l *Limited) List(ctx context.Context, cursor string) (Listing, error) {
	if err := l.read.wait(ctx, 1); err != nil {
		return Listing{}, err
	}
	return l.p.List(ctx, cursor)
}

// SetTags is Provider's.
func (l *Limited) SetTags(ctx context.Context, id muster.InstanceID, tags Tags) error {
	if err := l.tags.wait(ctx, 1); err != nil {
		return err
	}
	return l.p.SetTags(ctx, id, tags)
}
