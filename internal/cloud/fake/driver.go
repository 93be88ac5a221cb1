package fake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Owner is the driver of one owner. It is also a cloud.Suspender, Stopper, QuotaReader, NoticeReader and HostKeyReader.
// It is a cloud.Sweeper as well, and Bootable if the configuration says so.
func (c *Cloud) Owner(owner string) cloud.Provider {
	d := &driver{c, owner}
	if c.cfg.UserDataLimit > 0 {
		return bootable{d}
	}
	return d
}

// bootable is a driver whose instances take user data.
type bootable struct{ *driver }

// UserDataLimit is cloud.Bootable's.
func (b bootable) UserDataLimit() int { return b.c.cfg.UserDataLimit }

type driver struct {
	c     *Cloud
	owner string
}

var (
	_ cloud.Suspender     = (*driver)(nil)
	_ cloud.Stopper       = (*driver)(nil)
	_ cloud.QuotaReader   = (*driver)(nil)
	_ cloud.NoticeReader  = (*driver)(nil)
	_ cloud.HostKeyReader = (*driver)(nil)
	_ cloud.Sweeper       = (*driver)(nil)
	_ cloud.Consistent    = (*driver)(nil)
)

// anyone is a subject for calls that are about no instance.
func (d *driver) anyone() *subject { return &subject{owner: d.owner} }

// refusedLocked is what the first line of the script answers that refuses a call with "fail".
func (d *driver) refusedLocked(where string, s *subject) error {
	for _, r := range d.c.script {
		if r.where == where && r.what == "fail" && r.strikes(s, time.Since(d.c.played)) {
			return r.fault("%s: something went wrong", where)
		}
	}
	return nil
}

// strikesLocked reports whether a line of this kind strikes.
func (d *driver) strikesLocked(where, what string, s *subject) *rule {
	for _, r := range d.c.script {
		if r.where == where && r.what == what && r.strikes(s, time.Since(d.c.played)) {
			return r
		}
	}
	return nil
}

// Offers is cloud.Provider's.
func (d *driver) Offers(ctx context.Context) ([]muster.Offering, error) {
	c := d.c
	c.mu.Lock()
	c.calls.Offers++
	c.mu.Unlock()
	if err := c.wait(ctx, "offers", d.anyone(), d.owner); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := d.refusedLocked("offers", d.anyone()); err != nil {
		return nil, err
	}
	if d.strikesLocked("offers", "empty", d.anyone()) != nil {
		return nil, nil
	}
	offers := slices.Clone(c.cfg.Offerings)
	for _, r := range c.script {
		if r.where != "offers" || r.what != "lack" || !r.strikes(nil, time.Since(c.played)) {
			continue
		}
		offers = slices.DeleteFunc(offers, func(o muster.Offering) bool {
			return r.which.has(&subject{offering: o.Name, zone: o.Zone, market: o.Market, family: o.Family, pool: r.which.pool, owner: d.owner, n: r.which.Rem})
		})
	}
	return offers, nil
}

// Create is cloud.Provider's.
func (d *driver) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	c := d.c
	out := make([]cloud.Created, len(intents))
	s := d.anyone()
	c.mu.Lock()
	c.calls.Create++
	c.calls.Intents += len(intents)
	if len(intents) > 0 {
		s = c.subjectLocked(d.owner, intents[0], c.next+1)
	}
	c.mu.Unlock()
	about := d.owner
	for _, in := range intents {
		about += " " + string(in.Token)
	}
	if err := c.wait(ctx, "create", s, about); err != nil {
		for i := range out {
			out[i].Err = err
		}
		c.later("create", s, about, func() {
			for _, in := range intents {
				_, _ = d.create(in)
			}
		})
		return out
	}
	c.mu.Lock()
	limited := d.paceLocked(s)
	c.mu.Unlock()
	c.mu.Lock()
	early := d.strikesLocked("create", "early", s)
	c.mu.Unlock()
	if early != nil && limited == nil {
		for i, in := range intents {
			out[i].Instance, out[i].Err = d.create(in)
		}
		if !pause(ctx, early.slow) {
			for i := range out {
				out[i] = cloud.Created{Err: endedCall(ctx)}
			}
		}
		for i, in := range intents {
			c.tell(out[i].Err, "create for %s answers %s", in.Node, out[i].Instance.ID)
		}
		return out
	}
	for i, in := range intents {
		if out[i].Err = limited; limited == nil {
			out[i].Instance, out[i].Err = d.create(in)
		}
		c.tell(out[i].Err, "create for %s answers %s", in.Node, out[i].Instance.ID)
	}
	return out
}

// paceLocked refuses a call that comes too soon after the one before.
func (d *driver) paceLocked(s *subject) error {
	c := d.c
	now := time.Now()
	for _, r := range c.script {
		if r.where != "create" || r.what != "rate" {
			continue
		}
		if rest := r.last.Add(r.gap).Sub(now); !r.last.IsZero() && rest > 0 && r.strikes(s, now.Sub(c.played)) {
			f := r.fault("create: one every %s at most", r.gap).(*muster.Fault)
			if r.tell {
				f.After = rest
			}
			return f
		}
		r.last = now
	}
	return nil
}

func (d *driver) create(in cloud.Intent) (cloud.Instance, error) {
	c := d.c
	c.mu.Lock()
	f := c.faults
	s := c.subjectLocked(d.owner, in, c.next+1)
	there, err := d.admitLocked(in, s)
	c.mu.Unlock()
	if err != nil || there != nil {
		if there != nil {
			return there.Instance, nil
		}
		return cloud.Instance{}, err
	}
	if f.Create != nil {
		if err := f.Create(in); err != nil {
			return cloud.Instance{}, err
		}
	}
	c.mu.Lock()
	if there := d.ofLocked(in.Token); there != nil {
		c.mu.Unlock()
		return there.Instance, nil
	}
	made := c.bearLocked(d.owner, in).Instance
	var twin *cloud.Instance
	if d.strikesLocked("create", "double", s) != nil {
		second := c.bearLocked(d.owner, in).Instance
		twin = &second
	}
	lost := d.strikesLocked("create", "lost", s)
	c.mu.Unlock()
	c.born(made)
	if twin != nil {
		c.born(*twin)
	}
	if f.Lost != nil {
		if err := f.Lost(in); err != nil {
			return cloud.Instance{}, err
		}
	}
	if lost != nil {
		return cloud.Instance{}, lost.fault("create: the answer was lost")
	}
	return made, nil
}

// ofLocked is the owner's instance of a token, the first if there are two.
func (d *driver) ofLocked(t muster.Token) *instance {
	all := d.c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == d.owner && i.Tags.Token == t })
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// admitLocked says whether an intent may be carried out, or finds the instance that it has.
func (d *driver) admitLocked(in cloud.Intent, s *subject) (*instance, error) {
	c := d.c
	if in.Token == "" || in.Node == "" {
		return nil, muster.Faultf(muster.FaultInvalid, "an intent needs a token and a node")
	}
	if there := d.ofLocked(in.Token); there != nil {
		if there.dying {
			return nil, muster.Faultf(muster.FaultConflict, "instance %s of token %s is being destroyed", there.ID, in.Token)
		}
		return there, nil
	}
	if c.soldLocked(in) == nil {
		return nil, muster.Faultf(muster.FaultInvalid, "there is no offering %s", in.Offering)
	}
	if limit := c.cfg.UserDataLimit; limit > 0 && len(in.Boot.UserData.Reveal()) > limit {
		return nil, muster.Faultf(muster.FaultInvalid, "the user data is longer than %d bytes", limit)
	}
	since := time.Since(c.played)
	for _, r := range c.script {
		if r.where != "create" {
			continue
		}
		switch r.what {
		case "fail":
			if r.strikes(s, since) {
				return nil, r.fault("create: something went wrong")
			}
		case "capacity":
			if r.strikes(s, since) {
				return nil, r.fault("%s: there is none to be had now", r.which.scope())
			}
		case "quota":
			more := 1
			if o := c.soldLocked(in); o != nil {
				more = o.QuotaWeight()
			}
			if k := c.countLocked(&r.which); k+more > r.max && r.strikes(s, since) {
				return nil, r.fault("%s: the account may have %d, and has %d", r.which.scope(), r.max, k)
			}
		}
	}
	return nil, nil
}

// countLocked is what the instances that a line selects use of a quota, of all owners unless it
// names one.
func (c *Cloud) countLocked(w *selection) int {
	k := 0
	for _, i := range c.instances {
		s := c.subjectLocked(i.Tags.Owner, cloud.Intent{Pool: i.Tags.Pool, Offering: i.Offering, Zone: i.Zone, Market: i.Market}, i.seq)
		if w.has(s) {
			o := c.soldLocked(cloud.Intent{Offering: i.Offering, Zone: i.Zone, Market: i.Market})
			if o == nil {
				o = &muster.Offering{}
			}
			k += o.QuotaWeight()
		}
	}
	return k
}

// Destroy is cloud.Provider's.
func (d *driver) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	d.c.mu.Lock()
	d.c.calls.Destroy++
	d.c.mu.Unlock()
	errs := make([]error, len(ids))
	about := fmt.Sprint(ids)
	err := d.c.wait(ctx, "destroying", d.anyone(), about) // what is slow about destroys is not the call
	if err != nil {
		d.c.later("destroy", d.anyone(), about, func() {
			for _, id := range ids {
				_ = d.destroy(context.Background(), id)
			}
		})
	}
	for k, id := range ids {
		if errs[k] = err; err == nil {
			errs[k] = d.destroy(ctx, id)
		}
		d.c.tell(errs[k], "destroy of %s is answered", id)
	}
	return errs
}

func (d *driver) destroy(ctx context.Context, id muster.InstanceID) error {
	c := d.c
	c.mu.Lock()
	i, f := c.instances[id], c.faults
	if i == nil {
		c.mu.Unlock()
		return nil
	}
	if i.Tags.Owner != d.owner {
		c.mu.Unlock()
		return muster.Faultf(muster.FaultNotFound, "instance %s is of another owner", id)
	}
	s := c.subjectLocked(d.owner, cloud.Intent{Pool: i.Tags.Pool, Offering: i.Offering, Zone: i.Zone, Market: i.Market}, i.seq)
	err := d.refusedLocked("destroy", s)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if f.Destroy != nil {
		if err := f.Destroy(id); err != nil {
			return err
		}
	}
	c.mu.Lock()
	first := !i.dying
	i.dying = true
	lost, slow := d.strikesLocked("destroy", "lost", s), (*rule)(nil)
	if first {
		if slow = d.strikesLocked("destroy", "slow", s); slow != nil {
			time.AfterFunc(slow.slow, func() { c.end(i) })
		}
	}
	c.mu.Unlock()
	switch {
	case slow != nil:
	case first:
		c.end(i)
	default:
		select {
		case <-i.dead:
		case <-ctx.Done():
			return &muster.Fault{Kind: muster.FaultTransient, Message: "the call was ended", Err: ctx.Err()}
		case <-time.After(time.Second):
			// Accepted long ago, and still at it.
		}
	}
	if lost != nil {
		return lost.fault("destroy: the answer was lost")
	}
	return nil
}

// List is cloud.Provider's.
func (d *driver) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	page, err := d.list(ctx, cursor)
	d.c.tell(err, "list after %q has %d instances, next %q, complete: %v", cursor, len(page.Instances), page.Next, page.Complete)
	return page, err
}

func (d *driver) list(ctx context.Context, cursor string) (cloud.Listing, error) {
	c := d.c
	c.mu.Lock()
	c.calls.List++
	c.mu.Unlock()
	if err := c.wait(ctx, "list", d.anyone(), d.owner+cursor); err != nil {
		return cloud.Listing{}, err
	}
	after, _ := strconv.Atoi(cursor)
	c.mu.Lock()
	f, size, s := c.faults, c.cfg.Page, d.anyone()
	err := d.refusedLocked("list", s)
	var all []*instance
	if stale := d.strikesLocked("list", "stale", s); stale != nil && stale.slow > 0 {
		all = d.asOfLocked(time.Now().Add(-time.Duration(stale.Chance.Int64N(int64(stale.slow)))), after)
	} else {
		all = c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == d.owner && i.seq > after && !i.halted })
	}
	page := cloud.Listing{Complete: true}
	if size > 0 && len(all) > size {
		page.Next, page.Complete = strconv.Itoa(all[size-1].seq), false
		all = all[:size]
	}
	page.Instances = plain(all)
	switch {
	case d.strikesLocked("list", "empty", s) != nil:
		page = cloud.Listing{Complete: true}
	case d.strikesLocked("list", "short", s) != nil:
		page = cloud.Listing{Instances: page.Instances[:len(all)/2], Complete: true}
	case d.strikesLocked("list", "twice", s) != nil:
		page.Instances = append(page.Instances, page.Instances...)
	case d.strikesLocked("list", "cut", s) != nil:
		page = cloud.Listing{Instances: page.Instances[:len(all)/2]}
	}
	c.mu.Unlock()
	if err == nil && f.List != nil {
		err = f.List()
	}
	if err != nil {
		return cloud.Listing{}, err
	}
	if f.Cut != nil && page.Next == "" {
		page.Instances, page.Complete = f.Cut(page.Instances)
	}
	return page, nil
}

// asOfLocked is what there was of the owner at a moment, after a number.
func (d *driver) asOfLocked(t time.Time, after int) []*instance {
	was := func(i *instance) bool { return i.Tags.Owner == d.owner && i.seq > after && !i.born.After(t) }
	all := d.c.sortedLocked(was)
	for _, i := range d.c.past {
		if was(i) && i.gone.After(t) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b *instance) int { return a.seq - b.seq })
	return all
}

// mineLocked finds an instance of the owner.
func (d *driver) mineLocked(id muster.InstanceID) (*instance, error) {
	if i := d.c.instances[id]; i != nil && i.Tags.Owner == d.owner {
		return i, nil
	}
	return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", id)
}

// SetTags is cloud.Provider's.
func (d *driver) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	c := d.c
	if err := c.wait(ctx, "tags", d.anyone(), string(id)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.SetTags++
	if err := d.refusedLocked("tags", d.anyone()); err != nil {
		return err
	}
	i, err := d.mineLocked(id)
	if err != nil {
		return err
	}
	if tags.Owner != i.Tags.Owner || tags.Token != i.Tags.Token {
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner and its token are for ever", id)
	}
	i.Tags = tags
	return nil
}

// Suspend is cloud.Suspender's.
func (d *driver) Suspend(ctx context.Context, ids []muster.InstanceID) []error {
	return d.turn(ctx, ids, "suspend", true, func(i *instance) *bool { return &i.suspended }, d.c.cfg.Suspended)
}

// Resume is cloud.Suspender's.
func (d *driver) Resume(ctx context.Context, ids []muster.InstanceID) []error {
	return d.turn(ctx, ids, "suspend", false, func(i *instance) *bool { return &i.suspended }, d.c.cfg.Suspended)
}

// Stop is cloud.Stopper's.
func (d *driver) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return d.turn(ctx, ids, "stop", true, func(i *instance) *bool { return &i.stopped }, d.c.cfg.Stopped)
}

// Start is cloud.Stopper's.
func (d *driver) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return d.turn(ctx, ids, "stop", false, func(i *instance) *bool { return &i.stopped }, d.c.cfg.Stopped)
}

// turn sets a flag of instances and tells of those for which it changes.
func (d *driver) turn(ctx context.Context, ids []muster.InstanceID, call string, off bool, flag func(*instance) *bool, told func(cloud.Instance, bool)) []error {
	errs := make([]error, len(ids))
	err := d.c.wait(ctx, call, d.anyone(), fmt.Sprint(ids))
	for k, id := range ids {
		if errs[k] = err; err != nil {
			continue
		}
		d.c.mu.Lock()
		i, err := d.mineLocked(id)
		if refuse := d.c.faults.Switch; err == nil && call == "stop" && refuse != nil {
			err = refuse(id, off)
		}
		turned := err == nil && *flag(i) != off
		if turned {
			*flag(i) = off
		}
		d.c.mu.Unlock()
		if errs[k] = err; turned && told != nil {
			told(i.Instance, off)
		}
	}
	return errs
}

// Quotas is cloud.QuotaReader's: those of the script's lines that select by family or by nothing.
func (d *driver) Quotas(ctx context.Context) ([]cloud.Quota, error) {
	if err := d.c.wait(ctx, "offers", d.anyone(), d.owner); err != nil {
		return nil, err
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	var out []cloud.Quota
	for _, r := range d.c.script {
		if w := r.which; r.what == "quota" && w == (selection{family: w.family}) {
			out = append(out, cloud.Quota{Family: w.family, Limit: r.max, Used: d.c.countLocked(&w)})
		}
	}
	return out, nil
}

// Notices is cloud.NoticeReader's.
func (d *driver) Notices(ctx context.Context) ([]cloud.Notice, error) {
	if err := d.c.wait(ctx, "notices", d.anyone(), d.owner); err != nil {
		return nil, err
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	d.c.calls.Notices++
	var out []cloud.Notice
	for _, i := range d.c.sortedLocked(func(i *instance) bool { return i.Tags.Owner == d.owner && !i.notice.IsZero() }) {
		out = append(out, cloud.Notice{Instance: i.ID, At: muster.At(i.notice)})
	}
	return out, nil
}

// HostKeys is cloud.HostKeyReader's.
func (d *driver) HostKeys(ctx context.Context, id muster.InstanceID) ([]string, error) {
	if err := d.c.wait(ctx, "host-keys", d.anyone(), string(id)); err != nil {
		return nil, err
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if _, err := d.mineLocked(id); err != nil {
		return nil, err
	}
	return []string{KeyLine(d.c.key(id, false))}, nil
}

// Consistency is cloud.Consistent's.
func (d *driver) Consistency() cloud.Consistency {
	return cmp.Or(d.c.cfg.Consistency, cloud.DefaultConsistency)
}

// Leftovers is cloud.Sweeper's.
func (d *driver) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	if err := d.c.wait(ctx, "list", d.anyone(), "leftovers of "+d.owner); err != nil {
		return nil, err
	}
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	var out []cloud.Leftover
	for _, l := range d.c.left {
		if l.owner == d.owner {
			out = append(out, l.Leftover)
		}
	}
	return out, nil
}

// Remove is cloud.Sweeper's.
func (d *driver) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	err := d.c.wait(ctx, "destroying", d.anyone(), fmt.Sprint(of))
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	for k, l := range of {
		if errs[k] = err; err == nil {
			d.c.left = slices.DeleteFunc(d.c.left, func(x leftover) bool { return x.owner == d.owner && x.ID == l.ID })
		}
	}
	return errs
}
