package api

import (
	"time"

	"github.com/musterhq/muster"
)

// ServerConfig is the file muster.yaml: what a server is told at its start.
type ServerConfig struct {
	// DataDir holds everything that the server keeps.
	DataDir string `json:"data_dir,omitempty" doc:"Directory of everything that the server keeps: its log, snapshots, token and, by default, blobs. An absolute path, or relative to where the server starts."`
	// Listen is the address of the HTTP API.
	Listen string `json:"listen,omitempty" doc:"Address of the HTTP API, as host:port. Default: 127.0.0.1:4750."`
	// AllowedHosts are names under which the API may be asked besides loopback.
	AllowedHosts []string `json:"allowed_hosts,omitempty" doc:"Host names under which the API may be asked, besides loopback ones. Requests with another Host are refused."`
	// NoAuth lets everyone on this host in.
	NoAuth bool `json:"no_auth,omitempty" doc:"Ask for no token. Only on a loopback address."`
	// Log says how the server tells what it does.
	Log LogConfig `json:"log,omitempty"`
	// Blob says where output is kept.
	Blob BlobConfig `json:"blob,omitempty" doc:"Where output, declared outputs and uploads are kept."`
	// Retention says how long ended things are kept.
	Retention RetentionConfig `json:"retention,omitempty" doc:"How long what has ended is kept."`
	// LowWater is the free disk below which writes are refused.
	LowWater Size `json:"low_water,omitempty" zero:"the larger of 1GiB and 5 % of the disk" doc:"Free disk of the data directory below which writes are refused. Default: the larger of 1GiB and 5 % of the disk."`
	// Providers are the clouds that nodes come from.
	Providers []ProviderSpec `json:"providers,omitempty" doc:"Where nodes come from."`
	// Registries are where images come from, as far as there is something to say of them.
	Registries []RegistrySpec `json:"registries,omitempty" doc:"Registries of images that need credentials, a mirror or plain HTTP. Others are asked without credentials."`
	// Pools are the rules by which nodes are made.
	Pools []PoolSpec `json:"pools,omitempty" doc:"Rules by which nodes are made and given up."`
}

// LogConfig says how the server tells what it does, on its stderr.
type LogConfig struct {
	Format string `json:"format,omitempty" enum:"text,json" doc:"Default: text."`
	Level  string `json:"level,omitempty" enum:"debug,info,warn,error" doc:"Default: info."`
}

// BlobConfig says where output, declared outputs and uploads are kept.
type BlobConfig struct {
	URL       string   `json:"url,omitempty" doc:"A bucket, as s3://name or file:///path. Default: the directory blobs in the data directory."`
	Quota     Size     `json:"quota,omitempty" zero:"20GiB" doc:"How much all of it may take; past it that of the longest ended jobs is deleted. Default: 20GiB."`
	Retention Duration `json:"retention,omitempty" zero:"that of jobs" doc:"How long blobs of ended jobs are kept, at most as long as the jobs. Default: as long as the jobs."`
}

// RetentionConfig says how long ended things are kept.
type RetentionConfig struct {
	Jobs  Duration `json:"jobs,omitempty" zero:"24h" doc:"Ended jobs with their allocations. Default: 24h."`
	Nodes Duration `json:"nodes,omitempty" zero:"24h" doc:"Nodes that are gone. Default: 24h."`
}

// ProviderSpec is one configured cloud.
type ProviderSpec struct {
	Name      string         `json:"name" doc:"Pools refer to it by this name."`
	Type      string         `json:"type" enum:"local" doc:"local: instances are agent processes on the server's own host."`
	Offerings []OfferingSpec `json:"offerings,omitempty" doc:"What it sells; for local, what is written here."`
}

// OfferingSpec is one kind of instance that a local provider makes.
type OfferingSpec struct {
	Name       string            `json:"name"`
	CPU        float64           `json:"cpu" doc:"Cores."`
	Memory     Size              `json:"memory" doc:"As 2GiB."`
	Disk       Size              `json:"disk,omitempty" doc:"As 10GiB. Default: 0, for members that ask for none."`
	Price      float64           `json:"price,omitempty" doc:"Per hour, in a currency of your choice. Default: 0."`
	Zone       string            `json:"zone,omitempty"`
	Market     string            `json:"market,omitempty" enum:"on-demand,spot" doc:"Default: on-demand."`
	BootDelay  Duration          `json:"boot_delay,omitempty" doc:"How long an instance pretends to boot. Default: 0s."`
	Attributes map[string]string `json:"attributes,omitempty" doc:"Node attributes, for constraints."`
	Max        int               `json:"max,omitempty" zero:"no limit of its own" doc:"How many instances there can be at once. Default: no limit but the pool's."`
}

// PoolSpec is an operator's rule for a set of nodes.
type PoolSpec struct {
	Name         string     `json:"name"`
	Provider     string     `json:"provider" doc:"Name of a provider."`
	Offerings    []string   `json:"offerings,omitempty" doc:"Names of the provider's offerings that may be used. Default: all."`
	Max          int        `json:"max,omitempty" zero:"100" doc:"How many nodes there may be at once. Default: 100."`
	Min          int        `json:"min,omitempty" doc:"How many nodes are kept even without work. Default: 0."`
	IdleTimeout  Duration   `json:"idle_timeout,omitempty" zero:"1m" doc:"A node without work for so long is destroyed. Default: 1m."`
	BootTimeout  Duration   `json:"boot_timeout,omitempty" zero:"5m" doc:"An instance that does not answer for so long is given up. Default: 5m."`
	MaxLaunching int        `json:"max_launching,omitempty" zero:"as many as max" doc:"How many nodes may be launching or booting at once. Default: as many as max."`
	Spare        int        `json:"spare,omitempty" doc:"How many nodes without work are kept ready, beyond those that waiting work will use. Default: 0."`
	PriceFactor  float64    `json:"price_factor,omitempty" zero:"2" doc:"How many times the price of its cheapest offering that fits the pool may pay when that one cannot be had, at least 1. What would cost more is waited for. Default: 2."`
	Budget       BudgetSpec `json:"budget,omitzero" doc:"What the pool may cost. Past it nothing is launched; what runs goes on."`
}

// BudgetSpec is what a pool may cost, in the currency that prices are given in.
type BudgetSpec struct {
	PerHour  float64 `json:"per_hour,omitempty" zero:"no limit" doc:"All its nodes together in an hour, those on their way included, spot ones at the most they may cost. Default: no limit."`
	PerMonth float64 `json:"per_month,omitempty" zero:"no limit" doc:"All its nodes in a calendar month (UTC): what was spent and an hour more of what there is must leave room for an hour of a new node. Default: no limit."`
}

// RegistrySpec is a registry of images. Its credentials stay with the server: a
// node gets a token for each image that it pulls.
type RegistrySpec struct {
	Host            string        `json:"host" doc:"As in the names of images: docker.io, ghcr.io, registry.example.org:5000."`
	Username        string        `json:"username,omitempty"`
	Password        muster.Secret `json:"password,omitzero" doc:"Or a token, where the registry calls it that. Better in a file of its own: password_file."`
	PasswordFile    string        `json:"password_file,omitempty" doc:"A file with the password, read whenever it is needed. An absolute path."`
	Mirror          string        `json:"mirror,omitempty" doc:"Asked first for this registry's images, as HOST or HOST/PREFIX. What it does not have comes from the registry itself. Credentials for it, and insecure, are those of an entry with its host."`
	Insecure        bool          `json:"insecure,omitempty" doc:"Plain HTTP is allowed, and so is a registry on the node itself (localhost)."`
	SendCredentials bool          `json:"send_credentials,omitempty" doc:"Some registries make no tokens: username and password themselves are then sent to nodes. Without this such a registry is not used with credentials."`
}

// ProviderLocal is the provider type whose instances are agent processes on the server's host.
const ProviderLocal = "local"

// Defaults of a server.
const (
	DefaultListen      = "127.0.0.1:4750"
	DefaultBlobQuota   = Size(20 << 30)
	DefaultRetention   = Duration(24 * time.Hour)
	DefaultPoolMax     = 100
	DefaultIdleTimeout = Duration(time.Minute)
	DefaultBootTimeout = Duration(5 * time.Minute)
	// DefaultPriceFactor lets the next size of a family stand in for one that is sold out: most ladders double.
	DefaultPriceFactor = 2.0
)

// Defaults fills in what was left out, but for data_dir, blob.url (the
// directory blobs in data_dir) and low_water, which the server knows when it
// starts. Doing it twice changes nothing more.
func (s *ServerConfig) Defaults() {
	fill(&s.Listen, DefaultListen)
	fill(&s.Log.Format, "text")
	fill(&s.Log.Level, "info")
	fill(&s.Blob.Quota, DefaultBlobQuota)
	fill(&s.Retention.Jobs, DefaultRetention)
	fill(&s.Retention.Nodes, DefaultRetention)
	fill(&s.Blob.Retention, s.Retention.Jobs)
	for i := range s.Providers {
		for j := range s.Providers[i].Offerings {
			fill(&s.Providers[i].Offerings[j].Market, string(muster.OnDemand))
		}
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		if len(p.Offerings) == 0 {
			p.Offerings = s.offerings(p.Provider)
		}
		fill(&p.Max, max(DefaultPoolMax, p.Min))
		fill(&p.IdleTimeout, DefaultIdleTimeout)
		fill(&p.BootTimeout, DefaultBootTimeout)
		fill(&p.MaxLaunching, p.Max)
		fill(&p.PriceFactor, DefaultPriceFactor)
	}
}

// offerings are the names of what a provider sells.
func (s *ServerConfig) offerings(provider string) []string {
	var names []string
	for i := range s.Providers {
		if s.Providers[i].Name != provider {
			continue
		}
		for j := range s.Providers[i].Offerings {
			names = append(names, s.Providers[i].Offerings[j].Name)
		}
	}
	return names
}

// DefaultDevConfig is what muster dev runs with on a host of so many cores and
// so much memory: one local provider with an offering of one core and one of
// the whole host, and a pool of both. A quarter of the memory is left to the host.
// DataDir is for the caller to set.
func DefaultDevConfig(cpus int, memory muster.Bytes) ServerConfig {
	cpus = max(cpus, 1)
	usable := max(Size(memory-memory/4)/Size(muster.MiB)*Size(muster.MiB), 64*Size(muster.MiB))
	share := max(usable/Size(cpus)/Size(muster.MiB)*Size(muster.MiB), 64*Size(muster.MiB))
	offerings := []OfferingSpec{{Name: "small", CPU: 1, Memory: share, Disk: devDisk, Price: 0.01, Max: cpus}}
	if cpus > 1 {
		offerings = append(offerings, OfferingSpec{Name: "large", CPU: float64(cpus), Memory: usable, Disk: devDisk, Price: 0.01 * float64(cpus), Max: 1})
	}
	c := ServerConfig{
		Providers: []ProviderSpec{{Name: ProviderLocal, Type: ProviderLocal, Offerings: offerings}},
		Pools:     []PoolSpec{{Name: "dev", Provider: ProviderLocal, Max: cpus}},
	}
	c.Defaults()
	return c
}

// devDisk is what a dev node claims to have of disk: it shares the host's.
const devDisk = Size(10 << 30)
