package gce

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Config is what a Provider needs. Name, Owner, Project, Zones and Prices have no default.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Project is the id of the project.
	Project string
	// Zones are those to launch in, as europe-west1-b.
	Zones []string
	// Subnetwork is the name of a subnetwork that each region of the zones has, or the path of one,
	// as projects/P/regions/R/subnetworks/S. Empty: default.
	Subnetwork string
	// Types are patterns of machine types. Empty: all that have a price, up to 32 cores, without GPU.
	Types driver.Globs
	// Markets are those to launch in; empty: on demand.
	Markets []muster.Market
	// Image is an alias as ubuntu-24.04, the name of an image of the project, or a path as
	// projects/P/global/images/family/F. It must have cloud-init. Empty: ubuntu-24.04.
	Image string
	// Disk is the size of the root disk; 0: 50 GiB.
	Disk muster.Bytes
	// PublicIP gives instances an external address, over which the server then reaches them.
	PublicIP bool
	// Prices are those of machine types, see priceOf. Google's own price list sells cores and memory
	// apart and cannot be matched with types, so a type without a price here is not offered.
	Prices driver.Prices
	// MaxLife is after how long the cloud deletes an instance by itself; 0: never.
	MaxLife time.Duration

	// Access is how instances are reached, without their addresses. User is ubuntu if empty, Shutdown
	// is poweroff.
	Access cloud.Access

	// CredentialsFile is a JSON file as Google's tools write; empty: Google's own chain (environment,
	// file of gcloud, the machine's service account).
	CredentialsFile string
	// Tokens are used instead of all that if not nil.
	Tokens oauth2.TokenSource

	// Endpoint is the address of the API; empty: Google's own.
	Endpoint string
	// Client makes the calls; nil: one that uses proxies of the environment.
	Client *http.Client
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Poll is the least time between two looks at an operation; 0: 1 s.
	Poll   time.Duration
	Logger *slog.Logger
}

const (
	defaultEndpoint   = "https://compute.googleapis.com/compute/v1"
	defaultImage      = "ubuntu-24.04"
	defaultSubnetwork = "default"
	defaultDisk       = 50 * muster.GiB
	defaultUser       = "ubuntu"
	// maxUserData is Google's bound for one value of an instance's metadata, in bytes.
	maxUserData = 256 << 10
	// maxLabel is how long the value of a label may be, maxLabels how many an instance may have.
	maxLabel, maxLabels = 63, 64
	// maxPage is how many things a page of a list may have.
	maxPage = 500
	// atOnce is how many calls of one batch run at the same time. Most of a create is waiting.
	atOnce = 32
	// leastLife and mostLife bound MaxLife; they are Google's.
	leastLife, mostLife = time.Minute, 120 * 24 * time.Hour
)

// Provider is Compute Engine in one project, for one owner. It keeps in memory what lists and creates
// have shown, and nothing that a new process would miss.
type Provider struct {
	cfg     Config
	log     *slog.Logger
	client  *http.Client
	tokens  driver.Cached[oauth2.TokenSource]
	types   driver.Cached[map[string][]machineType] // by zone
	regions driver.Cached[[]cloud.Quota]
	// creating are the tokens whose creates run now.
	creating driver.Tokens

	mu        sync.Mutex
	instances map[muster.InstanceID]*known
}

var (
	_ cloud.Provider       = (*Provider)(nil)
	_ cloud.Accessor       = (*Provider)(nil)
	_ cloud.Bootable       = (*Provider)(nil)
	_ cloud.Consistent     = (*Provider)(nil)
	_ cloud.Rated          = (*Provider)(nil)
	_ cloud.MetadataServed = (*Provider)(nil)
	_ cloud.Sweeper        = (*Provider)(nil)
	_ cloud.Stopper        = (*Provider)(nil)
	_ cloud.Suspender      = (*Provider)(nil)
	_ cloud.QuotaReader    = (*Provider)(nil)
	_ cloud.HostKeyReader  = (*Provider)(nil)
	_ cloud.Resolver       = (*Provider)(nil)
)

// New makes the provider. It calls nothing.
func New(cfg Config) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", cmp.Or(string(cfg.Name), "gce"), err)
	}
	cfg.Image, cfg.Disk = cmp.Or(cfg.Image, defaultImage), cmp.Or(cfg.Disk, defaultDisk)
	cfg.Subnetwork = cmp.Or(cfg.Subnetwork, defaultSubnetwork)
	cfg.Endpoint = strings.TrimSuffix(cmp.Or(cfg.Endpoint, defaultEndpoint), "/")
	cfg.Access.User = cmp.Or(cfg.Access.User, defaultUser)
	cfg.Access.Shutdown = cmp.Or(cfg.Access.Shutdown, "poweroff")
	cfg.Poll = cmp.Or(cfg.Poll, time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Markets) == 0 {
		cfg.Markets = []muster.Market{muster.OnDemand}
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, client: cfg.Client, instances: map[muster.InstanceID]*known{}}
	if p.client == nil {
		p.client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	// The source renews its tokens by itself. A new source is made each hour, so a new file needs no restart.
	p.tokens = driver.Cached[oauth2.TokenSource]{Read: p.readCredentials, Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	p.types = driver.Cached[map[string][]machineType]{Read: p.readTypes, Life: 24 * time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	p.regions = driver.Cached[[]cloud.Quota]{Read: p.readQuotas, Life: 5 * time.Minute, Now: cfg.Now}
	return p, nil
}

var (
	// label is what the value of a label may be, labelKey what its name may be.
	label    = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	labelKey = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	// projectID may have the domain of an old organisation in front.
	projectID = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	// zoneName is a region and a letter.
	zoneName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,58}[a-z0-9])?-[a-z]$`)
)

// check refuses what can never work, in sentences that say where to find what is missing.
func (c *Config) check() error {
	switch {
	case c.Name == "" || c.Owner == "":
		return errors.New("name and owner are missing")
	case !label.MatchString(c.Owner):
		return fmt.Errorf("owner %q cannot be a label: it may have %d lower-case letters, digits, dashes and underscores", c.Owner, maxLabel)
	case c.Project == "":
		return errors.New("project is missing: name the id of a project; `gcloud projects list` prints them")
	case !projectID.MatchString(c.Project):
		return fmt.Errorf("project: %q is not the id of a project: `gcloud projects list` prints them", c.Project)
	case len(c.Zones) == 0:
		return errors.New("zones are missing: name at least one, as europe-west1-b; `gcloud compute zones list` prints them")
	case len(c.Prices.Table) == 0:
		return errors.New("prices are missing: Google does not sell machine types at one price, so name prices of types, as n2-standard-4: 0.21, or of a family, as n2/cpu: 0.035 and n2/gib: 0.0047")
	case c.MaxLife != 0 && (c.MaxLife < leastLife || c.MaxLife > mostLife):
		return fmt.Errorf("max_life: %s is not between %s and %d days", c.MaxLife, leastLife, int(mostLife.Hours()/24))
	case strings.HasPrefix(c.Image, "debian-"):
		return fmt.Errorf("image: %s of Google has no cloud-init, so its nodes could not be reached: use ubuntu-24.04, or an image of your own", c.Image)
	}
	for _, z := range c.Zones {
		if !zoneName.MatchString(z) {
			return fmt.Errorf("zones: %q is not the name of a zone: write it as europe-west1-b", z)
		}
	}
	return cmp.Or(driver.CheckEndpoint(c.Endpoint, "https://host/compute/v1"), c.Types.Check(), c.Prices.Check())
}

// regionOf is the region of a zone.
func regionOf(zone string) string {
	i := strings.LastIndexByte(zone, '-')
	return zone[:max(i, 0)]
}

// UserDataLimit is cloud.Bootable's.
func (p *Provider) UserDataLimit() int { return maxUserData }

// Consistency is cloud.Consistent's. Google promises nothing; lists are read from zones that may be
// some seconds behind.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: 30 * time.Second, Agreement: 30 * time.Second}
}

// Metadata is cloud.MetadataServed's.
func (p *Provider) Metadata() string { return "gce" }

// Rates is cloud.Rated's. A project has 1,500 calls a minute in most groups of calls, which is 25 a
// second, shared with all other programs of the project. A create takes three calls or more.
func (p *Provider) Rates() cloud.Rates {
	return cloud.Rates{Create: cloud.Rate{PerSecond: 4, Burst: 40}, Destroy: cloud.Rate{PerSecond: 5, Burst: 50},
		Read: cloud.Rate{PerSecond: 5, Burst: 20}, Tags: cloud.Rate{PerSecond: 2, Burst: 20}}
}
