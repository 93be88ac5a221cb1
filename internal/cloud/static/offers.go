package static

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/musterhq/muster"
)

// Offers is cloud.Provider's: the offerings of the configuration, as many of each as there are hosts, and
// one for each host that is measured. A host that was never reached is not offered.
func (p *Provider) Offers(ctx context.Context) ([]muster.Offering, error) {
	if err := ctx.Err(); err != nil {
		return nil, transient(err, "offers")
	}
	count := map[muster.OfferingName]int{}
	var own []*Host
	for i := range p.cfg.List {
		if h := &p.cfg.List[i]; h.Offering == "" {
			own = append(own, h)
		} else {
			count[h.Offering]++
		}
	}
	var out []muster.Offering
	for _, o := range p.cfg.Offerings {
		o.Provider, o.Market = p.cfg.Name, muster.OnDemand
		o.Limit, o.Available = count[o.Name], count[o.Name] > 0
		if o.Available {
			out = append(out, o)
		}
	}
	known, err := p.measure(ctx, own)
	if err != nil {
		return nil, err
	}
	for _, h := range own {
		f, ok := known[h.Name]
		if !ok {
			continue
		}
		attributes := map[string]string{"os": "linux", "arch": f.Arch}
		maps.Copy(attributes, h.Attributes)
		out = append(out, muster.Offering{
			Provider: p.cfg.Name, Name: muster.OfferingName(h.Name), Zone: h.Zone, Market: muster.OnDemand, Price: h.Price,
			Capacity: usable(f.Capacity), Attributes: attributes, Available: true, Limit: 1,
		})
	}
	return out, nil
}

// usable is what a host has for work: some of it is the host's own.
func usable(r muster.Resources) muster.Resources {
	r.Memory -= max(hostMemory, r.Memory/hostShare)
	r.Disk -= r.Disk / hostShare
	return r
}

// measure is what is known of hosts, after those of which nothing is were asked. What was found
// once is kept: a host that is down while the server starts is still one that there is.
func (p *Provider) measure(ctx context.Context, hosts []*Host) (map[string]Found, error) {
	if err := p.takeOver(ctx); err != nil {
		return nil, err
	}
	before, err := p.cfg.Records.Found()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.found = maps.Clone(before)
	if p.found == nil {
		p.found = map[string]Found{}
	}
	var ask []*Host
	for _, h := range hosts {
		if f, ok := p.found[h.Name]; ok && f.Address == h.Access.Address && f.Capacity.CPU > 0 {
			continue
		}
		delete(p.found, h.Name)
		ask = append(ask, h)
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, measureFor)
	defer cancel()
	var wg sync.WaitGroup
	const atOnce = 16
	tokens := make(chan struct{}, atOnce)
	for _, h := range ask {
		if !p.may(h.Name) {
			continue
		}
		tokens <- struct{}{}
		wg.Go(func() {
			p.measureOne(ctx, h)
			<-tokens
		})
	}
	wg.Wait()
	p.mu.Lock()
	known := maps.Clone(p.found)
	p.mu.Unlock()
	// What is no more in the configuration is forgotten.
	maps.DeleteFunc(known, func(name string, _ Found) bool {
		return !slices.ContainsFunc(hosts, func(h *Host) bool { return h.Name == name })
	})
	if !maps.Equal(known, before) {
		if err := p.cfg.Records.SetFound(context.WithoutCancel(ctx), known); err != nil {
			p.log.Warn("what was found of hosts is not kept", "error", err)
		}
	}
	return known, nil
}

func (p *Provider) measureOne(ctx context.Context, h *Host) {
	r, arch, err := p.cfg.Hosts.Measure(ctx, h.Access)
	if err == nil && usable(r).Memory <= 0 {
		err = muster.Faultf(muster.FaultInvalid, "it has %d bytes of memory, of which %d are left to itself", int64(r.Memory), int64(hostMemory))
	}
	if err != nil {
		p.log.Warn("host not measured: it is not offered until it is", "host", h.Name, "again_in", p.cfg.AgainAfter, "error", err)
		p.failed(h.Name, err)
		return
	}
	p.log.Info("host measured", "host", h.Name, "capacity", r.String(), "arch", arch)
	p.mu.Lock()
	p.found[h.Name] = Found{Address: h.Access.Address, Capacity: r, Arch: arch}
	delete(p.tried, h.Name)
	delete(p.why, h.Name)
	p.mu.Unlock()
}
