package azure

import (
	"context"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Kinds of leftovers. A create that fails half-way can leave any of them, since an interface is made
// before its machine and deleted with it, if it came to be.
const (
	kindNIC  = "network-interface"
	kindDisk = "disk"
	kindIP   = "public-ip"
)

// Endings of the names of a machine's parts.
const (
	partNIC  = "nic"
	partDisk = "os"
	partIP   = "ip"
)

// marks tell whose a part of a machine is.
type marks struct{ owner string }

// partName is the name of a part of a machine. It has a mark of the owner, so that a part whose tags
// Azure has not copied is known as this owner's all the same.
func (m marks) partName(name, part string) string { return name + m.mark() + part }

func (m marks) mark() string { return "-" + driver.Digest(12, m.owner) + "-" }

// owns reports whether a part is this owner's, by its tag, or by its name if it has no such tag.
func (m marks) owns(name string, tags map[string]*string) bool {
	if owner, ok := tags[driver.TagOwner]; ok {
		return of(owner) == m.owner
	}
	name, _, ok := strings.Cut(strings.ToLower(name), m.mark())
	return ok && idShape.MatchString(name)
}

// Leftovers is cloud.Sweeper's: parts of this owner's machines that are attached to nothing.
func (p *Provider) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	ctx, sent := driver.Trace(ctx)
	var out []cloud.Leftover
	for pager := p.nics.NewListPager(p.cfg.ResourceGroup, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of network interfaces", sent: sent}, err)
		}
		for _, v := range page.Value {
			if p.leftNIC(v) {
				out = append(out, cloud.Leftover{Kind: kindNIC, ID: of(v.Name)})
			}
		}
	}
	for pager := p.ips.NewListPager(p.cfg.ResourceGroup, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of public addresses", sent: sent}, err)
		}
		for _, v := range page.Value {
			if p.leftIP(v) {
				out = append(out, cloud.Leftover{Kind: kindIP, ID: of(v.Name)})
			}
		}
	}
	for pager := p.disks.NewListByResourceGroupPager(p.cfg.ResourceGroup, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of disks", sent: sent}, err)
		}
		for _, v := range page.Value {
			if p.leftDisk(v) {
				l := cloud.Leftover{Kind: kindDisk, ID: of(v.Name)}
				if v.Properties.TimeCreated != nil {
					l.Created = muster.At(*v.Properties.TimeCreated)
				}
				out = append(out, l)
			}
		}
	}
	return out, nil
}

func (m marks) leftNIC(v *armnetwork.Interface) bool {
	return v != nil && m.owns(of(v.Name), v.Tags) && v.Properties != nil && v.Properties.VirtualMachine == nil && v.Properties.PrivateEndpoint == nil
}

func (m marks) leftIP(v *armnetwork.PublicIPAddress) bool {
	return v != nil && m.owns(of(v.Name), v.Tags) && v.Properties != nil && v.Properties.IPConfiguration == nil && v.Properties.NatGateway == nil
}

func (m marks) leftDisk(v *armcompute.Disk) bool {
	return v != nil && m.owns(of(v.Name), v.Tags) && v.ManagedBy == nil && v.Properties != nil && of(v.Properties.DiskState) == armcompute.DiskStateUnattached
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	driver.Each(len(of), driver.AtOnce, func(i int) { errs[i] = p.remove(ctx, of[i]) })
	return errs
}

func (p *Provider) remove(ctx context.Context, l cloud.Leftover) error {
	what := l.Kind + " " + l.ID
	if l.ID == "" || strings.ContainsAny(l.ID, "/?#") {
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud has no such name", what)
	}
	ctx, sent := driver.Trace(ctx)
	left, group := false, p.cfg.ResourceGroup
	var err error
	var remove func() error
	switch l.Kind {
	case kindNIC:
		var v armnetwork.InterfacesClientGetResponse
		v, err = p.nics.Get(ctx, group, l.ID, nil)
		left = err == nil && p.leftNIC(&v.Interface)
		remove = func() error { _, err := p.nics.BeginDelete(ctx, group, l.ID, nil); return err }
	case kindIP:
		var v armnetwork.PublicIPAddressesClientGetResponse
		v, err = p.ips.Get(ctx, group, l.ID, nil)
		left = err == nil && p.leftIP(&v.PublicIPAddress)
		remove = func() error { _, err := p.ips.BeginDelete(ctx, group, l.ID, nil); return err }
	case kindDisk:
		var v armcompute.DisksClientGetResponse
		v, err = p.disks.Get(ctx, group, l.ID, nil)
		left = err == nil && p.leftDisk(&v.Disk)
		remove = func() error { _, err := p.disks.BeginDelete(ctx, group, l.ID, nil); return err }
	default:
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud leaves no such thing", what)
	}
	if err == nil && !left {
		return muster.Faultf(muster.FaultNotFound, "%s is not a leftover of owner %s", what, p.cfg.Owner)
	}
	if err == nil {
		err = remove()
	}
	if err == nil {
		return nil
	}
	if f := p.fault(call{what: "delete " + what, sent: sent}, err); f.Kind != muster.FaultNotFound {
		return f
	}
	return nil
}
