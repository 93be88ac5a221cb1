package gce

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Kinds of what can stay behind. Disks and addresses that a create makes go with the instance, unless
// somebody takes them off it or gives an address the owner's label.
const diskKind, addressKind = "disk", "address"

// Leftovers is cloud.Sweeper's: disks and addresses with the owner's label that nothing uses.
func (p *Provider) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	var out []cloud.Leftover
	disks, err := all(ctx, p, "disks", func(s scopedDisks) []thing { return s.Disks })
	if err != nil {
		return nil, err
	}
	addresses, err := all(ctx, p, "addresses", func(s scopedAddresses) []thing { return s.Addresses })
	if err != nil {
		return nil, err
	}
	for scope, things := range disks {
		out = append(out, p.left(diskKind, "zones/", scope, things)...)
	}
	for scope, things := range addresses {
		out = append(out, p.left(addressKind, "regions/", scope, things)...)
	}
	return out, nil
}

// all reads the things of one kind with the owner's label, by scope.
func all[T any](ctx context.Context, p *Provider, kind string, of func(T) []thing) (map[string][]thing, error) {
	query := url.Values{"filter": {"labels." + driver.TagOwner + "=" + p.cfg.Owner}, "maxResults": {strconv.Itoa(maxPage)}, "returnPartialSuccess": {"true"}}
	out := map[string][]thing{}
	for {
		var page aggregated[T]
		if err := p.do(ctx, call{what: "list of " + kind}, http.MethodGet, "/aggregated/"+kind, query, nil, &page); err != nil {
			return nil, err
		}
		for scope, items := range page.Items {
			out[scope] = append(out[scope], of(items)...)
		}
		if page.NextPageToken == "" {
			return out, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// left are the leftovers of a scope, as zones/europe-west1-b.
func (p *Provider) left(kind, prefix, scope string, things []thing) []cloud.Leftover {
	place, ok := strings.CutPrefix(scope, prefix)
	if !ok {
		return nil // of a region, or global: no create makes such a thing
	}
	var out []cloud.Leftover
	for i := range things {
		if p.unused(&things[i]) {
			out = append(out, cloud.Leftover{Kind: kind, ID: place + "/" + things[i].Name, Created: timeOf(things[i].CreationTimestamp)})
		}
	}
	return out
}

func (p *Provider) unused(t *thing) bool {
	return t.Labels[driver.TagOwner] == p.cfg.Owner && len(t.Users) == 0
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	driver.Each(len(of), atOnce, func(i int) { errs[i] = p.remove(ctx, of[i]) })
	return errs
}

func (p *Provider) remove(ctx context.Context, of cloud.Leftover) error {
	what := of.Kind + " " + of.ID
	place, name, ok := strings.Cut(of.ID, "/")
	path := ""
	switch {
	case !ok || !labelKey.MatchString(place) || !labelKey.MatchString(name):
	case of.Kind == diskKind:
		path = "/zones/" + place + "/disks/" + name
	case of.Kind == addressKind:
		path = "/regions/" + place + "/addresses/" + name
	}
	if path == "" {
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud leaves no such thing", what)
	}
	var t thing
	switch err := p.do(ctx, call{what: what}, http.MethodGet, path, nil, nil, &t); {
	case muster.IsKind(err, muster.FaultNotFound):
		return nil
	case err != nil:
		return err
	case !p.unused(&t):
		return muster.Faultf(muster.FaultNotFound, "%s is not a leftover of owner %s", what, p.cfg.Owner)
	}
	var op operation
	err := p.do(ctx, call{what: "delete " + what}, http.MethodDelete, path, nil, nil, &op)
	if err != nil && !muster.IsKind(err, muster.FaultNotFound) {
		return err
	}
	return nil
}
