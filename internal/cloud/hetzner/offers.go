package hetzner

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// maxCores bounds the types that are offered where no pattern names them.
const maxCores = 32

// Offers is cloud.Provider's.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		return nil, err
	}
	var out []muster.Offering
	for _, t := range types {
		if !p.wants(t) {
			continue
		}
		for _, location := range p.cfg.Locations {
			if o, ok := p.offering(t, location); ok {
				out = append(out, o)
			}
		}
	}
	return out, p.cfg.Types.CheckCount(out)
}

func (p *Provider) wants(t *hcloud.ServerType) bool {
	if len(p.cfg.Types) == 0 {
		// Nodes of another architecture need a muster-node for it, so they are offered only where the
		// operator names their types.
		return t.Cores <= maxCores && t.Architecture != hcloud.ArchitectureARM
	}
	return p.cfg.Types.Match(t.Name)
}

// offering is a type in a location; false: it is not sold there, or has no price.
func (p *Provider) offering(t *hcloud.ServerType, location string) (muster.Offering, bool) {
	at := slices.IndexFunc(t.Pricings, func(l hcloud.ServerTypeLocationPricing) bool { return l.Location != nil && l.Location.Name == location })
	net := -1.0
	if at >= 0 {
		if f, err := strconv.ParseFloat(t.Pricings[at].Hourly.Net, 64); err == nil {
			net = f
		}
	}
	price, priced := p.cfg.Prices.Of(t.Name, net)
	if at < 0 || !priced {
		return muster.Offering{}, false
	}
	o := muster.Offering{
		Provider: p.cfg.Name, Name: muster.OfferingName(t.Name), Zone: location, Market: muster.OnDemand, Price: price,
		Capacity: muster.Resources{CPU: muster.MilliCPU(t.Cores) * 1000,
			Memory: driver.Share(muster.Bytes(float64(t.Memory)*float64(muster.GiB)), driver.MemoryShare), Disk: driver.Share(muster.Bytes(t.Disk)*muster.GiB, driver.DiskShare)},
		Attributes: map[string]string{"os": "linux", "arch": arch(t.Architecture), "cpu": string(t.CPUType)},
		Available:  !t.IsDeprecated() || p.cfg.Now().Before(t.UnavailableAfter()),
	}
	// The location's own entry says more than the type's where there is one.
	if i := slices.IndexFunc(t.Locations, func(l hcloud.ServerTypeLocation) bool { return l.Location != nil && l.Location.Name == location }); i >= 0 {
		l := &t.Locations[i]
		o.Available = o.Available && (!l.IsDeprecated() || p.cfg.Now().Before(l.UnavailableAfter()))
	}
	return o, true
}

func arch(a hcloud.Architecture) string {
	if a == hcloud.ArchitectureARM {
		return "arm64"
	}
	return "amd64"
}

// readTypes reads all server types.
func (p *Provider) readTypes(ctx context.Context) ([]*hcloud.ServerType, error) {
	ctx, sent := driver.Trace(ctx)
	var all []*hcloud.ServerType
	for page := 1; ; page++ {
		got, resp, err := p.api.ServerType.List(ctx, hcloud.ServerTypeListOpts{ListOpts: hcloud.ListOpts{Page: page, PerPage: maxPage}})
		if err != nil {
			return nil, p.fault(call{what: "list of server types", sent: sent}, resp, err)
		}
		all = append(all, got...)
		if resp.Meta.Pagination == nil || resp.Meta.Pagination.NextPage <= page {
			return all, nil
		}
	}
}

// readNetwork finds the id of the private network.
func (p *Provider) readNetwork(ctx context.Context) (int64, error) {
	ctx, sent := driver.Trace(ctx)
	n, resp, err := p.api.Network.Get(ctx, p.cfg.Network)
	if err != nil {
		return 0, p.fault(call{what: "network " + p.cfg.Network, sent: sent}, resp, err)
	}
	if n == nil {
		return 0, &muster.Fault{Kind: muster.FaultInvalid, Field: "network",
			Message: "network " + p.cfg.Network + " is not in the project: hcloud network list prints those that are"}
	}
	return n.ID, nil
}

// offered finds the type of an intent.
func (p *Provider) offered(ctx context.Context, name muster.OfferingName, zone string) error {
	types, err := p.types.Get(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return &muster.Fault{Kind: muster.FaultTransient, Message: "create server: not sent", Err: err}
		}
		return err
	}
	for _, t := range types {
		if muster.OfferingName(t.Name) == name && slices.Contains(p.cfg.Locations, zone) {
			return nil
		}
	}
	p.types.Forget(time.Minute)
	return &muster.Fault{Kind: muster.FaultInvalid, Message: "server type " + string(name) + " in location " + zone + " is not offered"}
}
