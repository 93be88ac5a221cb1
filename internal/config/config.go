// Package config knows the server's configuration, the file muster.yaml: its defaults, its checks,
// what a reload would change, and how it is shown without its secrets. The types are those of
// package api, because a server shows its configuration over the API (GET /v1/config).
package config

import (
	"cmp"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Defaults of a server.
const (
	DefaultListen    = "127.0.0.1:4750"
	defaultBlobQuota = api.Size(20 << 30)
	defaultRetention = api.Duration(24 * time.Hour)
	defaultHistory   = api.Duration(30 * 24 * time.Hour)
	// defaultFresh of image_cache: so long a tag means what it meant.
	defaultFresh = api.Duration(time.Minute)
	// defaultKeptAttempts of a member.
	defaultKeptAttempts = 5
	defaultPoolMax      = 100
	defaultIdleTimeout  = api.Duration(time.Minute)
	defaultStopTimeout  = api.Duration(24 * time.Hour)
	defaultBootTimeout  = api.Duration(5 * time.Minute)
	defaultGrace        = api.Duration(time.Minute)
	defaultExecTimeout  = api.Duration(time.Minute)
	// MinToken is how short a token of an operator's own may be.
	MinToken         = 16
	defaultBootProbe = api.Duration(30 * time.Second)
	defaultLease     = api.Duration(time.Hour)
	defaultHostDir   = "/var/lib/muster"
	defaultShutdown  = "poweroff"
	// cloudBootProbe succeeds once cloud-init is done with all that the user data asks for.
	cloudBootProbe   = "test -e /run/cloud-init/result.json"
	defaultCloudDisk = 50 * api.Size(muster.GiB)
	// defaultPriceFactor lets the next size of a family stand in for one that is sold out: most ladders double.
	defaultPriceFactor = 2.0
)

// Defaults fills in what was left out, but for data_dir, blob.url (the
// directory blobs in data_dir) and low_water, which the server knows when it
// starts. Doing it twice changes nothing more.
func Defaults(s *api.ServerConfig) {
	fill(&s.Listen, DefaultListen)
	fill(&s.Log.Format, "text")
	fill(&s.Log.Level, "info")
	fill(&s.Blob.Quota, defaultBlobQuota)
	if s.ImageCache.Size > 0 {
		fill(&s.ImageCache.Fresh, defaultFresh)
	}
	fill(&s.Retention.Jobs, defaultRetention)
	fill(&s.Retention.Nodes, defaultRetention)
	fill(&s.Retention.History, defaultHistory)
	fill(&s.Retention.Attempts, defaultKeptAttempts)
	fill(&s.Blob.Retention, s.Retention.Jobs)
	if p := s.Compat.Poseidon; p != nil {
		fill(&p.MemoryReserve, api.DefaultMemoryReserve)
		fill(&p.Namespace, string(muster.DefaultNamespace))
	}
	for i := range s.Providers {
		providerDefaults(&s.Providers[i])
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		if len(p.Offerings) == 0 {
			p.Offerings = offerings(s, p.Provider)
		}
		fill(&p.Max, max(defaultPoolMax, p.Min))
		fill(&p.IdleTimeout, defaultIdleTimeout)
		if p.Stop.Most > 0 {
			fill(&p.Stop.Timeout, defaultStopTimeout)
		}
		fill(&p.BootTimeout, defaultBootTimeout)
		fill(&p.Grace, defaultGrace)
		fill(&p.Fence, p.Grace/2)
		fill(&p.MaxLaunching, p.Max)
		fill(&p.PriceFactor, defaultPriceFactor)
		fill(&p.InputLimit, api.DefaultInputLimit)
		fill(&p.Placement, api.PlacementBinpack)
		probeDefaults(&p.BootProbe)
		if endsBilling(s.Provider(p.Provider)) {
			fill(&p.Lease, defaultLease)
		}
	}
}

func providerDefaults(p *api.ProviderSpec) {
	for j := range p.Offerings {
		o := &p.Offerings[j]
		fill(&o.Market, string(muster.OnDemand))
		for k := range o.Devices {
			fill(&o.Devices[k].Kind, api.DefaultDeviceKind)
			fill(&o.Devices[k].Count, 1)
		}
	}
	if p.Type == api.ProviderExec {
		fill(&p.Timeout, defaultExecTimeout)
	}
	cloudDefaults(p)
	if p.SSH != nil {
		// The drivers of clouds know the login user of their images.
		if !isCloud(p) {
			fill(&p.SSH.User, "root")
		}
		fill(&p.SSH.Dir, defaultHostDir)
		fill(&p.SSH.Shutdown, defaultShutdown)
	}
	probeDefaults(&p.BootProbe)
}

func probeDefaults(p *api.ProbeSpec) {
	if p.Command != "" {
		fill(&p.Timeout, defaultBootProbe)
	}
}

// offerings are the names of what a provider sells; of a program they are not known beforehand.
func offerings(s *api.ServerConfig, name string) []string {
	p := s.Provider(name)
	var names []string
	for j := range p.Offerings {
		names = append(names, p.Offerings[j].Name)
	}
	for j := range p.Hosts {
		if p.Hosts[j].Offering == "" {
			names = append(names, p.Hosts[j].Name)
		}
	}
	return names
}

// Dev is what muster dev runs with on a host of so many cores and
// so much memory: one local provider with an offering of one core and one of
// the whole host, and a pool of both. A quarter of the memory is left to the host.
// DataDir is for the caller to set.
func Dev(cpus int, memory muster.Bytes) api.ServerConfig {
	cpus = max(cpus, 1)
	usable := max(api.Size(memory-memory/4)/api.Size(muster.MiB)*api.Size(muster.MiB), 64*api.Size(muster.MiB))
	share := max(usable/api.Size(cpus)/api.Size(muster.MiB)*api.Size(muster.MiB), 64*api.Size(muster.MiB))
	offerings := []api.OfferingSpec{{Name: "small", CPU: 1, Memory: share, Disk: devDisk, Price: 0.01, Max: cpus}}
	if cpus > 1 {
		offerings = append(offerings, api.OfferingSpec{Name: "large", CPU: float64(cpus), Memory: usable, Disk: devDisk, Price: 0.01 * float64(cpus), Max: 1})
	}
	c := api.ServerConfig{
		Providers: []api.ProviderSpec{{Name: api.ProviderLocal, Type: api.ProviderLocal, Offerings: offerings}},
		Pools:     []api.PoolSpec{{Name: "dev", Provider: api.ProviderLocal, Max: cpus}},
	}
	Defaults(&c)
	return c
}

// devDisk is what a dev node claims to have of disk: it shares the host's.
const devDisk = api.Size(10 << 30)

func fill[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }
