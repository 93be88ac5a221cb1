package openstack

import (
	"context"
	"net/http"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/blockstorage/v3/volumes"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Kinds of things that can stay behind.
const (
	kindVolume, kindPort, kindFloatingIP, kindPair = "volume", "port", "floating-ip", "key-pair"
)

// ownerTag is the tag by which ports and floating addresses are of this owner.
func (p *Provider) ownerTag() string { return driver.TagOwner + ":" + p.cfg.Owner }

// Leftovers is cloud.Sweeper's: volumes, ports and floating addresses with the owner's tag that
// belong to no server. The driver makes none of them: an operator who makes some for nodes, by hand
// or by a script, tags them so. And locks: one that a server of Muster has left when it was killed
// counts against the quota of key pairs, and its server may be there already, so that no create of it
// ever comes again.
func (p *Provider) Leftovers(ctx context.Context) ([]cloud.Leftover, error) {
	s, err := p.session(ctx, "list of leftovers")
	if err != nil {
		return nil, err
	}
	var out []cloud.Leftover
	ctx, sent := driver.Trace(ctx)
	if s.volume != nil {
		pages, err := volumes.List(s.volume, volumes.ListOpts{Metadata: map[string]string{driver.TagOwner: p.cfg.Owner}}).AllPages(ctx)
		if err != nil {
			return nil, p.fault(call{what: "list of volumes", sent: sent}, err)
		}
		list, err := volumes.ExtractVolumes(pages)
		if err != nil {
			return nil, p.fault(call{what: "list of volumes", sent: sent}, err)
		}
		for i := range list {
			if p.leftVolume(&list[i]) {
				out = append(out, cloud.Leftover{Kind: kindVolume, ID: list[i].ID, Created: muster.At(list[i].CreatedAt)})
			}
		}
	}
	locks, err := p.locks(ctx, s)
	if err != nil {
		return nil, p.fault(call{what: "list of key pairs", sent: sent}, err)
	}
	out = append(out, locks...)
	if s.network == nil {
		return out, nil
	}
	pages, err := ports.List(s.network, ports.ListOpts{Tags: p.ownerTag()}).AllPages(ctx)
	if err != nil {
		return nil, p.fault(call{what: "list of ports", sent: sent}, err)
	}
	held, err := ports.ExtractPorts(pages)
	if err != nil {
		return nil, p.fault(call{what: "list of ports", sent: sent}, err)
	}
	for i := range held {
		if p.leftPort(&held[i]) {
			out = append(out, cloud.Leftover{Kind: kindPort, ID: held[i].ID, Created: muster.At(held[i].CreatedAt)})
		}
	}
	pages, err = floatingips.List(s.network, floatingips.ListOpts{Tags: p.ownerTag()}).AllPages(ctx)
	if err != nil {
		return nil, p.fault(call{what: "list of floating addresses", sent: sent}, err)
	}
	addresses, err := floatingips.ExtractFloatingIPs(pages)
	if err != nil {
		return nil, p.fault(call{what: "list of floating addresses", sent: sent}, err)
	}
	for i := range addresses {
		if p.leftAddress(&addresses[i]) {
			out = append(out, cloud.Leftover{Kind: kindFloatingIP, ID: addresses[i].ID, Created: muster.At(addresses[i].CreatedAt)})
		}
	}
	return out, nil
}

// locks are the locks of this owner, held or left: lists do not say when they were made. Who removes
// one looks at that.
func (p *Provider) locks(ctx context.Context, s *session) ([]cloud.Leftover, error) {
	pages, err := keypairs.List(s.compute, nil).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	list, err := keypairs.ExtractKeyPairs(pages)
	if err != nil {
		return nil, err
	}
	var out []cloud.Leftover
	for i := range list {
		if owner, _ := p.lockOf(list[i].Name, list[i].PublicKey); owner {
			out = append(out, cloud.Leftover{Kind: kindPair, ID: list[i].Name})
		}
	}
	return out, nil
}

// leftPair reports whether a lock was left: no create holds one for so long.
func (p *Provider) leftPair(name string, v pair) bool {
	owner, _ := p.lockOf(name, v.Key)
	at, ok := timeOf(v.Created)
	return owner && ok && p.cfg.Now().Sub(at) >= lockLife
}

func (p *Provider) leftVolume(v *volumes.Volume) bool {
	return v.Metadata[driver.TagOwner] == p.cfg.Owner && len(v.Attachments) == 0 && (v.Status == "available" || v.Status == "error")
}

func (p *Provider) leftPort(v *ports.Port) bool {
	return slices.Contains(v.Tags, p.ownerTag()) && v.DeviceID == "" && v.DeviceOwner == ""
}

func (p *Provider) leftAddress(v *floatingips.FloatingIP) bool {
	return slices.Contains(v.Tags, p.ownerTag()) && v.PortID == ""
}

// Remove is cloud.Sweeper's.
func (p *Provider) Remove(ctx context.Context, of []cloud.Leftover) []error {
	errs := make([]error, len(of))
	driver.Each(len(of), driver.AtOnce, func(i int) { errs[i] = p.remove(ctx, of[i]) })
	return errs
}

func (p *Provider) remove(ctx context.Context, of cloud.Leftover) error {
	what := of.Kind + " " + of.ID
	s, err := p.session(ctx, what)
	if err != nil {
		return err
	}
	ctx, sent := driver.Trace(ctx)
	var left bool
	var drop func() error
	switch {
	case of.Kind == kindPair && lockName.MatchString(of.ID):
		v, e := p.readPair(ctx, s, of.ID)
		err, left = e, e == nil && p.leftPair(of.ID, v)
		drop = func() error { return keypairs.Delete(ctx, s.compute, of.ID, nil).ExtractErr() }
	case !isID(of.ID):
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud leaves no such thing", what)
	case of.Kind == kindVolume && s.volume != nil:
		v, e := volumes.Get(ctx, s.volume, of.ID).Extract()
		err, left = e, e == nil && p.leftVolume(v)
		drop = func() error { return volumes.Delete(ctx, s.volume, of.ID, nil).ExtractErr() }
	case of.Kind == kindPort && s.network != nil:
		v, e := ports.Get(ctx, s.network, of.ID).Extract()
		err, left = e, e == nil && p.leftPort(v)
		drop = func() error { return ports.Delete(ctx, s.network, of.ID).ExtractErr() }
	case of.Kind == kindFloatingIP && s.network != nil:
		v, e := floatingips.Get(ctx, s.network, of.ID).Extract()
		err, left = e, e == nil && p.leftAddress(v)
		drop = func() error { return floatingips.Delete(ctx, s.network, of.ID).ExtractErr() }
	default:
		return muster.Faultf(muster.FaultInvalid, "%s: this cloud leaves no such thing", what)
	}
	switch {
	case status(err) == http.StatusNotFound:
		return nil
	case err != nil:
		return p.fault(call{what: what, sent: sent}, err)
	case !left:
		return muster.Faultf(muster.FaultNotFound, "%s is not a leftover of owner %s", what, p.cfg.Owner)
	}
	if err := drop(); err != nil && status(err) != http.StatusNotFound {
		return p.fault(call{what: "delete " + what, sent: sent}, err)
	}
	return nil
}
