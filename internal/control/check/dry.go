package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// Dry says what a provider makes of its configuration, and what it offers. It creates nothing. program
// returns an error if there is no agent for machines of an architecture. The error is FaultInvalid if
// anything is wrong; each problem was said by then.
func Dry(ctx context.Context, p cloud.Provider, program func(arch string) error, say func(step, text string)) error {
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
	problems += sayPrograms(p, offers, program, say)
	switch {
	case problems > 0:
		return muster.Faultf(muster.FaultInvalid, "%d of what the configuration needs is missing or wrong; see the lines that begin with problem", problems)
	case len(offers) == 0:
		return muster.Faultf(muster.FaultInvalid, "it offers nothing: types, zones or prices leave nothing over")
	}
	return nil
}

// sayPrograms says for which architectures of the offerings there is no agent, and returns how many
// these are. A provider that starts its agents by itself has them.
func sayPrograms(p cloud.Provider, offers []muster.Offering, program func(arch string) error, say func(step, text string)) (missing int) {
	if _, ok := cloud.As[cloud.AgentStarter](p); ok {
		return 0
	}
	seen := map[string]bool{}
	for i := range offers {
		arch := offers[i].Attributes[muster.AttributeArch]
		if arch == "" || seen[arch] {
			continue
		}
		seen[arch] = true
		if err := program(arch); err != nil {
			missing++
			say("problem", fmt.Sprintf("machines for %s, as %s: %v", arch, offers[i].Name, err))
		}
	}
	return missing
}

// offerText describes an offering in a line.
func offerText(o *muster.Offering) string {
	text := fmt.Sprintf("%s: %s, %.4f per hour", o.Name, o.Capacity, float64(o.Price)/1e6)
	for _, d := range o.Devices {
		text += ", " + d.String()
	}
	if a := o.Attributes[muster.AttributeArch]; a != "" && a != "amd64" {
		text += ", " + a
	}
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
