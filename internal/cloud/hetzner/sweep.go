package hetzner

import (
	"context"
	"errors"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// errForeign marks a server that exists and is another's.
var errForeign = errors.New("it is not of this owner")

func isForeign(err error) bool { return errors.Is(err, errForeign) }

// primaryIP is the kind of the one thing that can stay behind.
const primaryIP = "primary-ip"

// Leftovers is cloud.Sweeper's: primary IPs with the owner's label that no server has. An address
// that is made with a server goes with it; one that somebody has made apart does not.
func (p *Provider) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	ctx, sent := driver.Trace(ctx)
	var out []cloud.Leftover
	for page := 1; ; page++ {
		got, resp, err := p.api.PrimaryIP.List(ctx, hcloud.PrimaryIPListOpts{
			ListOpts: hcloud.ListOpts{Page: page, PerPage: maxPage, LabelSelector: driver.TagOwner + "==" + p.cfg.Owner}})
		if err != nil {
			return nil, p.fault(call{what: "list of primary IPs", sent: sent}, resp, err)
		}
		for _, ip := range got {
			if p.left(ip) {
				out = append(out, cloud.Leftover{Kind: primaryIP, ID: strconv.FormatInt(ip.ID, 10), Created: muster.At(ip.Created)})
			}
		}
		if resp.Meta.Pagination == nil || resp.Meta.Pagination.NextPage <= page {
			return out, nil
		}
	}
}

func (p *Provider) left(ip *hcloud.PrimaryIP) bool {
	return ip.Labels[driver.TagOwner] == p.cfg.Owner && ip.AssigneeID == 0 && !ip.Protection.Delete
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	driver.Each(len(of), driver.AtOnce, func(i int) { errs[i] = p.remove(ctx, of[i]) })
	return errs
}

func (p *Provider) remove(ctx context.Context, of cloud.Leftover) error {
	what := of.Kind + " " + of.ID
	n, ok := numberOf(muster.InstanceID(of.ID))
	if !ok || of.Kind != primaryIP {
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud leaves no such thing", what)
	}
	ctx, sent := driver.Trace(ctx)
	ip, resp, err := p.api.PrimaryIP.GetByID(ctx, n)
	switch {
	case err != nil:
		return p.fault(call{what: what, sent: sent}, resp, err)
	case ip == nil:
		return nil
	case !p.left(ip):
		return muster.Faultf(muster.FaultNotFound, "%s is not a leftover of owner %s", what, p.cfg.Owner)
	}
	if resp, err = p.api.PrimaryIP.Delete(ctx, ip); err != nil {
		if f := p.fault(call{what: "delete " + what, sent: sent}, resp, err); f.Kind != muster.FaultNotFound {
			return f
		}
	}
	return nil
}
