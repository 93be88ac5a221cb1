package openstack

import (
	"cmp"
	"context"
	"slices"
	"strconv"
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
	image, err := p.imageArch.Get(ctx)
	if err != nil {
		return nil, err
	}
	var out []muster.Offering
	for i := range c.flavors {
		f := &c.flavors[i]
		price, priced := p.cfg.Prices.Of(f.Name, -1)
		if !priced || !p.wants(f, image) || !boots(f, image) {
			continue
		}
		disk := muster.Bytes(f.Disk) * muster.GiB
		if disk == 0 {
			disk = p.cfg.Disk
		}
		for _, zone := range c.zones {
			o := muster.Offering{
				Provider: p.cfg.Name, Name: muster.OfferingName(f.Name), Zone: zone, Market: muster.OnDemand, Price: price,
				Capacity: muster.Resources{CPU: muster.MilliCPU(f.VCPUs) * 1000,
					Memory: driver.Share(muster.Bytes(f.RAM)*muster.MiB, driver.MemoryShare), Disk: driver.Share(disk, driver.DiskShare)},
				Attributes: map[string]string{"os": "linux", "arch": archOf(f, image)}, Available: true, Weight: f.VCPUs,
			}
			if gpu, n := gpusOf(f); n > 0 {
				driver.AddGPUs(&o, gpu, 0, n)
			}
			out = append(out, o)
		}
	}
	return out, p.cfg.Types.CheckCount(out)
}

func (p *Provider) wants(f *flavors.Flavor, image string) bool {
	if len(p.cfg.Types) == 0 {
		return f.VCPUs <= maxCores && !accelerated(f) && archOf(f, image) == cmp.Or(image, amd64)
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

// gpusOf are the GPUs of a flavor, of which its extra specs say something: the name is what people call
// them, a model where it has one. Another device of a flavor is none.
func gpusOf(f *flavors.Flavor) (name string, count int) {
	for k, v := range f.ExtraSpecs {
		n, err := strconv.Atoi(v)
		if kind, ok := strings.CutPrefix(k, "resources:"); ok && err == nil && (kind == "VGPU" || kind == "PGPU") {
			return kind, n
		}
	}
	// The names of aliases are the operator's of the cloud: "a100:2,nic:1".
	list := f.ExtraSpecs["pci_passthrough:alias"]
	if list == "" {
		list = f.ExtraSpecs["accel:device_profile"]
	}
	for alias := range strings.SplitSeq(list, ",") {
		alias, number, _ := strings.Cut(strings.TrimSpace(alias), ":")
		model := driver.ModelIn(alias)
		if model == "" && !strings.Contains(strings.ToLower(alias), "gpu") {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			n = 1
		}
		return cmp.Or(model, alias), n
	}
	return "", 0
}

// Architectures, as nodes name them.
const (
	amd64 = "amd64"
	arm64 = "arm64"
)

// goArch is the architecture that OpenStack names; empty: it is none that nodes can have.
func goArch(name string) string {
	switch strings.ToLower(name) {
	case "aarch64", "arm64":
		return arm64
	case "x86_64", "amd64":
		return amd64
	}
	return ""
}

// arch is the architecture of a flavor where its extra specs say one; empty: they do not. Then it is
// that of the image, by which Nova chooses the host.
func arch(f *flavors.Flavor) string {
	for _, k := range []string{"hw:cpu_arch", "capabilities:cpu_arch", "hw_architecture"} {
		// An extra spec may have an operator in front: "s== aarch64".
		words := strings.Fields(f.ExtraSpecs[k])
		if len(words) > 0 && goArch(words[len(words)-1]) != "" {
			return goArch(words[len(words)-1])
		}
	}
	for k, v := range f.ExtraSpecs {
		for _, prefix := range []string{"trait:HW_ARCH_", "trait:COMPUTE_ARCH_"} {
			if name, ok := strings.CutPrefix(k, prefix); ok && v == "required" && goArch(name) != "" {
				return goArch(name)
			}
		}
	}
	return ""
}

// archOf is the architecture of a server of a flavor with an image for image; empty: it does not say.
func archOf(f *flavors.Flavor, image string) string { return cmp.Or(arch(f), image, amd64) }

// boots reports whether a flavor boots the image, as far as both say what they are for.
func boots(f *flavors.Flavor, image string) bool {
	a := arch(f)
	return a == "" || image == "" || a == image
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
	image, err := p.imageNamed(ctx, s, what)
	if err != nil {
		return "", err
	}
	return image.ID, nil
}

// imageNamed finds the image by its name.
func (p *Provider) imageNamed(ctx context.Context, s *session, what string) (*images.Image, error) {
	ctx, sent := driver.Trace(ctx)
	pages, err := images.List(s.image, images.ListOpts{Name: p.cfg.Image, Status: images.ImageStatusActive}).AllPages(ctx)
	if err != nil {
		return nil, p.fault(call{what: what, sent: sent}, err)
	}
	list, err := images.ExtractImages(pages)
	switch {
	case err != nil:
		return nil, p.fault(call{what: what, sent: sent}, err)
	case len(list) == 0:
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "image", Message: what + " is not in the cloud: `openstack image list` prints those that are"}
	}
	newest := slices.MaxFunc(list, func(a, b images.Image) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return &newest, nil
}

// readImageArch finds out what the image is for; empty: it does not say, or cannot be looked up. Only
// the cloud's silence is an error: what is offered must not change with it.
func (p *Provider) readImageArch(ctx context.Context) (string, error) {
	what := "image " + p.cfg.Image
	s, err := p.session(ctx, what)
	if err != nil {
		return "", err
	}
	if s.image == nil {
		return "", nil
	}
	var image *images.Image
	if isID(p.cfg.Image) {
		traced, sent := driver.Trace(ctx)
		if image, err = images.Get(traced, s.image, p.cfg.Image).Extract(); err != nil {
			err = p.fault(call{what: what, sent: sent}, err)
		}
	} else {
		image, err = p.imageNamed(ctx, s, what)
	}
	switch {
	case muster.IsKind(err, muster.FaultNotFound), muster.IsKind(err, muster.FaultInvalid), muster.IsKind(err, muster.FaultAuth):
		return "", nil
	case err != nil:
		return "", err
	}
	for _, k := range []string{"hw_architecture", "architecture"} {
		if v, ok := image.Properties[k].(string); ok && goArch(v) != "" {
			return goArch(v), nil
		}
	}
	return "", nil
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
