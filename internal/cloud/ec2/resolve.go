package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Resolve is cloud.Resolver's. It makes each kind of call that the driver makes, those that change
// something as dry runs.
func (p *Provider) Resolve(ctx context.Context) ([]cloud.Resolved, error) {
	return resolver{p}.resolve(ctx)
}

// resolver finds out what a configuration stands for.
type resolver struct{ *Provider }

func (p resolver) resolve(ctx context.Context) ([]cloud.Resolved, error) {
	out := []cloud.Resolved{{What: "region", Value: p.cfg.Region}}
	subnets, err := p.readSubnets(ctx)
	if fatal(ctx, err) {
		return nil, err
	}
	out = append(out, p.resolveSubnets(subnets, err)...)
	types, err := p.types.Get(ctx)
	if fatal(ctx, err) {
		return nil, err
	}
	if err != nil {
		return append(out, cloud.Resolved{What: "types", Value: strings.Join(p.cfg.Types, " "), Problem: err.Error()}), nil
	}
	images, machine := p.resolveImages(ctx, types)
	out = append(out, images...)
	offers, err := p.resolveOffers(ctx)
	if fatal(ctx, err) {
		return nil, err
	}
	out = append(out, offers...)
	rights, err := p.resolveRights(ctx, machine)
	return append(out, rights...), err
}

// fatal reports whether an error says that nothing can be found out now.
func fatal(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || muster.IsKind(err, muster.FaultTransient) || muster.IsKind(err, muster.FaultRateLimited))
}

func (p resolver) resolveSubnets(found []subnet, err error) []cloud.Resolved {
	var out []cloud.Resolved
	if err != nil {
		return append(out, cloud.Resolved{What: "subnets", Value: strings.Join(p.cfg.Subnets, " "), Problem: err.Error()})
	}
	vpc := ""
	for _, id := range p.cfg.Subnets {
		r := cloud.Resolved{What: "subnet", Value: id}
		i := slices.IndexFunc(found, func(s subnet) bool { return s.id == id })
		switch {
		case i < 0:
			r.Problem = "it is not there: find subnets with aws ec2 describe-subnets"
		case vpc != "" && found[i].vpc != vpc:
			r.Problem = fmt.Sprintf("it is in %s, and the subnets before it are in %s: security groups are of one VPC", found[i].vpc, vpc)
		default:
			vpc = found[i].vpc
			r.Value += fmt.Sprintf(" in %s, %d free addresses", found[i].zone, found[i].free)
			if found[i].free == 0 {
				r.Problem = "it has no free address"
			}
		}
		out = append(out, r)
	}
	return out
}

// resolveImages resolves the image of each architecture that the types have.
func (p resolver) resolveImages(ctx context.Context, types []typeInfo) (out []cloud.Resolved, last machineImage) {
	for _, arch := range []string{archAMD, archARM} {
		if !slices.ContainsFunc(types, func(t typeInfo) bool { return t.arch == arch }) {
			continue
		}
		r := cloud.Resolved{What: "image", Value: p.image.name + " for " + arch}
		if m, err := p.images[arch].Get(ctx); err != nil {
			r.Problem = err.Error()
		} else {
			r.Value += ": " + m.id
			if m.name != "" {
				r.Value += " (" + m.name + ")"
			}
			if last.id == "" {
				last = m
			}
		}
		out = append(out, r)
	}
	return out, last
}

// resolveOffers says what is wrong with the offerings. Whoever asks for them lists them besides.
func (p resolver) resolveOffers(ctx context.Context) ([]cloud.Resolved, error) {
	c, err := p.look(ctx)
	if err != nil {
		if fatal(ctx, err) {
			return nil, err
		}
		return []cloud.Resolved{{What: "offerings", Problem: err.Error()}}, nil
	}
	var out []cloud.Resolved
	offers, unpriced := p.offers(c)
	for _, zone := range c.zones() {
		for _, t := range c.types {
			if len(p.cfg.Types) > 0 && !slices.Contains(c.zonesOf[t.name], zone) {
				out = append(out, cloud.Resolved{What: "offering", Value: t.name + " in " + zone, Problem: "the zone does not have this type"})
			}
		}
	}
	if err := p.cfg.Types.CheckCount(offers); err != nil {
		out = append(out, cloud.Resolved{What: "offerings", Value: fmt.Sprint(len(offers)), Problem: err.Error()})
	}
	if len(unpriced) > 0 && p.wants(muster.OnDemand) {
		problem := "no price, so not offered on demand: write it in prices"
		if c.noPrices != nil {
			problem += "; the price list cannot be read: " + c.noPrices.Error()
		}
		out = append(out, cloud.Resolved{What: "price", Value: strings.Join(unpriced, " "), Problem: problem})
	}
	if len(offers) == 0 {
		out = append(out, cloud.Resolved{What: "offerings", Value: "none", Problem: "no type has a price and is in a zone of the subnets"})
	}
	return out, nil
}

// resolveRights tries each right. A right to change an instance can only be tried on one.
func (p resolver) resolveRights(ctx context.Context, machine machineImage) ([]cloud.Resolved, error) {
	var out []cloud.Resolved
	try := func(name string, err error) error {
		r := cloud.Resolved{What: "right", Value: name}
		switch {
		case fatal(ctx, err):
			return err
		case err != nil:
			r.Problem = err.Error()
		}
		out = append(out, r)
		return nil
	}
	page, err := p.List(ctx, "")
	if err := try("ec2:DescribeInstances", err); err != nil {
		return out, err
	}
	_, err = p.Leftovers(ctx)
	if err := try("ec2:DescribeVolumes", err); err != nil {
		return out, err
	}
	if p.wants(muster.Spot) {
		_, err = p.Notices(ctx)
		if err := try("ec2:DescribeSpotInstanceRequests", err); err != nil {
			return out, err
		}
	}
	if machine.id != "" {
		if err := p.tryLaunches(ctx, machine, try); err != nil {
			return out, err
		}
	}
	actions := []string{actionTerminate, actionStop, actionStart, "CreateTags"}
	if len(page.Instances) == 0 {
		return append(out, cloud.Resolved{What: "right", Value: "not tried, for there is no instance: ec2:" + strings.Join(actions, ", ec2:")}), nil
	}
	for _, action := range actions {
		form := url.Values{"DryRun": {"true"}}
		if action == "CreateTags" {
			form.Set("ResourceId.1", string(page.Instances[0].ID))
			form.Set("Tag.1.Key", driver.TagNode)
			form.Set("Tag.1.Value", string(page.Instances[0].Tags.Node))
		} else {
			form.Set("InstanceId.1", string(page.Instances[0].ID))
		}
		if err := try("ec2:"+action, dryRun(p.api.do(ctx, call{action: action, form: form, effect: driver.Reads}, nil))); err != nil {
			return out, err
		}
	}
	return out, nil
}

// tryLaunches tries one launch in each subnet, and one in each market.
func (p resolver) tryLaunches(ctx context.Context, machine machineImage, try func(string, error) error) error {
	c, err := p.look(ctx)
	if err != nil {
		return try("ec2:RunInstances", err)
	}
	offers, _ := p.offers(c)
	for _, market := range p.cfg.Markets {
		for n, s := range c.subnets {
			i := slices.IndexFunc(offers, func(o muster.Offering) bool {
				return o.Zone == s.zone && o.Market == market && o.Attributes["arch"] == machine.arch
			})
			if i < 0 || n > 0 && market == muster.Spot {
				continue
			}
			a := about{offering: offers[i].Name, zone: s.zone, market: market}
			l := &launch{about: a, image: machine, intents: []cloud.Intent{{Token: "dry-run", Node: "dry-run", Pool: "dry-run", Offering: a.offering, Zone: a.zone, Market: a.market}}}
			form := p.launchForm(l, s.id)
			form.Set("DryRun", "true")
			// A dry run makes nothing, and its token must not be used up.
			form.Del("ClientToken")
			err := dryRun(p.api.do(ctx, call{action: "RunInstances", form: form, effect: driver.Reads, about: a}, nil))
			if err := try(fmt.Sprintf("ec2:RunInstances of %s in %s, %s", a.offering, s.id, market), err); err != nil {
				return err
			}
		}
	}
	return nil
}

// dryRun is the error of a dry run: EC2 answers one that would succeed with an error, too.
func dryRun(err error) error {
	switch {
	case codeOf(err) == codeDryRun:
		return nil
	case err == nil:
		return errors.New("EC2 did not take the call for a dry run")
	}
	return err
}
