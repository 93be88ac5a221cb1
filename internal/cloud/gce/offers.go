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
	if !t.sells() {
		return false
	}
	if len(p.cfg.Types) == 0 {
		// Nodes of another architecture need a muster-node for it, and images that their jobs may not
		// have, so they are offered only where the operator names their types. The same is true of GPUs,
		// for their price. Types that share a core promise no more than a part of one.
		return t.GuestCPUs <= maxCores && !t.IsSharedCPU && plain(t) && t.arch() == "amd64"
	}
	// A pattern as n1-* does not mean what can be attached to these.
	return slices.ContainsFunc(p.cfg.Types, func(g string) bool {
		return attaches(g) == attaches(t.Name) && driver.Globs{g}.Match(t.Name)
	})
}

// offerings are a type in a zone, in each market in which it has a price.
func (p *Provider) offerings(t *machineType, zone string) []muster.Offering {
	var out []muster.Offering
	for _, market := range p.cfg.Markets {
		price, ok := p.priceOf(t, market)
		if !ok {
			continue
		}
		o := muster.Offering{
			Provider: p.cfg.Name, Name: muster.OfferingName(t.Name), Zone: zone, Market: market, Price: price,
			Capacity: muster.Resources{CPU: muster.MilliCPU(t.GuestCPUs) * 1000,
				Memory: driver.Share(muster.Bytes(t.MemoryMb)*muster.MiB, driver.MemoryShare), Disk: driver.Share(p.cfg.Disk, driver.DiskShare)},
			Attributes: map[string]string{"os": "linux", "arch": t.arch(), "family": familyOf(t.Name)},
			Available:  true, Family: family(zone, t.Name, t.gpus(), market), Weight: t.GuestCPUs,
		}
		if a := t.gpus(); a.count > 0 {
			o.Weight = a.count
		}
		t.addGPUs(&o)
		out = append(out, o)
	}
	return out
}

// priceOf is the price of a type in a market. The table has types, as n2-standard-4, or for a family
// the prices of a core and of a GiB of memory, as n2/cpu and n2/gib. With /spot behind it an entry is
// for spot; without such an entry there is no price for spot. What names the type goes first. One GPU
// has a price by its name, as nvidia-tesla-t4, which comes on top of that of cores and memory.
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
	if a := t.gpus(); a.count > 0 {
		gpu, ok := table[a.name+suffix]
		if !ok {
			return 0, false
		}
		perHour += gpu * float64(a.count)
	}
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

// arch is the architecture of a machine type. Not all say theirs; Google's ARM families are t2a, c4a,
// n4a, and a4x and what follows it.
func (t *machineType) arch() string {
	f := familyOf(t.Name)
	switch {
	case t.Architecture == "ARM64", slices.Contains([]string{"t2a", "c4a", "n4a"}, f), strings.HasPrefix(f, "a4x"):
		return "arm64"
	}
	return "amd64"
}

// diskType is the type of the root disk: the families of the fourth generation take no pd-balanced,
// and neither do the newer ones with GPUs.
func diskType(name string) string {
	f := familyOf(name)
	if len(f) >= 2 && strings.ContainsRune("acgn", rune(f[0])) && f[1] >= '4' || strings.HasPrefix(name, "a3-ultragpu-") {
		return "hyperdisk-balanced"
	}
	return "pd-balanced"
}

// family is whose quota an instance of a type counts against: a region's metric. Spot has one of its
// own. With GPUs it counts against two, and that of GPUs is used up first: most projects begin with
// none.
func family(zone, name string, gpus accelerator, market muster.Market) string {
	metric := strings.ToUpper(familyOf(name)) + "_CPUS"
	switch {
	case gpus.count > 0:
		metric = gpus.quota(market)
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
		var err error
		if out[zone], err = p.attach(ctx, zone, out[zone]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// offered finds the type of an intent.
func (p *Provider) offered(ctx context.Context, c *call) (*machineType, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &muster.Fault{Kind: muster.FaultTransient, Message: c.what + ": not sent", Err: err}
		}
		return nil, err
	}
	if i := indexOf(types[c.zone], c.offering); i >= 0 {
		t := &types[c.zone][i]
		c.family = family(c.zone, t.Name, t.gpus(), c.market)
		return t, nil
	}
	p.types.Forget(time.Minute)
	return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "machine type " + string(c.offering) + " in zone " + c.zone + " is not offered"}
}

// Quotas is cloud.QuotaReader's: the cores and GPUs of each region that the zones are in.
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
			counted := strings.HasSuffix(q.Metric, "CPUS") || strings.Contains(q.Metric, "NVIDIA_") && strings.HasSuffix(q.Metric, "_GPUS")
			if !counted || strings.HasPrefix(q.Metric, "COMMITTED_") || strings.HasPrefix(q.Metric, "PREEMPTIBLE_") && q.Limit == 0 {
				continue
			}
			out = append(out, cloud.Quota{Family: name + "/" + q.Metric, Limit: int(q.Limit), Used: int(q.Usage), Weighed: true})
		}
	}
	return out, nil
}
