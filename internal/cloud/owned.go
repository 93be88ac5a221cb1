package cloud

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/musterhq/muster"
)

// Owned keeps a driver to its promises about owners. A driver whose filter is
// wrong would otherwise hand the fleet machines that are not Muster's, and the fleet would sweep them away:
//
//   - an instance without the owner's tag, or with an empty id, is in no list; one that is listed twice is listed once;
//   - such an instance is neither destroyed nor tagged (FaultNotFound), until a list shows the owner's tag
//     or none has shown it for ten minutes;
//   - an empty id never reaches a driver: there are clouds that take an empty filter for "all";
//   - a created instance that bears other tags than were asked for is FaultAmbiguous.
type Owned struct {
	p     Provider
	owner string

	mu sync.Mutex
	// foreign is when an instance was last listed with another owner or none.
	foreign map[muster.InstanceID]time.Time
}

// foreignFor is how long an instance counts as another's after a list showed it so. A list that lags
// in tags shows an instance of ours without them once; it must not be left alone for ever.
const foreignFor = 10 * time.Minute

// NewOwned goes around p, a driver of this owner.
func NewOwned(p Provider, owner string) *Owned {
	return &Owned{p: p, owner: owner, foreign: map[muster.InstanceID]time.Time{}}
}

// Unwrap is Wrapper's.
func (o *Owned) Unwrap() Provider { return o.p }

// Offers is Provider's.
func (o *Owned) Offers(ctx context.Context) ([]muster.Offering, error) { return o.p.Offers(ctx) }

// Create is Provider's.
func (o *Owned) Create(ctx context.Context, intents []Intent) []Created {
	out := o.p.Create(ctx, intents)
	for i := range min(len(out), len(intents)) {
		if r := &out[i]; r.Err == nil && (r.Instance.ID == "" || r.Instance.Tags.Owner != o.owner || r.Instance.Tags.Token != intents[i].Token) {
			r.Err = muster.Faultf(muster.FaultAmbiguous, "token %s of owner %s was asked for, and the driver answers with instance %q of token %s and owner %q",
				intents[i].Token, o.owner, r.Instance.ID, r.Instance.Tags.Token, r.Instance.Tags.Owner)
			r.Instance = Instance{}
		}
	}
	return out
}

// Destroy is Provider's.
func (o *Owned) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	errs := make([]error, len(ids))
	var ask []muster.InstanceID
	var at []int
	for i, id := range ids {
		switch {
		case id == "":
		case o.isForeign(id):
			errs[i] = o.notMine(id)
		default:
			ask, at = append(ask, id), append(at, i)
		}
	}
	if len(ask) == 0 {
		return errs
	}
	got := o.p.Destroy(ctx, ask)
	for k, i := range at {
		if k < len(got) {
			errs[i] = got[k]
		} else {
			errs[i] = muster.Faultf(muster.FaultAmbiguous, "the driver did not answer for instance %s", ids[i])
		}
	}
	return errs
}

// List is Provider's.
func (o *Owned) List(ctx context.Context, cursor string) (Listing, error) {
	page, err := o.p.List(ctx, cursor)
	seen := map[muster.InstanceID]bool{}
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.foreign, func(_ muster.InstanceID, at time.Time) bool { return time.Since(at) >= foreignFor })
	page.Instances = slices.DeleteFunc(page.Instances, func(i Instance) bool {
		mine := i.ID != "" && i.Tags.Owner == o.owner
		switch {
		case mine:
			delete(o.foreign, i.ID)
		case i.ID != "":
			o.foreign[i.ID] = time.Now()
		}
		twice := seen[i.ID]
		seen[i.ID] = true
		return !mine || twice
	})
	return page, err
}

// SetTags is Provider's.
func (o *Owned) SetTags(ctx context.Context, id muster.InstanceID, tags Tags) error {
	switch {
	case id == "" || o.isForeign(id):
		return o.notMine(id)
	case tags.Owner != o.owner:
		return muster.Faultf(muster.FaultInvalid, "instance %s: its owner is %s for ever, not %s", id, o.owner, tags.Owner)
	}
	return o.p.SetTags(ctx, id, tags)
}

func (o *Owned) isForeign(id muster.InstanceID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.foreign[id]
	return ok && time.Since(at) < foreignFor
}

func (o *Owned) notMine(id muster.InstanceID) error {
	return muster.Faultf(muster.FaultNotFound, "instance %q is not of owner %s", id, o.owner)
}
