package hetzner

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Resolve is cloud.Resolver's.
func (p *Provider) Resolve(ctx context.Context) ([]cloud.Resolved, error) {
	var out []cloud.Resolved
	locations, err := p.api.Location.All(ctx)
	if err != nil {
		f := p.found(ctx, "locations", err)
		if f.Kind != muster.FaultAuth {
			return nil, f
		}
		return append(out, cloud.Resolved{What: "token", Value: p.cfg.TokenFile, Problem: f.Error() + "; make one that may read and write in the console, under Security, API tokens"}), nil
	}
	out = append(out, cloud.Resolved{What: "token", Value: "accepted"})
	for _, name := range p.cfg.Locations {
		r := cloud.Resolved{What: "location", Value: name}
		if i := slices.IndexFunc(locations, func(l *hcloud.Location) bool { return l.Name == name }); i >= 0 {
			r.Value += " in " + locations[i].City
		} else {
			r.Problem = "there is none of this name: hcloud location list prints those that are"
		}
		out = append(out, r)
	}
	offers, err := p.Offers(ctx)
	switch {
	case muster.IsKind(err, muster.FaultInvalid):
		out = append(out, cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " "), Problem: err.Error()})
	case err != nil:
		return nil, err
	case len(offers) == 0:
		out = append(out, cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " "), Problem: "no server type fits types in these locations: hcloud server-type list prints all"})
	}
	images, err := p.resolveImages(ctx, offers)
	if err != nil {
		return nil, err
	}
	out = append(out, images...)
	for i := range offers {
		o := &offers[i]
		r := cloud.Resolved{What: "offering", Value: fmt.Sprintf("%s in %s: %s", o.Name, o.Zone, driver.Details(o))}
		if !o.Available {
			r.Value += ", not sold any more"
		}
		out = append(out, r)
	}
	if p.cfg.Network != "" {
		r := cloud.Resolved{What: "network", Value: p.cfg.Network}
		id, err := p.readNetwork(ctx)
		switch {
		case muster.IsKind(err, muster.FaultInvalid):
			r.Problem = err.Error()
		case err != nil:
			return nil, err
		default:
			r.Value += fmt.Sprintf(" (%d)", id)
		}
		out = append(out, r)
	}
	return out, nil
}

// found is the fault of a read.
func (p *Provider) found(ctx context.Context, what string, err error) *muster.Fault {
	_, sent := driver.Trace(ctx)
	return p.fault(call{what: "list of " + what, sent: sent}, nil, err)
}

// resolveImages looks for the image, for each architecture that is offered.
func (p *Provider) resolveImages(ctx context.Context, offers []muster.Offering) ([]cloud.Resolved, error) {
	var arches []string
	for i := range offers {
		if a := offers[i].Attributes["arch"]; !slices.Contains(arches, a) {
			arches = append(arches, a)
		}
	}
	slices.Sort(arches)
	var out []cloud.Resolved
	for _, a := range arches {
		of := hcloud.ArchitectureX86
		if a == "arm64" {
			of = hcloud.ArchitectureARM
		}
		image, _, err := p.api.Image.GetForArchitecture(ctx, p.cfg.Image, of)
		if err != nil {
			return nil, p.found(ctx, "images", err)
		}
		r := cloud.Resolved{What: "image for " + a, Value: p.cfg.Image}
		switch {
		case image == nil:
			r.Problem = "there is none: hcloud image list prints those that are"
		case image.Architecture != of:
			r.Problem = fmt.Sprintf("it is for %s: name types of one architecture in types, or an image that has both", arch(image.Architecture))
		default:
			r.Value = strings.TrimSpace(image.Description + " (" + strconv.FormatInt(image.ID, 10) + ")")
			if image.IsDeprecated() {
				r.Problem = "it is deprecated and will go: choose a newer one"
			}
		}
		out = append(out, r)
	}
	return out, nil
}
