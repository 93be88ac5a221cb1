package azure

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// maxCores bounds the sizes that are offered where no pattern names them.
	maxCores = 32
	// spotFamily is the quota of all spot machines of a location, in Azure's words.
	spotFamily = "lowPriorityCores"
)

// size is one size of machines in the location.
type size struct {
	name, family, arch string
	cpus               int
	memory             muster.Bytes
	gpus               int
	spot               bool
	// zones are those that have it; barred the places, of these or Regional, where this subscription
	// may not have it.
	zones, barred []string
}

// familyIn is whose quota a machine of the size counts against.
func (s *size) familyIn(m muster.Market) string {
	if m == muster.Spot {
		return spotFamily
	}
	return s.family
}

// placeOf is the name of a zone in offerings. It is never empty, so that a refusal of one place says
// nothing of the others: Azure has capacity in one and not in another.
func (p *Provider) placeOf(zone string) string {
	if zone == Regional {
		return p.cfg.Location
	}
	return p.cfg.Location + "-" + zone
}

// zonesOf are the zones of a create in a place; nil: Azure chooses.
func zonesOf(place string) []*string {
	if _, zone, ok := strings.Cut(place, "-"); ok {
		return []*string{&zone}
	}
	return nil
}

// Offers is cloud.Provider's.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	sizes, err := p.wanted(ctx)
	if err != nil {
		return nil, err
	}
	prices, noPrices := p.listed.Get(ctx)
	if noPrices != nil && ctx.Err() != nil {
		return nil, noPrices
	}
	var out []muster.Offering
	for i := range sizes {
		for _, zone := range p.cfg.Zones {
			for _, m := range p.cfg.Markets {
				if o, ok := p.offering(&sizes[i], zone, m, prices); ok {
					out = append(out, o)
				}
			}
		}
	}
	if len(out) == 0 && noPrices != nil {
		return nil, fmt.Errorf("no prices, so nothing is offered: write them in prices: %w", noPrices)
	}
	return out, p.cfg.Types.CheckCount(out)
}

// offering is a size in a zone and market; false: it is not sold there, or has no price.
func (p *Provider) offering(s *size, zone string, m muster.Market, prices priceList) (muster.Offering, bool) {
	if zone != Regional && !slices.Contains(s.zones, zone) || m == muster.Spot && !s.spot {
		return muster.Offering{}, false
	}
	price, priced := p.priceOf(s.name, muster.OnDemand, prices)
	o := muster.Offering{
		Provider: p.cfg.Name, Name: muster.OfferingName(s.name), Zone: p.placeOf(zone), Market: m, Price: price, Family: s.familyIn(m), Weight: s.cpus,
		Capacity: muster.Resources{CPU: muster.MilliCPU(s.cpus) * 1000, Memory: driver.Share(s.memory, driver.MemoryShare), Disk: driver.Share(p.cfg.Disk, driver.DiskShare)},
		// A zone's restriction on this subscription is for machines on demand; spot has its own refusals.
		Attributes: map[string]string{"os": "linux", "arch": s.arch}, Available: !slices.Contains(s.barred, zone),
	}
	model, memory := gpuOf(s.name)
	driver.AddGPUs(&o, model, memory, s.gpus)
	if m == muster.Spot {
		o.PriceCap = price
		o.Price, priced = p.priceOf(s.name, muster.Spot, prices)
	}
	return o, priced
}

func gigabytes(b muster.Bytes) int64 { return int64((b + muster.GiB - 1) / muster.GiB) }

var defaultShape = regexp.MustCompile(`^Standard_([DEF])\d+s_v(\d+)$`)

// wanted are the sizes that are offered.
func (p *Provider) wanted(ctx context.Context) ([]size, error) {
	all, err := p.sizes.Get(ctx)
	if err != nil {
		return nil, err
	}
	if len(p.cfg.Types) > 0 {
		return slices.DeleteFunc(slices.Clone(all), func(s size) bool { return !p.cfg.Types.Match(s.name) }), nil
	}
	newest := map[string][]int{}
	for i := range all {
		if m := defaultShape.FindStringSubmatch(all[i].name); m != nil {
			v, _ := strconv.Atoi(m[2])
			if !slices.Contains(newest[m[1]], v) {
				newest[m[1]] = append(newest[m[1]], v)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(s size) bool {
		m := defaultShape.FindStringSubmatch(s.name)
		if m == nil || s.cpus > maxCores || s.arch != "amd64" || s.gpus > 0 {
			return true
		}
		v, _ := strconv.Atoi(m[2])
		versions := newest[m[1]]
		slices.Sort(versions)
		return !slices.Contains(versions[max(len(versions)-2, 0):], v)
	}), nil
}

// sizeNamed is the size of a name, of all in the location.
func (p *Provider) sizeNamed(ctx context.Context, name muster.OfferingName) (size, error) {
	all, err := p.sizes.Get(ctx)
	if err != nil {
		return size{}, err
	}
	for i := range all {
		if strings.EqualFold(all[i].name, string(name)) {
			return all[i], nil
		}
	}
	return size{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "types", Scope: muster.Scope{Provider: p.cfg.Name, Offering: name},
		Message: "size " + string(name) + " is not sold in " + p.cfg.Location}
}

// sizeOf is the size of an intent.
func (p *Provider) sizeOf(ctx context.Context, name muster.OfferingName, place string, m muster.Market) (size, error) {
	s, err := p.sizeNamed(ctx, name)
	if err != nil {
		return s, err
	}
	if !slices.Contains(p.cfg.Markets, marketOf(m)) || !slices.ContainsFunc(p.cfg.Zones, func(z string) bool { return p.placeOf(z) == place }) {
		return s, &muster.Fault{Kind: muster.FaultInvalid, Field: "zones", Message: fmt.Sprintf("size %s in %s, market %s is not one of provider %s: see zones and markets in its configuration", name, place, marketOf(m), p.cfg.Name)}
	}
	return s, nil
}

// readSizes reads all sizes of the location: some hundred, in one list with disks and other things.
func (p *Provider) readSizes(ctx context.Context) ([]size, error) {
	ctx, sent := driver.Trace(ctx)
	var out []size
	filter := "location eq '" + p.cfg.Location + "'"
	for pager := p.skus.NewListPager(&armcompute.ResourceSKUsClientListOptions{Filter: &filter}); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of sizes", sent: sent}, err)
		}
		for _, sku := range page.Value {
			if sku != nil && of(sku.ResourceType) == "virtualMachines" {
				if s, ok := p.sizeIn(sku); ok {
					out = append(out, s)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b size) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(out, func(a, b size) bool { return a.name == b.name }), nil
}

// sizeIn reads a size; false: it lacks what offerings need.
func (p *Provider) sizeIn(sku *armcompute.ResourceSKU) (size, bool) {
	s := size{name: of(sku.Name), family: of(sku.Family), arch: "amd64"}
	for _, c := range sku.Capabilities {
		if c == nil {
			continue
		}
		switch v := of(c.Value); of(c.Name) {
		case "vCPUs":
			s.cpus, _ = strconv.Atoi(v)
		case "MemoryGB":
			gb, _ := strconv.ParseFloat(v, 64)
			s.memory = muster.Bytes(gb * float64(muster.GiB))
		case "GPUs":
			s.gpus, _ = strconv.Atoi(v)
		case "CpuArchitectureType":
			if strings.EqualFold(v, "Arm64") {
				s.arch = "arm64"
			}
		case "LowPriorityCapable":
			s.spot = strings.EqualFold(v, "True")
		}
	}
	for _, l := range sku.LocationInfo {
		if l != nil && strings.EqualFold(of(l.Location), p.cfg.Location) {
			for _, z := range l.Zones {
				s.zones = append(s.zones, of(z))
			}
		}
	}
	for _, r := range sku.Restrictions {
		switch {
		case r == nil:
		case of(r.Type) == armcompute.ResourceSKURestrictionsTypeLocation:
			s.barred = append(append(s.barred, Regional), s.zones...)
		case r.RestrictionInfo != nil:
			for _, z := range r.RestrictionInfo.Zones {
				s.barred = append(s.barred, of(z))
			}
		}
	}
	return s, s.name != "" && s.cpus > 0 && s.memory > 0
}

// Quotas is cloud.QuotaReader's: the cores of each family, and of all spot machines together.
func (p *Provider) Quotas(ctx context.Context) ([]cloud.Quota, error) { return p.quotas.Get(ctx) }

// readQuotas reads the quotas of the families on offer. That of all cores of the location is left
// out: cores of spot machines do not count there, so it is nobody's family.
func (p *Provider) readQuotas(ctx context.Context) ([]cloud.Quota, error) {
	sizes, err := p.wanted(ctx)
	if err != nil {
		return nil, err
	}
	families := map[string]string{}
	for i := range sizes {
		for _, m := range p.cfg.Markets {
			f := sizes[i].familyIn(m)
			families[strings.ToLower(f)] = f
		}
	}
	ctx, sent := driver.Trace(ctx)
	var out []cloud.Quota
	for pager := p.usage.NewListPager(p.cfg.Location, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of quotas", sent: sent}, err)
		}
		for _, u := range page.Value {
			if u == nil || u.Name == nil {
				continue
			}
			if f, ok := families[strings.ToLower(of(u.Name.Value))]; ok {
				out = append(out, cloud.Quota{Family: f, Limit: int(of(u.Limit)), Used: int(of(u.CurrentValue)), Weighed: true})
			}
		}
	}
	return out, nil
}
