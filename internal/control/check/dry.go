package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Dry says what a provider makes of its configuration, and what it offers. It creates nothing. The
// error is FaultInvalid if anything is wrong; each problem was said by then.
func Dry(ctx context.Context, p cloud.Provider, say func(step, text string)) error {
	problems := 0
	if r, ok := cloud.As[cloud.Resolver](p); ok {
		list, err := r.Resolve(ctx)
		if err != nil {
			return fmt.Errorf("resolve: %w", err)
		}
		for _, l := range list {
			if l.Problem == "" {
				say(l.What, l.Value)
				continue
			}
			problems++
			say("problem", fmt.Sprintf("%s %s: %s", l.What, l.Value, l.Problem))
		}
	}
	offers, err := p.Offers(ctx)
	if err != nil {
		return fmt.Errorf("offers: %w", err)
	}
	slices.SortStableFunc(offers, func(a, b muster.Offering) int { return cmp.Compare(a.Price, b.Price) })
	for i := range offers {
		say("offering", offerText(&offers[i]))
	}
	switch {
	case problems > 0:
		return muster.Faultf(muster.FaultInvalid, "%d of what the configuration needs is missing or wrong; see the lines that begin with problem", problems)
	case len(offers) == 0:
		return muster.Faultf(muster.FaultInvalid, "it offers nothing: types, zones or prices leave nothing over")
	}
	return nil
}

// offerText describes an offering in a line.
func offerText(o *muster.Offering) string {
	text := fmt.Sprintf("%s: %s, %.4f per hour", o.Name, o.Capacity, float64(o.Price)/1e6)
	if o.Zone != "" {
		text += ", zone " + o.Zone
	}
	if o.Market != "" && o.Market != muster.OnDemand {
		text += ", " + string(o.Market)
	}
	if !o.Available {
		text += ", not available now"
	}
	return text
}
