package gce

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Resolve is cloud.Resolver's.
func (p *Provider) Resolve(ctx context.Context) ([]cloud.Resolved, error) {
	out := []cloud.Resolved{{What: "project", Value: p.cfg.Project}}
	wrong := false
	for _, zone := range p.cfg.Zones {
		var got struct {
			Status string `json:"status"`
		}
		r, err := p.found(ctx, call{what: "zone"}, zone, "/zones/"+zone, &got, "`gcloud compute zones list` prints those that are")
		if err != nil {
			return nil, err
		}
		if r.Problem == "" && got.Status == "DOWN" {
			r.Problem = "the cloud says that it is down: name others in zones meanwhile"
		}
		wrong = wrong || r.Problem != ""
		out = append(out, r)
	}
	if wrong {
		return out, nil // nothing else can be read
	}
	for _, name := range p.names() {
		path := p.subnetwork(name)
		below, ok := strings.CutPrefix(path, "projects/"+p.cfg.Project)
		if !ok {
			// A subnetwork of another project: this one may use it and not read it.
			out = append(out, cloud.Resolved{What: "subnetwork", Value: path})
			continue
		}
		var got struct {
			Range string `json:"ipCidrRange"`
		}
		r, err := p.found(ctx, call{what: "subnetwork"}, path, below, &got, "`gcloud compute networks subnets list` prints those that are; name one in network")
		if err != nil {
			return nil, err
		}
		if r.Problem == "" {
			r.Value += " (" + got.Range + ")"
		}
		out = append(out, r)
	}
	offers, err := p.Offers(ctx)
	switch {
	case muster.IsKind(err, muster.FaultInvalid):
		return append(out, cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " "), Problem: err.Error()}), nil
	case err != nil:
		return nil, err
	case len(offers) == 0:
		out = append(out, cloud.Resolved{What: "offerings", Value: strings.Join(p.cfg.Types, " "),
			Problem: "no machine type of these zones fits types and has a price in prices: `gcloud compute machine-types list` prints all"})
	}
	images, err := p.resolveImages(ctx, offers)
	if err != nil {
		return nil, err
	}
	out = append(out, images...)
	for i := range offers {
		o := &offers[i]
		out = append(out, cloud.Resolved{What: "offering", Value: fmt.Sprintf("%s in %s, %s: %s", o.Name, o.Zone, o.Market, driver.Details(o))})
	}
	return out, nil
}

// found reads one thing. That it is missing, or that this account may not read it, is a problem.
func (p *Provider) found(ctx context.Context, c call, value, path string, into any, hint string) (cloud.Resolved, error) {
	r := cloud.Resolved{What: c.what, Value: value}
	c.what += " " + value
	switch err := p.do(ctx, c, http.MethodGet, path, nil, nil, into); {
	case err == nil:
	case muster.IsKind(err, muster.FaultNotFound), muster.IsKind(err, muster.FaultInvalid):
		r.Problem = "there is none of this name: " + hint
	case muster.IsKind(err, muster.FaultAuth):
		r.Problem = err.Error() + ": give the account the rights that docs/clouds/gce.md names"
	default:
		return r, err
	}
	return r, nil
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
		path := p.image(a)
		parts := strings.SplitN(path, "/", 3)
		if len(parts) < 3 || parts[0] != "projects" {
			out = append(out, cloud.Resolved{What: "image for " + a, Value: path, Problem: "it is not a path: write it as projects/P/global/images/NAME or projects/P/global/images/family/NAME"})
			continue
		}
		var got struct {
			Name         string `json:"name"`
			Architecture string `json:"architecture"`
		}
		r, err := p.found(ctx, call{what: "image for " + a, project: parts[1]}, path, "/"+parts[2], &got, "`gcloud compute images list` prints those that are")
		if err != nil {
			return nil, err
		}
		if r.Problem == "" {
			r.Value = got.Name
			if got.Architecture != "" && (got.Architecture == "ARM64") != (a == "arm64") {
				r.Problem = fmt.Sprintf("it is for %s: name types of one architecture in types, or an image for the other", got.Architecture)
			}
		}
		out = append(out, r)
	}
	return out, nil
}
