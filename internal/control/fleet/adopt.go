package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/mend"
	"github.com/musterhq/muster/internal/state"
)

// adopt commits instances of ours that the state does not know. If the configuration has no use for
// one, the next pass ends it. An instance whose tags name its node gets that id again.
func (f *Fleet) adopt(ctx context.Context, found []mend.Adoption) {
	var b batch
	for _, a := range found {
		id := a.Node
		if id == "" {
			id = f.ids.node()
		}
		adopted := &state.NodeAdopted{ID: id, Token: a.Token, Pool: a.Pool, Offering: a.Offering, Instance: a.Instance, Intent: a.Intent}
		// The key of the user data. Package reach also knows the one that replaces it.
		if boot, err := f.Boot(a.Offering.Provider, a.Token); err == nil {
			adopted.HostKey = boot.HostKey
		}
		b.add(adopted)
	}
	f.commit(ctx, &b)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, err := range b.errs {
		if err == nil {
			f.stats.Adopted++
		}
	}
}

// sameOffering reports whether two offerings are equal in all that the state keeps.
func sameOffering(a, b muster.Offering) bool {
	return a.Provider == b.Provider && a.Name == b.Name && a.Zone == b.Zone && a.Market == b.Market && a.Price == b.Price &&
		a.Capacity == b.Capacity && a.Available == b.Available && a.Limit == b.Limit && a.Family == b.Family && a.Weight == b.Weight && maps.Equal(a.Attributes, b.Attributes) && a.PriceCap == b.PriceCap && slices.Equal(a.Devices, b.Devices)
}

// afterOf returns after how long the provider asked to be called again; 0 if it did not say.
func afterOf(err error) time.Duration {
	var fault *muster.Fault
	if errors.As(err, &fault) {
		return fault.After
	}
	return 0
}
