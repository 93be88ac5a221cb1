package azure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Resolve is cloud.Resolver's.
func (p *Provider) Resolve(ctx context.Context) ([]cloud.Resolved, error) {
	group := cloud.Resolved{What: "resource group", Value: p.cfg.ResourceGroup + " of subscription " + p.cfg.Subscription}
	_, err := p.List(ctx, "")
	switch {
	case muster.IsKind(err, muster.FaultAuth), muster.IsKind(err, muster.FaultInvalid):
		group.Problem = err.Error()
		return []cloud.Resolved{group}, nil
	case err != nil:
		return nil, err
	}
	out := []cloud.Resolved{group}
	for _, find := range []func(context.Context) ([]cloud.Resolved, error){p.resolveSubnet, p.resolveKey, p.resolveOffers, p.resolveQuotas} {
		found, err := find(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// problem makes a finding of what is wrong with the configuration or the rights; another error is a
// failure to find out.
func problem(r cloud.Resolved, err error) ([]cloud.Resolved, error) {
	if muster.IsKind(err, muster.FaultAuth) || muster.IsKind(err, muster.FaultInvalid) || muster.IsKind(err, muster.FaultNotFound) {
		r.Problem = err.Error()
		return []cloud.Resolved{r}, nil
	}
	return []cloud.Resolved{r}, err
}

func (p *Provider) resolveSubnet(ctx context.Context) ([]cloud.Resolved, error) {
	m := subnetShape.FindStringSubmatch(p.cfg.Subnet)
	r := cloud.Resolved{What: "subnet", Value: m[3] + " of network " + m[2]}
	ctx, sent := driver.Trace(ctx)
	got, err := p.nets.Get(ctx, m[1], m[2], m[3], nil)
	if err != nil {
		return problem(r, p.fault(call{what: "subnet " + m[3], sent: sent}, err))
	}
	if got.Properties != nil {
		r.Value += ", " + of(got.Properties.AddressPrefix)
	}
	return []cloud.Resolved{r}, nil
}

func (p *Provider) resolveKey(context.Context) ([]cloud.Resolved, error) {
	r := cloud.Resolved{What: "ssh key", Value: p.cfg.Access.KeyFile + " of user " + p.cfg.Access.User}
	_, err := p.publicKey()
	return problem(r, err)
}

func (p *Provider) resolveOffers(ctx context.Context) ([]cloud.Resolved, error) {
	r := cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " ")}
	offers, err := p.Offers(ctx)
	switch {
	case err != nil:
		return problem(r, err)
	case len(offers) == 0:
		r.Problem = "no size with a price fits types, zones and markets: az vm list-skus --location " + p.cfg.Location + " prints all"
		return []cloud.Resolved{r}, nil
	}
	var out []cloud.Resolved
	var arches []string
	for i := range offers {
		o := &offers[i]
		r := cloud.Resolved{What: "offering", Value: fmt.Sprintf("%s in %s, %s: %s", o.Name, o.Zone, o.Market, driver.Details(o))}
		if !o.Available {
			r.Value += ", not available to this subscription"
		}
		out = append(out, r)
		if a := o.Attributes["arch"]; !slices.Contains(arches, a) {
			arches = append(arches, a)
		}
	}
	slices.Sort(arches)
	for _, arch := range arches {
		r := cloud.Resolved{What: "image for " + arch, Value: p.image.id}
		if p.image.id == "" {
			version, err := p.versions[arch].Get(ctx)
			if err != nil {
				found, err := problem(cloud.Resolved{What: r.What, Value: p.cfg.Image}, err)
				if err != nil {
					return nil, err
				}
				out = append(out, found...)
				continue
			}
			r.Value = strings.Join([]string{p.image.publisher, p.image.offer, p.image.sku[arch], version}, ":")
			if r.Problem, err = p.wrongImage(ctx, arch, version); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// wrongImage says why sizes of an architecture cannot boot a version of the image of the marketplace;
// empty: they can, or nobody says for what it is.
func (p *Provider) wrongImage(ctx context.Context, arch, version string) (string, error) {
	ctx, sent := driver.Trace(ctx)
	sku := p.image.sku[arch]
	got, err := p.images.Get(ctx, p.cfg.Location, p.image.publisher, p.image.offer, sku, version, nil)
	if err != nil {
		f := p.fault(call{what: fmt.Sprintf("image %s:%s:%s:%s", p.image.publisher, p.image.offer, sku, version), sent: sent}, err)
		if muster.IsKind(f, muster.FaultAuth) || muster.IsKind(f, muster.FaultInvalid) || muster.IsKind(f, muster.FaultNotFound) {
			return f.Error(), nil
		}
		return "", f
	}
	if got.Properties == nil || got.Properties.Architecture == nil {
		return "", nil
	}
	if is := of(got.Properties.Architecture); (is == armcompute.ArchitectureTypesArm64) != (arch == "arm64") {
		return fmt.Sprintf("it is for %s: name sizes of one architecture in types, or an image that has both", is), nil
	}
	return "", nil
}

func (p *Provider) resolveQuotas(ctx context.Context) ([]cloud.Resolved, error) {
	all, err := p.Quotas(ctx)
	if err != nil {
		return problem(cloud.Resolved{What: "quotas"}, err)
	}
	var out []cloud.Resolved
	for _, q := range all {
		r := cloud.Resolved{What: "quota", Value: fmt.Sprintf("%s: %d of %d cores in use", q.Family, q.Used, q.Limit)}
		if q.Limit == 0 {
			r.Problem = "this subscription may have none: ask for more in the portal under Quotas, or leave the sizes or the market out"
		}
		out = append(out, r)
	}
	return out, nil
}
