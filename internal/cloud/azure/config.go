package azure

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	azurecloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Config is what a Provider needs. Name, Owner, Subscription, ResourceGroup, Location, Subnet and
// Access.KeyFile have no default.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Subscription is the id of the subscription.
	Subscription string
	// ResourceGroup is the group of the machines. It exists already, best for this cluster alone.
	ResourceGroup string
	// Location is as westeurope.
	Location string
	// Zones are those to launch in, as 1, and Regional: wherever Azure likes. Empty: Regional alone.
	Zones []string
	// Subnet and SecurityGroup are resource ids. SecurityGroup may be empty.
	Subnet, SecurityGroup string
	// Types are patterns of sizes, as Standard_D*s_v5. Empty: the two newest versions each of general
	// (D), compute (F) and memory (E) sizes up to 32 cores, x86-64.
	Types driver.Globs
	// Markets are those to launch in; empty: on demand.
	Markets []muster.Market
	// Image is an alias as debian-12, publisher:offer:sku:version, or a resource id; empty: debian-12.
	Image string
	// Disk is the size of the root disk; 0: 50 GiB.
	Disk muster.Bytes
	// PublicIP gives machines a public IPv4 address, over which the server then reaches them.
	PublicIP bool
	Prices   driver.Prices

	// Access is how machines are reached, without their addresses. User is azureuser if empty. Azure
	// makes no machine without a key, so KeyFile is read and its public half goes into each create.
	// Shutdown is not used: a machine that shuts itself down is billed on.
	Access cloud.Access

	// Endpoint is the address of the resource manager; empty: that of the public cloud. If it is not
	// one of Azure's, then the price list is asked there, too.
	Endpoint string
	// Credential is used instead of Azure's own chain (environment, workload identity, the machine's
	// identity, the tool az) if not nil.
	Credential azcore.TokenCredential
	// Client makes the calls; nil: one that uses proxies of the environment.
	Client *http.Client
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Poll is the first time between two looks at an operation; 0: 3 s.
	Poll   time.Duration
	Logger *slog.Logger
}

// Regional is the zone of machines that Azure may place anywhere in the location.
const Regional = "regional"

const (
	defaultUser = "azureuser"
	defaultDisk = 50 * muster.GiB
	defaultPoll = 3 * time.Second
	// maxUserData is Azure's bound on custom data in bytes, before it is encoded.
	maxUserData = 65535
	// maxTag is how long the value of a tag may be, maxTags how many a machine may have.
	maxTag, maxTags = 256, 50
	// listLag is how long a list may lack a machine that was made.
	listLag = 2 * time.Minute
	// publicEndpoint is the resource manager of the public cloud.
	publicEndpoint = "https://management.azure.com"
)

// Provider is one resource group of Azure, for one owner. It keeps in memory what lists and creates
// have shown, and nothing that a new process would miss.
type Provider struct {
	cfg   Config
	log   *slog.Logger
	image image
	// endpoint is the host of the resource manager. Links to further pages stay there.
	endpoint *url.URL
	prices   priceReader

	vms    *armcompute.VirtualMachinesClient
	skus   *armcompute.ResourceSKUsClient
	usage  *armcompute.UsageClient
	disks  *armcompute.DisksClient
	images *armcompute.VirtualMachineImagesClient
	nics   *armnetwork.InterfacesClient
	ips    *armnetwork.PublicIPAddressesClient
	nets   *armnetwork.SubnetsClient

	sizes    driver.Cached[[]size]
	listed   driver.Cached[priceList]
	quotas   driver.Cached[[]cloud.Quota]
	versions map[string]*driver.Cached[string] // of the image, by architecture
	address  driver.Cached[map[string]string]  // by name of the machine
	creating driver.Tokens

	table
	memory
	marks
}

var (
	_ cloud.Provider       = (*Provider)(nil)
	_ cloud.Accessor       = (*Provider)(nil)
	_ cloud.Bootable       = (*Provider)(nil)
	_ cloud.Consistent     = (*Provider)(nil)
	_ cloud.Rated          = (*Provider)(nil)
	_ cloud.QuotaReader    = (*Provider)(nil)
	_ cloud.MetadataServed = (*Provider)(nil)
	_ cloud.Sweeper        = (*Provider)(nil)
	_ cloud.Stopper        = (*Provider)(nil)
	_ cloud.Resolver       = (*Provider)(nil)
)

// New makes the provider. It reads credential files and calls nothing.
func New(cfg Config) (*Provider, error) {
	p, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", cmp.Or(string(cfg.Name), "azure"), err)
	}
	return p, nil
}

func open(cfg Config) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	img, err := imageOf(cmp.Or(cfg.Image, defaultImage))
	if err != nil {
		return nil, err
	}
	endpoint, err := url.Parse(cmp.Or(cfg.Endpoint, publicEndpoint))
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, image: img, endpoint: endpoint, marks: marks{cfg.Owner},
		table: table{provider: cfg.Name, now: cfg.Now}, memory: memory{now: cfg.Now, machines: map[muster.InstanceID]*machine{}}}
	if err := p.connect(); err != nil {
		return nil, err
	}
	// How often things are read follows how often they change. Prices and sizes are many pages.
	p.sizes = driver.Cached[[]size]{Read: p.readSizes, Life: 24 * time.Hour, Stale: 72 * time.Hour, Now: cfg.Now}
	p.listed = driver.Cached[priceList]{Read: p.prices.read, Life: 12 * time.Hour, Stale: 72 * time.Hour, Now: cfg.Now}
	p.quotas = driver.Cached[[]cloud.Quota]{Read: p.readQuotas, Life: 5 * time.Minute, Now: cfg.Now}
	p.address = driver.Cached[map[string]string]{Read: p.readAddresses, Life: 10 * time.Second, Now: cfg.Now}
	p.versions = map[string]*driver.Cached[string]{}
	for _, arch := range []string{"amd64", "arm64"} {
		p.versions[arch] = &driver.Cached[string]{Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now, Read: p.versionReader(arch)}
	}
	return p, nil
}

func (c *Config) setDefaults() {
	c.Access.User, c.Disk, c.Poll = cmp.Or(c.Access.User, defaultUser), cmp.Or(c.Disk, defaultDisk), cmp.Or(c.Poll, defaultPoll)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if len(c.Markets) == 0 {
		c.Markets = []muster.Market{muster.OnDemand}
	}
	if len(c.Zones) == 0 {
		c.Zones = []string{Regional}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Client == nil {
		c.Client = &http.Client{}
	}
}

// connect makes the clients. They repeat no call: the fleet decides that.
func (p *Provider) connect() error {
	of, prices := cloudOf(p.endpoint)
	p.prices = priceReader{at: prices, location: p.cfg.Location, client: p.cfg.Client, now: p.cfg.Now}
	credential := p.cfg.Credential
	if credential == nil {
		var err error
		credential, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: policy.ClientOptions{Cloud: of}})
		if err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	options := &arm.ClientOptions{DisableRPRegistration: true, ClientOptions: policy.ClientOptions{
		Cloud: of, Transport: p.cfg.Client, Retry: policy.RetryOptions{MaxRetries: -1}, Telemetry: policy.TelemetryOptions{ApplicationID: "muster"},
		// For stand-ins on this host.
		InsecureAllowCredentialWithHTTP: p.endpoint.Scheme == "http" && isLoopback(p.endpoint.Hostname()),
	}}
	sub := p.cfg.Subscription
	var errs [8]error
	p.vms, errs[0] = armcompute.NewVirtualMachinesClient(sub, credential, options)
	p.skus, errs[1] = armcompute.NewResourceSKUsClient(sub, credential, options)
	p.usage, errs[2] = armcompute.NewUsageClient(sub, credential, options)
	p.disks, errs[3] = armcompute.NewDisksClient(sub, credential, options)
	p.images, errs[4] = armcompute.NewVirtualMachineImagesClient(sub, credential, options)
	p.nics, errs[5] = armnetwork.NewInterfacesClient(sub, credential, options)
	p.ips, errs[6] = armnetwork.NewPublicIPAddressesClient(sub, credential, options)
	p.nets, errs[7] = armnetwork.NewSubnetsClient(sub, credential, options)
	return errors.Join(errs[:]...)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// cloudOf is the cloud of a resource manager, and the address of its price list: only the public
// cloud has one.
func cloudOf(endpoint *url.URL) (azurecloud.Configuration, string) {
	for _, c := range []azurecloud.Configuration{azurecloud.AzurePublic, azurecloud.AzureChina, azurecloud.AzureGovernment} {
		own, err := url.Parse(c.Services[azurecloud.ResourceManager].Endpoint)
		if err != nil || own.Host != endpoint.Host {
			continue
		}
		if own.Host == "management.azure.com" {
			return c, "https://prices.azure.com/api/retail/prices"
		}
		return c, ""
	}
	c := azurecloud.AzurePublic
	base := strings.TrimSuffix(endpoint.String(), "/")
	c.Services = map[azurecloud.ServiceName]azurecloud.ServiceConfiguration{
		azurecloud.ResourceManager: {Endpoint: base, Audience: azurecloud.AzurePublic.Services[azurecloud.ResourceManager].Audience}}
	return c, base + "/api/retail/prices"
}

var (
	subscriptionShape = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	groupShape        = regexp.MustCompile(`^[-\w.()]{1,90}$`)
	locationShape     = regexp.MustCompile(`^[a-z0-9]{2,40}$`)
	subnetShape       = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Network/virtualNetworks/([^/]+)/subnets/([^/]+)$`)
	securityShape     = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Network/networkSecurityGroups/[^/]+$`)
	zoneShape         = regexp.MustCompile(`^[1-9]$`)
)

// check refuses what can never work, in sentences that say where to find what is missing.
func (c *Config) check() error {
	switch {
	case c.Name == "" || c.Owner == "":
		return errors.New("name and owner are missing")
	case len(c.Owner) > maxTag:
		return fmt.Errorf("owner has %d characters: Azure takes tags of up to %d", len(c.Owner), maxTag)
	case !subscriptionShape.MatchString(c.Subscription):
		return fmt.Errorf("subscription %q is not the id of one: az account list prints those that are", c.Subscription)
	case !groupShape.MatchString(c.ResourceGroup):
		return fmt.Errorf("resource_group %q is not the name of one: az group create makes one", c.ResourceGroup)
	case !locationShape.MatchString(c.Location):
		return fmt.Errorf("location %q is not the name of one, as westeurope: az account list-locations prints all", c.Location)
	case !subnetShape.MatchString(c.Subnet):
		return fmt.Errorf("subnet %q is not the resource id of one: az network vnet subnet show prints it", c.Subnet)
	case c.SecurityGroup != "" && !securityShape.MatchString(c.SecurityGroup):
		return fmt.Errorf("security_groups: %q is not the resource id of one: az network nsg show prints it", c.SecurityGroup)
	case slices.Contains([]string{"root", "admin", "administrator"}, c.Access.User):
		return fmt.Errorf("ssh.user %s: Azure makes no user of that name; leave it out, or write another", c.Access.User)
	case c.Access.KeyFile == "":
		return errors.New("ssh.key_file is missing: Azure makes no machine without a key")
	}
	for _, z := range c.Zones {
		if z != Regional && !zoneShape.MatchString(z) {
			return fmt.Errorf("zones: %q is not a zone: write its number, as 1, or %s", z, Regional)
		}
	}
	return cmp.Or(driver.CheckEndpoint(c.Endpoint, "https://host"), c.Types.Check(), c.Prices.Check())
}

// UserDataLimit is cloud.Bootable's.
func (p *Provider) UserDataLimit() int { return maxUserData }

// Consistency is cloud.Consistent's. Lists of network interfaces were seen to lag by more than a
// minute.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: listLag, Agreement: listLag}
}

// Metadata is cloud.MetadataServed's: scheduled events say beforehand that a spot machine is taken.
func (p *Provider) Metadata() string { return "azure" }

// Rates is cloud.Rated's. A subscription has, by region and minute, 500 creates, as many deletes and
// 300 lists (Microsoft, compute throttling limits). Others use it as well, so this is about half.
func (p *Provider) Rates() cloud.Rates {
	return cloud.Rates{Create: cloud.Rate{PerSecond: 4, Burst: 100}, Destroy: cloud.Rate{PerSecond: 4, Burst: 100},
		Read: cloud.Rate{PerSecond: 2, Burst: 60}, Tags: cloud.Rate{PerSecond: 2, Burst: 60}}
}

// ptr is v where the API wants a pointer, and nil for a zero v, which the API takes for absent.
func ptr[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// of is what a pointer of the API points to, or zero.
func of[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}
