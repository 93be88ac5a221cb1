package cloud

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
)

// Op is what a provider was asked.
type Op string

// Ops.
const (
	OpOffers  Op = "offers"
	OpCreate  Op = "create"
	OpDestroy Op = "destroy"
	OpList    Op = "list"
	OpTags    Op = "tags"
)

// Succeeded is the result of a Count that is not a fault.
const Succeeded muster.FaultKind = ""

// Count is how often an operation had a result. Create and destroy are counted by instance.
type Count struct {
	Op     Op
	Result muster.FaultKind
	N      uint64
}

// Counted counts what is asked of a provider and what comes of it.
type Counted struct {
	p Provider

	mu    sync.Mutex
	n     map[Count]uint64 // by op and result, with N zero
	calls map[Op]uint64
	took  map[Op]time.Duration
}

// results are those that are counted from the start, so that a first fault is seen as a change of a series and not as a new one.
func results() []muster.FaultKind {
	return []muster.FaultKind{Succeeded, muster.FaultCapacity, muster.FaultQuota, muster.FaultRateLimited, muster.FaultAuth,
		muster.FaultInvalid, muster.FaultNotFound, muster.FaultTransient, muster.FaultAmbiguous, muster.FaultInternal}
}

// NewCounted goes around p.
func NewCounted(p Provider) *Counted {
	c := &Counted{p: p, n: map[Count]uint64{}, calls: map[Op]uint64{}, took: map[Op]time.Duration{}}
	for _, op := range []Op{OpOffers, OpCreate, OpDestroy, OpList, OpTags} {
		for _, r := range results() {
			c.n[Count{Op: op, Result: r}] = 0
		}
	}
	return c
}

// Unwrap is Wrapper's.
func (c *Counted) Unwrap() Provider { return c.p }

// Counts are all so far, in the order of operation and result.
func (c *Counted) Counts() []Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Count, 0, len(c.n))
	for k, n := range c.n {
		k.N = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.Op != b.Op {
			return compare(a.Op, b.Op)
		}
		return compare(a.Result, b.Result)
	})
	return out
}

// Took is how many calls of an operation there were, and how long they took together.
func (c *Counted) Took(op Op) (calls uint64, sum time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[op], c.took[op]
}

func compare[T ~string](a, b T) int {
	if a < b {
		return -1
	}
	return 1
}

// done counts one call with its results.
func (c *Counted) done(op Op, began time.Time, errs ...error) {
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[op]++
	c.took[op] += took
	for _, err := range errs {
		r := Succeeded
		if err != nil {
			r = muster.KindOf(err)
		}
		c.n[Count{Op: op, Result: r}]++
	}
}

// Offers is Provider's.
func (c *Counted) Offers(ctx context.Context) ([]muster.Offering, error) {
	began := time.Now()
	out, err := c.p.Offers(ctx)
	c.done(OpOffers, began, err)
	return out, err
}

// Create is Provider's.
func (c *Counted) Create(ctx context.Context, intents []Intent) []Created {
	began := time.Now()
	out := c.p.Create(ctx, intents)
	errs := make([]error, len(out))
	for i := range out {
		errs[i] = out[i].Err
	}
	c.done(OpCreate, began, errs...)
	return out
}

// Destroy is Provider's.
func (c *Counted) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	began := time.Now()
	errs := c.p.Destroy(ctx, ids)
	c.done(OpDestroy, began, errs...)
	return errs
}

// List is Provider's.
func (c *Counted) List(ctx context.Context, cursor string) (Listing, error) {
	began := time.Now()
	out, err := c.p.List(ctx, cursor)
	c.done(OpList, began, err)
	return out, err
}

// SetTags is Provider's.
func (c *Counted) SetTags(ctx context.Context, id muster.InstanceID, tags Tags) error {
	began := time.Now()
	err := c.p.SetTags(ctx, id, tags)
	c.done(OpTags, began, err)
	return err
}
