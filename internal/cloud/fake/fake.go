// Package fake is a cloud in memory for tests and sim: instances are entries in
// a table, answers come at once or after a delay drawn from a seed, and faults can be
// switched on call by call.
//
// It must never be configured in a server that does work. What stands behind an
// instance (an agent in memory, or nothing) is up to the hooks.
package fake

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Cloud is one cloud, shared by all its owners. Safe for use by many goroutines.
type Cloud struct {
	cfg Config

	mu        sync.Mutex
	rand      *rand.Rand
	next      int
	instances map[muster.InstanceID]*instance
	faults    Faults
	calls     Calls
}

type instance struct {
	cloud.Instance
	seq   int
	dying bool
	dead  chan struct{} // closed when it is gone
}

// Config of a cloud.
type Config struct {
	Offerings []muster.Offering
	Seed      uint64
	// Delay is the shortest time that a call takes; up to Jitter is added, drawn from the seed.
	Delay, Jitter time.Duration
	// Page is how many instances a page of a list has; 0: all.
	Page int
	// Created is called when an instance has been made, Destroyed when it is
	// to end; it is gone when that returns. Both may be nil, and are called without a lock held.
	Created   func(cloud.Instance)
	Destroyed func(cloud.Instance)
}

// Faults are what goes wrong. Each function may be nil; it is asked at each call.
type Faults struct {
	// Create says why an intent is not carried out.
	Create func(cloud.Intent) error
	// Lost says that the instance is made and the answer lost: this error is answered instead.
	Lost func(cloud.Intent) error
	// Destroy says why an instance is not destroyed.
	Destroy func(muster.InstanceID) error
	// List is the fault of a list; Cut shortens a page: what it returns is what
	// the page has, and whether the list says that it is complete.
	List func() error
	Cut  func([]cloud.Instance) (page []cloud.Instance, complete bool)
}

// Calls counts the calls.
type Calls struct{ Offers, Create, Intents, Destroy, List int }

// New makes a cloud without instances.
func New(cfg Config) *Cloud {
	return &Cloud{cfg: cfg, rand: rand.New(rand.NewPCG(cfg.Seed, 1)), instances: map[muster.InstanceID]*instance{}}
}

// SetFaults replaces the faults.
func (c *Cloud) SetFaults(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = f
}

// Calls so far.
func (c *Cloud) Calls() Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Instances are all that there are, of all owners, in the order in which they were made.
func (c *Cloud) Instances() []cloud.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sortedLocked(func(*instance) bool { return true })
}

func (c *Cloud) sortedLocked(want func(*instance) bool) []cloud.Instance {
	var all []*instance
	for _, i := range c.instances {
		if want(i) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b *instance) int { return a.seq - b.seq })
	out := make([]cloud.Instance, len(all))
	for k, i := range all {
		out[k] = i.Instance
	}
	return out
}

// Vanish takes an instance away as a cloud does that loses a machine. Destroyed is called.
func (c *Cloud) Vanish(id muster.InstanceID) {
	c.mu.Lock()
	i := c.instances[id]
	delete(c.instances, id)
	c.mu.Unlock()
	if i != nil && c.cfg.Destroyed != nil {
		c.cfg.Destroyed(i.Instance)
	}
}

// Add makes an instance that nobody asked for, and returns it.
func (c *Cloud) Add(tags cloud.Tags, offering muster.OfferingName) cloud.Instance {
	in, _ := c.add(tags.Owner, cloud.Intent{Token: tags.Token, Node: tags.Node, Pool: tags.Pool, Offering: offering}, false)
	if c.cfg.Created != nil {
		c.cfg.Created(in)
	}
	return in
}

// add makes an instance, or with once finds the one that the token has already.
func (c *Cloud) add(owner string, in cloud.Intent, once bool) (made cloud.Instance, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if once {
		there := c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == owner && i.Tags.Token == in.Token })
		if len(there) > 0 {
			return there[0], false
		}
	}
	c.next++
	market := in.Market
	if market == "" {
		market = muster.OnDemand
	}
	i := &instance{seq: c.next, dead: make(chan struct{}), Instance: cloud.Instance{
		ID:       muster.InstanceID(fmt.Sprintf("i-%04d", c.next)),
		Tags:     cloud.Tags{Owner: owner, Token: in.Token, Node: in.Node, Pool: in.Pool},
		Offering: in.Offering, Zone: in.Zone, Market: market, Created: muster.At(time.Now()),
	}}
	c.instances[i.ID] = i
	return i.Instance, true
}

// wait is the time that a call takes.
func (c *Cloud) wait(ctx context.Context) error {
	c.mu.Lock()
	d := c.cfg.Delay
	if c.cfg.Jitter > 0 {
		d += time.Duration(c.rand.Int64N(int64(c.cfg.Jitter)))
	}
	c.mu.Unlock()
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	if err := ctx.Err(); err != nil {
		return &muster.Fault{Kind: muster.FaultTransient, Message: "the call was ended", Err: err}
	}
	return nil
}

// Owner is the driver of one owner.
func (c *Cloud) Owner(owner string) cloud.Provider { return &driver{c, owner} }

type driver struct {
	c     *Cloud
	owner string
}

// Offers is cloud.Provider's.
func (d *driver) Offers(ctx context.Context) ([]muster.Offering, error) {
	d.c.mu.Lock()
	d.c.calls.Offers++
	d.c.mu.Unlock()
	if err := d.c.wait(ctx); err != nil {
		return nil, err
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	return slices.Clone(d.c.cfg.Offerings), nil
}

// SetOffers replaces what is sold.
func (c *Cloud) SetOffers(offers []muster.Offering) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Offerings = slices.Clone(offers)
}

// Create is cloud.Provider's.
func (d *driver) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	d.c.mu.Lock()
	d.c.calls.Create++
	d.c.calls.Intents += len(intents)
	d.c.mu.Unlock()
	out := make([]cloud.Created, len(intents))
	if err := d.c.wait(ctx); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	for i, in := range intents {
		out[i].Instance, out[i].Err = d.create(in)
	}
	return out
}

func (d *driver) create(in cloud.Intent) (cloud.Instance, error) {
	d.c.mu.Lock()
	f := d.c.faults
	sold := slices.ContainsFunc(d.c.cfg.Offerings, func(o muster.Offering) bool {
		return o.Name == in.Offering && o.Zone == in.Zone && (in.Market == "" || o.Market == in.Market)
	})
	there := d.c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == d.owner && i.Tags.Token == in.Token })
	d.c.mu.Unlock()
	switch {
	case in.Token == "" || in.Node == "":
		return cloud.Instance{}, muster.Faultf(muster.FaultInvalid, "an intent needs a token and a node")
	case len(there) > 0:
		return there[0], nil
	case !sold:
		return cloud.Instance{}, muster.Faultf(muster.FaultInvalid, "there is no offering %s", in.Offering)
	}
	if f.Create != nil {
		if err := f.Create(in); err != nil {
			return cloud.Instance{}, err
		}
	}
	made, first := d.c.add(d.owner, in, true)
	if !first {
		return made, nil
	}
	if d.c.cfg.Created != nil {
		d.c.cfg.Created(made)
	}
	if f.Lost != nil {
		if err := f.Lost(in); err != nil {
			return cloud.Instance{}, err
		}
	}
	return made, nil
}

// Destroy is cloud.Provider's.
func (d *driver) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	d.c.mu.Lock()
	d.c.calls.Destroy++
	d.c.mu.Unlock()
	errs := make([]error, len(ids))
	err := d.c.wait(ctx)
	for k, id := range ids {
		if errs[k] = err; err == nil {
			errs[k] = d.destroy(ctx, id)
		}
	}
	return errs
}

func (d *driver) destroy(ctx context.Context, id muster.InstanceID) error {
	d.c.mu.Lock()
	i, f := d.c.instances[id], d.c.faults
	first := i != nil && !i.dying && i.Tags.Owner == d.owner
	d.c.mu.Unlock()
	if i == nil {
		return nil
	}
	if i.Tags.Owner != d.owner {
		return muster.Faultf(muster.FaultNotFound, "instance %s is of another owner", id)
	}
	if f.Destroy != nil {
		if err := f.Destroy(id); err != nil {
			return err
		}
	}
	if first {
		d.c.mu.Lock()
		first = !i.dying
		i.dying = true
		d.c.mu.Unlock()
	}
	if !first {
		select {
		case <-i.dead:
			return nil
		case <-ctx.Done():
			return &muster.Fault{Kind: muster.FaultTransient, Message: "the call was ended", Err: ctx.Err()}
		}
	}
	if d.c.cfg.Destroyed != nil {
		d.c.cfg.Destroyed(i.Instance)
	}
	d.c.mu.Lock()
	delete(d.c.instances, id)
	d.c.mu.Unlock()
	close(i.dead)
	return nil
}

// List is cloud.Provider's.
func (d *driver) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	d.c.mu.Lock()
	d.c.calls.List++
	d.c.mu.Unlock()
	if err := d.c.wait(ctx); err != nil {
		return cloud.Listing{}, err
	}
	d.c.mu.Lock()
	f, size := d.c.faults, d.c.cfg.Page
	all := d.c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == d.owner && string(i.ID) > cursor })
	d.c.mu.Unlock()
	if f.List != nil {
		if err := f.List(); err != nil {
			return cloud.Listing{}, err
		}
	}
	page := cloud.Listing{Instances: all, Complete: true}
	if size > 0 && len(all) > size {
		page = cloud.Listing{Instances: all[:size], Next: string(all[size-1].ID)}
	}
	if f.Cut != nil {
		page.Instances, page.Complete = f.Cut(page.Instances)
		if !page.Complete {
			page.Next = ""
		}
	}
	return page, nil
}
