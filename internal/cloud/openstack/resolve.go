package openstack

import (
	"context"
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/utils"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Resolve is cloud.Resolver's.
func (p *Provider) Resolve(ctx context.Context) ([]cloud.Resolved, error) {
	s, err := p.signIn(ctx)
	if muster.IsKind(err, muster.FaultAuth) || muster.IsKind(err, muster.FaultInvalid) {
		return []cloud.Resolved{{What: "cloud", Value: p.cfg.Cloud, Problem: err.Error() + "; see that `openstack --os-cloud " + p.cfg.Cloud + " token issue` works here"}}, nil
	}
	if err != nil {
		return nil, err
	}
	out := []cloud.Resolved{{What: "cloud", Value: p.cfg.Cloud + ": " + s.compute.Endpoint}}
	r, err := p.resolveVersion(ctx, s)
	if err != nil {
		return nil, err
	}
	out = append(out, r)
	for _, named := range []struct {
		what, value string
		read        func(context.Context) (string, error)
	}{{"network", p.cfg.Network, p.readNetwork}, {"image", p.cfg.Image, p.readImage}} {
		r := cloud.Resolved{What: named.what, Value: named.value}
		id, err := named.read(ctx)
		switch {
		case muster.IsKind(err, muster.FaultInvalid):
			r.Problem = err.Error()
		case err != nil:
			return nil, err
		case id != named.value:
			r.Value += " (" + id + ")"
		}
		out = append(out, r)
	}
	more, err := p.resolveOffers(ctx)
	if err != nil {
		return nil, err
	}
	out = append(out, more...)
	quotas, err := p.Quotas(ctx)
	if err != nil {
		return nil, err
	}
	for _, q := range quotas {
		unit := "servers"
		if q.Weighed {
			unit = "cores"
		}
		r := cloud.Resolved{What: "quota", Value: fmt.Sprintf("%d of %d %s in use", q.Used, q.Limit, unit)}
		if q.Used >= q.Limit {
			r.Problem = "it is used up: delete servers, or ask the cloud's operator for more"
		}
		out = append(out, r)
	}
	return out, nil
}

// resolveVersion checks that Nova is new enough.
func (p *Provider) resolveVersion(ctx context.Context, s *session) (cloud.Resolved, error) {
	ctx, sent := driver.Trace(ctx)
	have, err := utils.GetSupportedMicroversions(ctx, s.compute)
	r := cloud.Resolved{What: "compute version"}
	if err != nil {
		if status(err) == 0 && ctx.Err() == nil {
			r.Problem = "the compute service names no microversions, and Muster needs " + microversion + " (Rocky)"
			return r, nil
		}
		return r, p.fault(call{what: "versions of the compute service", sent: sent}, err)
	}
	r.Value = fmt.Sprintf("%d.%d", have.MaxMajor, have.MaxMinor)
	if ok, err := have.IsSupported(microversion); err != nil || !ok {
		r.Problem = "Muster needs " + microversion + " (Rocky)"
	}
	return r, nil
}

// resolveOffers lists what is offered, and what is not for want of a price.
func (p *Provider) resolveOffers(ctx context.Context) ([]cloud.Resolved, error) {
	var out []cloud.Resolved
	offers, err := p.Offers(ctx)
	switch {
	case muster.IsKind(err, muster.FaultInvalid):
		return []cloud.Resolved{{What: "offerings", Value: strings.Join(p.cfg.Types, " "), Problem: err.Error()}}, nil
	case err != nil:
		return nil, err
	case len(offers) == 0:
		out = append(out, cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " "),
			Problem: "no flavor has a price and fits types: `openstack flavor list` prints all; name their prices in prices"})
	}
	for i := range offers {
		o := &offers[i]
		out = append(out, cloud.Resolved{What: "offering", Value: fmt.Sprintf("%s in %s: %s", o.Name, o.Zone, driver.Details(o))})
	}
	c, err := p.catalog.Get(ctx)
	if err != nil {
		return nil, err
	}
	image, err := p.imageArch.Get(ctx)
	if err != nil {
		return nil, err
	}
	var without []string
	for i := range c.flavors {
		f := &c.flavors[i]
		switch {
		case !p.wants(f, image):
		case !p.cfg.Prices.Has(f.Name):
			without = append(without, f.Name)
		case len(p.cfg.Types) > 0 && !boots(f, image):
			out = append(out, cloud.Resolved{What: "flavor", Value: f.Name, Problem: fmt.Sprintf(
				"it is for %s, and the image %s for %s: name an image for %[1]s, or leave the flavor out of types", arch(f), p.cfg.Image, image)})
		}
	}
	if len(without) > 0 {
		out = append(out, cloud.Resolved{What: "flavors without a price", Value: strings.Join(without, " ") + ": not offered"})
	}
	return out, nil
}
