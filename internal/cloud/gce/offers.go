package gce

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// maxCores bounds the types that are offered where no pattern names them.
	maxCores = 32
)

// Offers is cloud.Provider's.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		return nil, err
	}
	var out []muster.Offering
	for _, zone := range p.cfg.Zones {
		for i := range types[zone] {
			if t := &types[zone][i]; p.wants(t) {
				out = append(out, p.offerings(t, zone)...)
			}
		}
	}
	return out, p.cfg.Types.CheckCount(out)
}

func (p *Provider) wants(t *machineType) bool {
	if t.Deprecated != nil && t.Deprecated.State != "" && t.Deprecated.State != "ACTIVE" {
		return false
	}
	// Devices of accelerators are not told to the server, so nobody could ask for them.
	if len(t.Accelerators) > 0 {
		return false
	}
	if len(p.cfg.Types) == 0 {
		// Nodes of another architecture need a muster-node for it, so they are offered only where the
		// operator names their types. Types that share a core promise no more than a part of one.
		return t.GuestCPUs <= maxCores && !t.IsSharedCPU && archOf(t.Name) == "amd64"
	}
	return p.cfg.Types.Match(t.Name)
}

// offerings are a type in a zone, in each market in which it has a price.
func (p *Provider) offerings(t *machineType, zone string) []muster.Offering {
	var out []muster.Offering
	for _, market := range p.cfg.Markets {
		price, ok := p.priceOf(t, market)
		if !ok {
			continue
		}
		out = append(out, muster.Offering{
			Provider: p.cfg.Name, Name: muster.OfferingName(t.Name), Zone: zone, Market: market, Price: price,
			Capacity: muster.Resources{CPU: muster.MilliCPU(t.GuestCPUs) * 1000,
				Memory: driver.Share(muster.Bytes(t.MemoryMb)*muster.MiB, driver.MemoryShare), Disk: driver.Share(p.cfg.Disk, driver.DiskShare)},
			Attributes: map[string]string{"os": "linux", "arch": archOf(t.Name), "family": familyOf(t.Name)},
			Available:  true, Family: family(zone, t.Name, market), Weight: t.GuestCPUs,
		})
	}
	return out
}

// priceOf is the price of a type in a market. The table has types, as n2-standard-4, or for a family
// the prices of a core and of a GiB of memory, as n2/cpu and n2/gib. With /spot behind it an entry is
// for spot; without such an entry there is no price for spot. What names the type goes first.
func (p *Provider) priceOf(t *machineType, market muster.Market) (muster.Price, bool) {
	suffix := ""
	if market == muster.Spot {
		suffix = "/spot"
	}
	table := p.cfg.Prices.Table
	if own, ok := table[t.Name+suffix]; ok {
		return driver.PriceOf(own), true
	}
	cpu, ok := table[familyOf(t.Name)+"/cpu"+suffix]
	gib, both := table[familyOf(t.Name)+"/gib"+suffix]
	if !ok || !both {
		return 0, false
	}
	perHour := cpu*float64(t.GuestCPUs) + gib*float64(t.MemoryMb)/1024
	if p.cfg.Prices.Factor > 0 {
		perHour *= p.cfg.Prices.Factor
	}
	return driver.PriceOf(perHour), true
}

// familyOf is the family of a machine type: n2 of n2-standard-4.
func familyOf(name string) string {
	before, _, _ := strings.Cut(name, "-")
	return before
}

// archOf is the architecture of a machine type's family. Google's ARM families are t2a, c4a, n4a and
// a4x.
func archOf(name string) string {
	if slices.Contains([]string{"t2a", "c4a", "n4a", "a4x"}, familyOf(name)) {
		return "arm64"
	}
	return "amd64"
}

// diskType is the type of the root disk: the families of the fourth generation take no pd-balanced.
func diskType(name string) string {
	if f := familyOf(name); len(f) >= 2 && (f[0] == 'c' || f[0] == 'n') && f[1] >= '4' {
		return "hyperdisk-balanced"
	}
	return "pd-balanced"
}

// family is whose quota an instance of a type counts against: a region's metric. Spot has one of its
// own.
func family(zone, name string, market muster.Market) string {
	metric := strings.ToUpper(familyOf(name)) + "_CPUS"
	switch {
	case market == muster.Spot:
		metric = spotMetric
	case slices.Contains([]string{"n1", "e2", "f1", "g1"}, familyOf(name)):
		metric = "CPUS"
	}
	return regionOf(zone) + "/" + metric
}

// spotMetric is the quota of spot. Projects that have none of it use that of the family.
const spotMetric = "PREEMPTIBLE_CPUS"

// readTypes reads the machine types of all zones.
func (p *Provider) readTypes(ctx context.Context) (map[string][]machineType, error) {
	out := map[string][]machineType{}
	for _, zone := range p.cfg.Zones {
		query := url.Values{"maxResults": {strconv.Itoa(maxPage)}}
		for {
			var page machineTypeList
			if err := p.do(ctx, call{what: "machine types of zone " + zone}, http.MethodGet, "/zones/"+zone+"/machineTypes", query, nil, &page); err != nil {
				return nil, err
			}
			out[zone] = append(out[zone], page.Items...)
			if page.NextPageToken == "" {
				break
			}
			query.Set("pageToken", page.NextPageToken)
		}
	}
	return out, nil
}

// offered finds the type of an intent.
func (p *Provider) offered(ctx context.Context, c *call) error {
	types, err := p.types.Get(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return &muster.Fault{Kind: muster.FaultTransient, Message: c.what + ": not sent", Err: err}
		}
		return err
	}
	if slices.ContainsFunc(types[c.zone], func(t machineType) bool { return muster.OfferingName(t.Name) == c.offering }) {
		c.family = family(c.zone, string(c.offering), c.market)
		return nil
	}
	p.types.Forget(time.Minute)
	return &muster.Fault{Kind: muster.FaultInvalid, Message: "machine type " + string(c.offering) + " in zone " + c.zone + " is not offered"}
}

// Quotas is cloud.QuotaReader's: the cores of each region that the zones are in.
func (p *Provider) Quotas(ctx context.Context) ([]cloud.Quota, error) {
	return p.regions.Get(ctx)
}

// names are the regions of the zones.
func (p *Provider) names() []string {
	var out []string
	for _, z := range p.cfg.Zones {
		if r := regionOf(z); !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

func (p *Provider) readQuotas(ctx context.Context) ([]cloud.Quota, error) {
	var out []cloud.Quota
	for _, name := range p.names() {
		var r region
		if err := p.do(ctx, call{what: "quotas of region " + name}, http.MethodGet, "/regions/"+name, nil, nil, &r); err != nil {
			return nil, err
		}
		for _, q := range r.Quotas {
			// A limit of 0 for spot is not a refusal: Google then counts against the family's quota.
			if !strings.HasSuffix(q.Metric, "CPUS") || strings.HasPrefix(q.Metric, "COMMITTED_") || q.Metric == spotMetric && q.Limit == 0 {
				continue
			}
			out = append(out, cloud.Quota{Family: name + "/" + q.Metric, Limit: int(q.Limit), Used: int(q.Usage), Weighed: true})
		}
	}
	return out, nil
}
