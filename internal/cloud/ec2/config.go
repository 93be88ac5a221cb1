package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Config is what a Provider needs. Name, Owner, Region, Subnets and SecurityGroups have no default.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Region is as eu-central-1.
	Region string
	// Subnets are those to launch in, in the order in which those of one zone are tried. Their zones
	// are the zones of the offerings.
	Subnets        []string
	SecurityGroups []string
	// Types are patterns of instance types. Empty: the two newest families each of general, compute
	// and memory types up to 32 cores.
	Types driver.Globs
	// Markets are those to launch in; empty: on demand.
	Markets []muster.Market
	// Image is an alias as debian-12, the id of an image, or the name of a parameter of the parameter
	// store that has one, which begins with a slash. Empty: debian-12.
	Image string
	// Disk is the size of the root disk; 0: 50 GiB.
	Disk muster.Bytes
	// PublicIP gives instances a public address, over which the server then reaches them.
	PublicIP bool
	// InstanceProfile is the name or ARN of the instances' IAM profile; empty: none.
	InstanceProfile string
	Prices          driver.Prices

	// Access is how instances are reached, without their addresses. User is that of the image's alias
	// if empty, Shutdown is poweroff.
	Access cloud.Access

	// Profile is one of the AWS configuration files, CredentialsFile a file in their format. Both
	// empty: AWS's own chain (environment, files, web identity, the machine's role).
	Profile, CredentialsFile string
	// Credentials are used instead of all that if not nil.
	Credentials aws.CredentialsProvider

	// Endpoint is the address of the EC2 API; empty: AWS's own. If it is not one of AWS's, then the
	// parameter store and the price list are asked there, too.
	Endpoint string

	// Client makes the calls; nil: one that uses proxies of the environment.
	Client *http.Client
	// Now is the clock; nil: the system's.
	Now    func() time.Time
	Logger *slog.Logger
}

const (
	defaultImage = "debian-12"
	defaultDisk  = 50 * muster.GiB
	// maxSubnets and maxGroups are EC2's own bounds, roughly; a longer list is a mistake.
	maxSubnets, maxGroups = 64, 16
)

// Provider is EC2 in one region, for one owner. It keeps in memory what lists and creates have
// shown, and nothing that a new process would miss.
type Provider struct {
	cfg    Config
	log    *slog.Logger
	api    client
	image  image
	launch cloud.Pace
	// throttle is for accounts that let through less than launch does; patience is how long a launch
	// waits for it after it was refused.
	throttle driver.Throttle
	patience time.Duration

	types     driver.Cached[[]typeInfo]
	zonesOf   driver.Cached[map[string][]string]
	subnets   driver.Cached[[]subnet]
	onDemand  driver.Cached[map[string]float64]
	spot      driver.Cached[map[typeZone]float64]
	images    map[string]*driver.Cached[machineImage] // by architecture
	pins      pins
	refusals  refusals
	began     time.Time
	instances instances
	launches  launches
}

var (
	_ cloud.Provider       = (*Provider)(nil)
	_ cloud.Accessor       = (*Provider)(nil)
	_ cloud.Bootable       = (*Provider)(nil)
	_ cloud.Consistent     = (*Provider)(nil)
	_ cloud.Rated          = (*Provider)(nil)
	_ cloud.Paced          = (*Provider)(nil)
	_ cloud.NoticeReader   = (*Provider)(nil)
	_ cloud.MetadataServed = (*Provider)(nil)
	_ cloud.Sweeper        = (*Provider)(nil)
	_ cloud.Stopper        = (*Provider)(nil)
	_ cloud.Resolver       = (*Provider)(nil)
)

// New makes the provider. It reads credential files and calls nothing.
func New(cfg Config) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", cmp.Or(string(cfg.Name), "ec2"), err)
	}
	img, err := imageOf(cmp.Or(cfg.Image, defaultImage))
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", cfg.Name, err)
	}
	cfg.Access.Shutdown = cmp.Or(cfg.Access.Shutdown, "poweroff")
	if cfg.Access.User = cmp.Or(cfg.Access.User, img.user); cfg.Access.User == "" {
		return nil, fmt.Errorf("provider %s: ssh.user is missing: name the login user of image %s, as admin; it is known of aliases only, as debian-12", cfg.Name, cfg.Image)
	}
	if len(cfg.Markets) == 0 {
		cfg.Markets = []muster.Market{muster.OnDemand}
	}
	cfg.Disk = cmp.Or(cfg.Disk, defaultDisk)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Client == nil {
		cfg.Client = &http.Client{Transport: transport(), CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a launch that is sent on could be made twice
		}}
	}
	credentials := cfg.Credentials
	if credentials == nil {
		if credentials, err = chain(&cfg); err != nil {
			return nil, fmt.Errorf("provider %s: credentials: %w", cfg.Name, err)
		}
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, image: img}
	p.api = client{http: cfg.Client, signer: v4.NewSigner(), credentials: credentials, region: cfg.Region, now: cfg.Now, provider: cfg.Name, lacking: cfg.lacking()}
	p.api.endpoints(cfg.Endpoint)
	// EC2 allows two launches a second and five at once, however many instances each has.
	p.launch.Rate = cloud.Rate{PerSecond: 2, Burst: 5}
	p.throttle.Least, p.patience = time.Second/2, launchPatience
	p.prepareCaches()
	p.began = cfg.Now()
	p.pins.m, p.refusals.until = map[pinKey]*pin{}, map[string]time.Time{}
	p.instances.m, p.instances.listings = map[muster.InstanceID]*instance{}, map[string]*listing{}
	p.launches.m = map[muster.Token]*launch{}
	return p, nil
}

func (p *Provider) prepareCaches() {
	day, now := 24*time.Hour, p.cfg.Now
	p.types = driver.Cached[[]typeInfo]{Read: p.readTypes, Life: day, Stale: day, Now: now}
	p.zonesOf = driver.Cached[map[string][]string]{Read: p.readZones, Life: day, Stale: day, Now: now}
	p.subnets = driver.Cached[[]subnet]{Read: p.readSubnets, Life: 5 * time.Minute, Stale: time.Hour, Now: now}
	p.onDemand = driver.Cached[map[string]float64]{Read: p.readPrices, Life: day / 2, Stale: day, Now: now}
	p.spot = driver.Cached[map[typeZone]float64]{Read: p.readSpotPrices, Life: 10 * time.Minute, Stale: time.Hour, Now: now}
	p.images = map[string]*driver.Cached[machineImage]{}
	for _, arch := range []string{archAMD, archARM} {
		p.images[arch] = &driver.Cached[machineImage]{Life: time.Hour, Stale: day, Now: now,
			Read: func(ctx context.Context) (machineImage, error) { return p.readImage(ctx, arch) }}
	}
}

// check refuses what can never work, in sentences that say where to find what is missing.
func (c *Config) check() error {
	switch {
	case c.Name == "" || c.Owner == "":
		return errors.New("name and owner are missing")
	case c.Region == "":
		return errors.New("region is missing: the region of the subnets, as eu-central-1")
	case strings.ContainsAny(c.Region, "/.: "):
		return fmt.Errorf("region %q is not the name of a region: write it as eu-central-1", c.Region)
	case len(c.Subnets) == 0:
		return errors.New("subnets are missing: find them with aws ec2 describe-subnets, one or more per zone to launch in")
	case len(c.Subnets) > maxSubnets:
		return fmt.Errorf("%d subnets; there may be %d", len(c.Subnets), maxSubnets)
	case len(c.SecurityGroups) == 0:
		return errors.New("security_groups are missing: name one that lets this server in on port 22, found with aws ec2 describe-security-groups")
	case len(c.SecurityGroups) > maxGroups:
		return fmt.Errorf("%d security groups; there may be %d", len(c.SecurityGroups), maxGroups)
	case len(c.Types) > maxValues:
		return fmt.Errorf("%d patterns of types; there may be %d: write wider ones", len(c.Types), maxValues)
	case c.Disk < 0 || c.Disk > 64*muster.TiB:
		return fmt.Errorf("disk %s: a root disk has 1GiB to 64TiB", c.Disk)
	case c.Disk%muster.GiB != 0:
		return fmt.Errorf("disk %s: EC2 counts in GiB", c.Disk)
	}
	for _, s := range c.Subnets {
		if !strings.HasPrefix(s, "subnet-") {
			return fmt.Errorf("subnets: %q is not the id of a subnet, which begins with subnet-", s)
		}
	}
	for _, g := range c.SecurityGroups {
		if !strings.HasPrefix(g, "sg-") {
			return fmt.Errorf("security_groups: %q is not the id of a security group, which begins with sg-", g)
		}
	}
	for _, m := range c.Markets {
		if m != muster.OnDemand && m != muster.Spot {
			return fmt.Errorf("markets: %q is neither %s nor %s", m, muster.OnDemand, muster.Spot)
		}
	}
	return cmp.Or(driver.CheckEndpoint(c.Endpoint, "https://host"), c.Types.Check(), c.Prices.Check())
}

// lacking says what to do where there are no credentials.
func (c *Config) lacking() string {
	switch {
	case c.CredentialsFile != "":
		return fmt.Sprintf("credentials.file, %s, must be there and have aws_access_key_id and aws_secret_access_key under [%s]", c.CredentialsFile, cmp.Or(c.Profile, "default"))
	case c.Profile != "":
		return fmt.Sprintf("the files in ~/.aws of the user that runs the server must have profile %s, of credentials.profile", c.Profile)
	}
	return "set them in the environment, in ~/.aws, or give the machine a role"
}

// chain is AWS's own way to find credentials.
func chain(cfg *Config) (aws.CredentialsProvider, error) {
	// The library would write to stderr by itself. What it says is in the error as well.
	quiet := logging.LoggerFunc(func(_ logging.Classification, format string, v ...any) {
		cfg.Logger.Debug("credentials of AWS: "+fmt.Sprintf(format, v...), "provider", cfg.Name)
	})
	options := []func(*config.LoadOptions) error{config.WithRegion(cfg.Region), config.WithLogger(quiet)}
	if cfg.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(cfg.Profile))
	}
	if cfg.CredentialsFile != "" {
		files := []string{cfg.CredentialsFile}
		options = append(options, config.WithSharedCredentialsFiles(files), config.WithSharedConfigFiles(files))
	}
	loaded, err := config.LoadDefaultConfig(context.Background(), options...)
	if err != nil {
		return nil, err
	}
	if loaded.Credentials == nil {
		return nil, errors.New("none were found")
	}
	return loaded.Credentials, nil
}

// transport is http.DefaultTransport, which has the proxy of the configuration, with enough idle connections for a burst of launches.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return dial(ctx, network, address)
	}
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.IdleConnTimeout = 64, 32, 20*time.Second
	return t
}

// UserDataLimit is EC2's own. See cloud.Bootable.
func (p *Provider) UserDataLimit() int { return maxUserData }

// Consistency is that of EC2, which promises no number. See cloud.Consistent.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: listLag, Agreement: 30 * time.Second}
}

// Rates are below what EC2 allows an account in one region. Creates are counted by instance here;
// that there are two launches a second at most is kept by the driver, whatever their size.
// See cloud.Rated.
func (p *Provider) Rates() cloud.Rates {
	return cloud.Rates{
		Create: cloud.Rate{PerSecond: 2, Burst: 500}, Destroy: cloud.Rate{PerSecond: 5, Burst: 50},
		Read: cloud.Rate{PerSecond: 5, Burst: 20}, Tags: cloud.Rate{PerSecond: 5, Burst: 20},
	}
}

// Paces is cloud.Paced's: of calls that launch, each for several instances, besides the rates that count
// instances.
func (p *Provider) Paces() []cloud.PaceUse {
	all, measured := p.launch.Use("launch"), p.throttle.Use("launch")
	all.Rate.PerSecond = min(all.Rate.PerSecond, measured.Rate.PerSecond)
	all.Waited += measured.Waited
	all.Waiting += measured.Waiting
	all.Last = max(all.Last, measured.Last)
	return []cloud.PaceUse{all}
}

// Metadata is cloud.MetadataServed's.
func (p *Provider) Metadata() string { return "ec2" }

// wants reports whether the provider launches in a market.
func (p *Provider) wants(m muster.Market) bool { return slices.Contains(p.cfg.Markets, m) }

// refusals are what EC2 has refused for a while: a full subnet, or a type that a zone does not have.
type refusals struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (r *refusals) add(what string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until[what] = until
}

func (r *refusals) has(what string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.until[what]
	if ok && !now.Before(until) {
		delete(r.until, what)
	}
	return ok && now.Before(until)
}
