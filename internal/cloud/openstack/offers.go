package openstack

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/availabilityzones"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/limits"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// maxCores bounds the flavors that are offered where no pattern names them.
const maxCores = 32

// catalog is what the cloud has: its flavors and zones.
type catalog struct {
	flavors []flavors.Flavor
	zones   []string
}

// readCatalog reads flavors and availability zones.
func (p *Provider) readCatalog(ctx context.Context) (*catalog, error) {
	s, err := p.session(ctx, "list of flavors")
	if err != nil {
		return nil, err
	}
	ctx, sent := driver.Trace(ctx)
	pages, err := flavors.ListDetail(s.compute, nil).AllPages(ctx)
	if err != nil {
		return nil, p.fault(call{what: "list of flavors", sent: sent}, err)
	}
	all, err := flavors.ExtractFlavors(pages)
	if err != nil {
		return nil, p.fault(call{what: "list of flavors", sent: sent}, err)
	}
	pages, err = availabilityzones.List(s.compute).AllPages(ctx)
	if err != nil {
		return nil, p.fault(call{what: "list of availability zones", sent: sent}, err)
	}
	zones, err := availabilityzones.ExtractAvailabilityZones(pages)
	if err != nil {
		return nil, p.fault(call{what: "list of availability zones", sent: sent}, err)
	}
	out := &catalog{flavors: all}
	for _, z := range zones {
		// Nova's own services are in a zone named internal, which only its administrators see.
		if z.ZoneState.Available && z.ZoneName != "internal" {
			out.zones = append(out.zones, z.ZoneName)
		}
	}
	slices.Sort(out.zones)
	return out, nil
}

// Offers is cloud.Provider's. OpenStack knows no prices, so a flavor needs one from the operator.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	c, err := p.catalog.Get(ctx)
	if err != nil {
		return nil, err
	}
	var out []muster.Offering
	for i := range c.flavors {
		f := &c.flavors[i]
		price, priced := p.cfg.Prices.Of(f.Name, -1)
		if !priced || !p.wants(f) {
			continue
		}
		disk := muster.Bytes(f.Disk) * muster.GiB
		if disk == 0 {
			disk = p.cfg.Disk
		}
		for _, zone := range c.zones {
			out = append(out, muster.Offering{
				Provider: p.cfg.Name, Name: muster.OfferingName(f.Name), Zone: zone, Market: muster.OnDemand, Price: price,
				Capacity: muster.Resources{CPU: muster.MilliCPU(f.VCPUs) * 1000,
					Memory: driver.Share(muster.Bytes(f.RAM)*muster.MiB, driver.MemoryShare), Disk: driver.Share(disk, driver.DiskShare)},
				Attributes: map[string]string{"os": "linux", "arch": arch(f)}, Available: true, Weight: f.VCPUs,
			})
		}
	}
	return out, p.cfg.Types.CheckCount(out)
}

func (p *Provider) wants(f *flavors.Flavor) bool {
	if len(p.cfg.Types) == 0 {
		return f.VCPUs <= maxCores && !accelerated(f) && arch(f) == "amd64"
	}
	return p.cfg.Types.Match(f.Name)
}

// accelerated reports whether a flavor has devices that cost more than its cores.
func accelerated(f *flavors.Flavor) bool {
	for k := range f.ExtraSpecs {
		if strings.HasPrefix(k, "pci_passthrough:") || strings.HasPrefix(k, "accel:") || strings.HasPrefix(k, "resources:VGPU") || strings.HasPrefix(k, "resources:PGPU") {
			return true
		}
	}
	return false
}

// arch is the architecture of a flavor where its extra specs say one.
func arch(f *flavors.Flavor) string {
	for _, k := range []string{"trait:HW_ARCH_AARCH64", "hw:cpu_arch", "capabilities:cpu_arch", "hw_architecture"} {
		switch v := strings.ToLower(f.ExtraSpecs[k]); {
		case strings.Contains(v, "aarch64"), strings.HasPrefix(k, "trait:") && v == "required":
			return "arm64"
		}
	}
	return "amd64"
}

// offered finds the flavor of an intent.
func (p *Provider) offered(ctx context.Context, name muster.OfferingName, zone string) (*flavors.Flavor, error) {
	c, err := p.catalog.Get(ctx)
	if err != nil {
		return nil, err
	}
	for i := range c.flavors {
		if c.flavors[i].Name == string(name) && slices.Contains(c.zones, zone) {
			return &c.flavors[i], nil
		}
	}
	p.catalog.Forget(time.Minute)
	return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "flavor " + string(name) + " in availability zone " + zone + " is not offered"}
}

// lacking is the fault of a name that cannot be looked up.
func (p *Provider) lacking(service, field, name string) *muster.Fault {
	p.sessions.Forget(time.Minute)
	return &muster.Fault{Kind: muster.FaultInvalid, Field: field,
		Message: field + " " + name + " cannot be looked up: the catalog has no " + service + " service; write its id instead of its name"}
}

// readNetwork finds the id of the network.
func (p *Provider) readNetwork(ctx context.Context) (string, error) {
	if isID(p.cfg.Network) {
		return p.cfg.Network, nil
	}
	what := "network " + p.cfg.Network
	s, err := p.session(ctx, what)
	if err != nil {
		return "", err
	}
	if s.network == nil {
		return "", p.lacking("network", "network", p.cfg.Network)
	}
	ctx, sent := driver.Trace(ctx)
	pages, err := networks.List(s.network, networks.ListOpts{Name: p.cfg.Network}).AllPages(ctx)
	if err != nil {
		return "", p.fault(call{what: what, sent: sent}, err)
	}
	list, err := networks.ExtractNetworks(pages)
	switch {
	case err != nil:
		return "", p.fault(call{what: what, sent: sent}, err)
	case len(list) == 0:
		return "", &muster.Fault{Kind: muster.FaultInvalid, Field: "network", Message: what + " is not in the project: `openstack network list` prints those that are"}
	case len(list) > 1:
		return "", &muster.Fault{Kind: muster.FaultInvalid, Field: "network", Message: what + " is the name of several networks: write the id of one"}
	}
	return list[0].ID, nil
}

// readImage finds the id of the image: of several of a name, the newest that can be used.
func (p *Provider) readImage(ctx context.Context) (string, error) {
	if isID(p.cfg.Image) {
		return p.cfg.Image, nil
	}
	what := "image " + p.cfg.Image
	s, err := p.session(ctx, what)
	if err != nil {
		return "", err
	}
	if s.image == nil {
		return "", p.lacking("image", "image", p.cfg.Image)
	}
	ctx, sent := driver.Trace(ctx)
	pages, err := images.List(s.image, images.ListOpts{Name: p.cfg.Image, Status: images.ImageStatusActive}).AllPages(ctx)
	if err != nil {
		return "", p.fault(call{what: what, sent: sent}, err)
	}
	list, err := images.ExtractImages(pages)
	switch {
	case err != nil:
		return "", p.fault(call{what: what, sent: sent}, err)
	case len(list) == 0:
		return "", &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Message: what + " is not in the cloud: `openstack image list` prints those that are"}
	}
	return slices.MaxFunc(list, func(a, b images.Image) int { return a.CreatedAt.Compare(b.CreatedAt) }).ID, nil
}

// Quotas is cloud.QuotaReader's. Nova bounds servers and cores, and a family has one quota here: the
// one of which the smaller share is left.
func (p *Provider) Quotas(ctx context.Context) ([]cloud.Quota, error) {
	s, err := p.session(ctx, "limits")
	if err != nil {
		return nil, err
	}
	ctx, sent := driver.Trace(ctx)
	got, err := limits.Get(ctx, s.compute, nil).Extract()
	if err != nil {
		return nil, p.fault(call{what: "limits", sent: sent}, err)
	}
	a := got.Absolute
	var out []cloud.Quota
	left := 2.0
	for _, q := range []cloud.Quota{{Limit: a.MaxTotalInstances, Used: max(a.TotalInstancesUsed, 0)}, {Limit: a.MaxTotalCores, Used: max(a.TotalCoresUsed, 0), Weighed: true}} {
		if q.Limit < 0 {
			continue // -1: no limit
		}
		if l := float64(q.Limit-q.Used) / float64(max(q.Limit, 1)); l < left {
			out, left = []cloud.Quota{q}, l
		}
	}
	return out, nil
}
