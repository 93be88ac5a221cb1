package openstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Config is what a Provider needs. Name, Owner, Cloud, Network and Image have no default.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// Server is that of cloud.Env. With it, what a server that was killed has locked is free after a
	// minute and not after five; empty: as if each lock were another server's.
	Server string
	// Cloud is the name of an entry of clouds.yaml, which has the address of the identity service and
	// the credentials. CloudsFile is the path of that file; empty: where OpenStack's tools look. It is
	// read again when a session begins, which is once a day or after credentials were refused.
	Cloud, CloudsFile string
	// Region is the region in the catalog; empty: that of clouds.yaml, or the only one.
	Region string
	// Network is the name or id of the network of the servers, over which they are reached.
	Network string
	// SecurityGroups are names of security groups; empty: the project's default one.
	SecurityGroups []string
	// Types are patterns of flavors; empty: all with a price, up to 32 cores and without accelerators.
	Types driver.Globs
	// Image is a name or an id. Of several images of a name the newest is used.
	Image string
	// Disk is the size of the root volume of flavors that have no disk; 0: 50 GiB.
	Disk   muster.Bytes
	Prices driver.Prices

	// Access is how servers are reached, without their addresses. User is debian if empty.
	Access cloud.Access

	// Client makes the calls; nil: one that trusts what clouds.yaml says and uses proxies of the
	// environment.
	Client *http.Client
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Poll is the time between two looks at servers that are being built; 0: 2 s.
	Poll   time.Duration
	Logger *slog.Logger
}

const (
	defaultPoll = 2 * time.Second
	defaultDisk = 50 * muster.GiB
	defaultUser = "debian"
	// microversion is of Nova's release Rocky: tags in a create, extra specs in flavors, and cells that
	// are down in lists.
	microversion = "2.69"
	// maxUserData is Nova's bound of 65,535 characters of base64, in bytes before that.
	maxUserData = 65535 / 4 * 3
	// maxPage is how many servers a page may have, Nova's own bound.
	maxPage = 1000
	// sessionLife is how long a catalog is used. Tokens are renewed whenever one is refused.
	sessionLife = 24 * time.Hour
)

// session is what a sign-in has given: clients of the services that the catalog has.
type session struct {
	compute *gophercloud.ServiceClient
	// network, image and volume are nil where the catalog lacks them.
	network, image, volume *gophercloud.ServiceClient
}

// Provider is one project of an OpenStack cloud, for one owner. It keeps in memory what lists and
// creates have shown, and nothing that a new process would miss.
type Provider struct {
	cfg      Config
	log      *slog.Logger
	sessions driver.Cached[*session]
	catalog  driver.Cached[*catalog]
	network  driver.Cached[string]
	image    driver.Cached[string]
	// imageArch is what the image is for, by itself: a create must not wait for it.
	imageArch driver.Cached[string]
	// creating are the tokens whose creates run now.
	creating driver.Tokens

	mu      sync.Mutex
	servers map[muster.InstanceID]*server
	// began is when the last list began.
	began time.Time
}

var (
	_ cloud.Provider      = (*Provider)(nil)
	_ cloud.Accessor      = (*Provider)(nil)
	_ cloud.Bootable      = (*Provider)(nil)
	_ cloud.Consistent    = (*Provider)(nil)
	_ cloud.Rated         = (*Provider)(nil)
	_ cloud.Sweeper       = (*Provider)(nil)
	_ cloud.Resolver      = (*Provider)(nil)
	_ cloud.QuotaReader   = (*Provider)(nil)
	_ cloud.Suspender     = (*Provider)(nil)
	_ cloud.Stopper       = (*Provider)(nil)
	_ cloud.HostKeyReader = (*Provider)(nil)
)

// New makes the provider. It reads clouds.yaml and calls nothing.
func New(cfg Config) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", cmp.Or(string(cfg.Name), "openstack"), err)
	}
	cfg.Access.User, cfg.Poll = cmp.Or(cfg.Access.User, defaultUser), cmp.Or(cfg.Poll, defaultPoll)
	cfg.Disk = cmp.Or(cfg.Disk, defaultDisk)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, servers: map[muster.InstanceID]*server{}}
	p.sessions = driver.Cached[*session]{Read: p.signIn, Life: sessionLife, Now: cfg.Now}
	p.catalog = driver.Cached[*catalog]{Read: p.readCatalog, Life: 5 * time.Minute, Stale: 24 * time.Hour, Now: cfg.Now}
	p.network = driver.Cached[string]{Read: p.readNetwork, Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	// An image is pinned for an hour, so that nodes made together are alike.
	p.image = driver.Cached[string]{Read: p.readImage, Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	p.imageArch = driver.Cached[string]{Read: p.readImageArch, Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	return p, nil
}

// ownerText is what an owner may be: it is part of a tag of Nova's, which has 60 characters.
var ownerText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,46}$`)

// check refuses what can never work, in sentences that say where to find what is missing.
func (c *Config) check() error {
	switch {
	case c.Name == "" || c.Owner == "":
		return errors.New("name and owner are missing")
	case !ownerText.MatchString(c.Owner):
		return fmt.Errorf("owner %q cannot be a tag: it may have 47 letters, digits, dots, dashes and underscores", c.Owner)
	case c.Cloud == "":
		return errors.New("cloud is missing: name an entry of clouds.yaml; the dashboard makes the file under Identity, Application Credentials")
	case c.Network == "":
		return errors.New("network is missing: name the network of the nodes; `openstack network list` prints them")
	case c.Image == "":
		return errors.New("image is missing: name an image with cloud-init; `openstack image list` prints them")
	}
	if _, _, err := c.options(); err != nil {
		return err
	}
	return cmp.Or(c.Types.Check(), c.Prices.Check())
}

// entry is what clouds.yaml says.
type entry struct {
	auth     gophercloud.AuthOptions
	endpoint gophercloud.EndpointOpts
}

// options reads clouds.yaml. No secret of it reaches an error.
func (c *Config) options() (entry, *http.Client, error) {
	parse := []clouds.ParseOption{clouds.WithCloudName(c.Cloud)}
	if c.CloudsFile != "" {
		parse = append(parse, clouds.WithLocations(c.CloudsFile))
	}
	if c.Region != "" {
		parse = append(parse, clouds.WithRegion(c.Region))
	}
	auth, endpoint, tls, err := clouds.Parse(parse...)
	if err != nil {
		return entry{}, nil, fmt.Errorf("cloud %q of clouds.yaml: %w", c.Cloud, err)
	}
	auth.AllowReauth = true
	if c.Client != nil {
		return entry{auth, endpoint}, c.Client, nil
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = tls
	return entry{auth, endpoint}, &http.Client{Transport: transport}, nil
}

// signIn gets a token and the catalog.
func (p *Provider) signIn(ctx context.Context) (*session, error) {
	from, client, err := p.cfg.options()
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultAuth, Message: "sign-in", Err: err}
	}
	ctx, sent := driver.Trace(ctx)
	c := call{what: "sign-in as " + p.cfg.Cloud, sent: sent}
	// RetryBackoffFunc stays nil: with one the library repeats calls up to 60 times.
	api, err := openstack.NewClient(from.auth.IdentityEndpoint)
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultAuth, Message: c.what, Err: err}
	}
	api.HTTPClient = *client
	if err := openstack.Authenticate(ctx, api, from.auth); err != nil {
		f := p.fault(c, err)
		if f.Kind == muster.FaultNotFound || f.Kind == muster.FaultInvalid {
			f.Kind = muster.FaultAuth // a project, user or address that does not exist
		}
		return nil, f
	}
	s := &session{}
	for _, service := range []struct {
		into   **gophercloud.ServiceClient
		make   func(*gophercloud.ProviderClient, gophercloud.EndpointOpts) (*gophercloud.ServiceClient, error)
		needed bool
	}{
		{&s.compute, openstack.NewComputeV2, true}, {&s.network, openstack.NewNetworkV2, false},
		{&s.image, openstack.NewImageV2, false}, {&s.volume, openstack.NewBlockStorageV3, false},
	} {
		made, err := service.make(api, from.endpoint)
		switch {
		case err == nil:
			*service.into = made
		case service.needed:
			return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "region", Err: err,
				Message: "the catalog has no compute service in region " + cmp.Or(from.endpoint.Region, "of any name")}
		}
	}
	s.compute.Microversion = microversion
	return s, nil
}

// session is the session of a call.
func (p *Provider) session(ctx context.Context, what string) (*session, error) {
	s, err := p.sessions.Get(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, &muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: err}
	}
	return s, err
}

// UserDataLimit is cloud.Bootable's.
func (p *Provider) UserDataLimit() int { return maxUserData }

// Consistency is cloud.Consistent's.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: 10 * time.Second, Agreement: 10 * time.Second}
}

// Rates is cloud.Rated's. Limits are the operator's, and often there are none.
func (p *Provider) Rates() cloud.Rates {
	return cloud.Rates{Create: cloud.Rate{PerSecond: 5, Burst: 10}, Destroy: cloud.Rate{PerSecond: 5, Burst: 20},
		Read: cloud.Rate{PerSecond: 10, Burst: 20}, Tags: cloud.Rate{PerSecond: 5, Burst: 10}}
}
