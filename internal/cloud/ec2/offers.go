package ec2

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// catalog is all that the offerings are made of.
type catalog struct {
	types    []typeInfo
	zonesOf  map[string][]string
	subnets  []subnet
	onDemand map[string]float64
	spot     map[typeZone]float64
	// noPrices is why the price list cannot be read.
	noPrices error
}

// zones are those of the subnets, in their order.
func (c *catalog) zones() []string {
	var out []string
	for _, s := range c.subnets {
		if !slices.Contains(out, s.zone) {
			out = append(out, s.zone)
		}
	}
	return out
}

// free reports whether a subnet of the zone has addresses.
func (c *catalog) free(zone string) bool {
	return slices.ContainsFunc(c.subnets, func(s subnet) bool { return s.zone == zone && s.free > 0 })
}

// look reads the catalogue, from memory as far as it is there.
func (p *Provider) look(ctx context.Context) (*catalog, error) {
	var c catalog
	var err error
	if c.types, err = p.types.Get(ctx); err != nil {
		return nil, err
	}
	if c.zonesOf, err = p.zonesOf.Get(ctx); err != nil {
		return nil, err
	}
	if c.subnets, err = p.subnets.Get(ctx); err != nil {
		return nil, err
	}
	if c.onDemand, c.noPrices = p.onDemand.Get(ctx); c.noPrices != nil && ctx.Err() != nil {
		return nil, c.noPrices
	}
	if p.wants(muster.Spot) {
		if c.spot, err = p.spot.Get(ctx); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// Offers is cloud.Provider's.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	c, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	out, unpriced := p.offers(c)
	if err := p.cfg.Types.CheckCount(out); err != nil {
		return nil, err
	}
	if len(out) == 0 && c.noPrices != nil {
		return nil, fmt.Errorf("no prices, so nothing is offered: write them in prices, or allow pricing:GetProducts: %w", c.noPrices)
	}
	p.warnUnpriced(unpriced, c.noPrices)
	return out, nil
}

// offers makes the offerings, and lists the types that have no price.
func (p *Provider) offers(c *catalog) (out []muster.Offering, unpriced []string) {
	now := p.cfg.Now()
	for _, t := range c.types {
		price, priced := p.onDemandPrice(c, t.name)
		if !priced {
			unpriced = append(unpriced, t.name)
		}
		for _, zone := range c.zones() {
			there := slices.Contains(c.zonesOf[t.name], zone)
			if !there {
				continue
			}
			o := muster.Offering{
				Provider: p.cfg.Name, Name: muster.OfferingName(t.name), Zone: zone, Price: price,
				Capacity: muster.Resources{CPU: muster.MilliCPU(t.cpus) * 1000, Memory: driver.Share(t.memory, driver.MemoryShare),
					Disk: driver.Share(p.cfg.Disk, driver.DiskShare)},
				Attributes: map[string]string{"os": "linux", "arch": t.arch},
				Available:  c.free(zone) && !p.refusals.has(unsupportedKey(t.name, zone), now), Weight: t.cpus,
			}
			for _, g := range t.gpus {
				driver.AddGPUs(&o, g.Name, muster.Bytes(g.MiB)*muster.MiB, g.Count)
			}
			for _, m := range p.cfg.Markets {
				o.Market, o.Family = m, familyOf(t.name, m)
				o.Price, o.PriceCap = price, 0
				if m == muster.Spot {
					spot, ok := c.spot[typeZone{t.name, zone}]
					if !ok || !t.spot {
						continue
					}
					// Without a bid of its own, a spot instance never costs more than an on-demand one.
					o.Price, o.PriceCap = driver.PriceOf(spot+p.diskPrice()), price
				} else if !priced {
					continue
				}
				out = append(out, o)
			}
		}
	}
	return out, unpriced
}

// onDemandPrice is that of a type with its disk. An operator's own price is taken as it is.
func (p *Provider) onDemandPrice(c *catalog, name string) (muster.Price, bool) {
	cost, known := c.onDemand[name]
	if !known {
		cost = -1
	}
	price, ok := p.cfg.Prices.Of(name, cost)
	if ok && !p.cfg.Prices.Has(name) {
		price += driver.PriceOf(p.diskPrice())
	}
	return price, ok
}

func unsupportedKey(name, zone string) string { return name + " in " + zone }

// warnUnpriced says once in a while which types are not offered for want of a price.
func (p *Provider) warnUnpriced(types []string, why error) {
	now := p.cfg.Now()
	if len(types) == 0 || !p.wants(muster.OnDemand) || p.refusals.has("warned of prices", now) {
		return
	}
	p.refusals.add("warned of prices", now.Add(12*time.Hour))
	shown := strings.Join(types[:min(len(types), 10)], ", ")
	if more := len(types) - 10; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	p.log.Warn("types without an on-demand price are not offered on demand: write their prices in prices", "provider", p.cfg.Name, "types", shown, "error", why)
}

// typeOf is the type of an offering, or FaultInvalid that names it.
func (p *Provider) typeOf(ctx context.Context, a about) (typeInfo, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		return typeInfo{}, err
	}
	i := slices.IndexFunc(types, func(t typeInfo) bool { return t.name == string(a.offering) })
	if i < 0 || !p.wants(a.market) {
		return typeInfo{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "types", Scope: p.api.scope(offeringOnly, a),
			Message: fmt.Sprintf("offering %s in market %s is not one of provider %s: see types and markets in its configuration", a.offering, a.market, p.cfg.Name)}
	}
	return types[i], nil
}
