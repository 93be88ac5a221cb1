package hetzner

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Config is what a Provider needs. Name, Owner, TokenFile and Locations have no default.
type Config struct {
	Name  muster.ProviderName
	Owner string
	// TokenFile is the path of a file with the project's API token. It is read at each call, so a
	// new token needs no restart.
	TokenFile string
	// Locations are those to launch in, as fsn1. They are the zones of the offerings.
	Locations []string
	// Types are patterns of server types; empty: all with up to 32 cores.
	Types driver.Globs
	// Image is the name of an image, as debian-12, or the id of a snapshot; empty: debian-12.
	Image string
	// PublicIP gives servers a public IPv4 address, over which the server then reaches them.
	// Otherwise they have IPv6, or an address in Network.
	PublicIP bool
	// Network is the name or id of a private network; empty: none.
	Network string
	Prices  driver.Prices

	// Access is how servers are reached, without their addresses. User is root if empty. Shutdown is
	// not used: a server that is switched off costs as much as one that runs.
	Access cloud.Access

	// Endpoint is the address of the API with its version; empty: Hetzner's own.
	Endpoint string
	// Client makes the calls; nil: one that uses proxies of the environment.
	Client *http.Client
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Poll is the time between two looks at actions; 0: 2 s.
	Poll   time.Duration
	Logger *slog.Logger
}

const (
	defaultImage = "debian-12"
	defaultPoll  = 2 * time.Second
	// maxUserData is Hetzner's bound in bytes.
	maxUserData = 32 << 10
	// maxLabel is how long the value of a label may be.
	maxLabel = 63
	// maxPage is how many things a page of a list may have.
	maxPage = 50
)

// Provider is one project of Hetzner Cloud, for one owner. It keeps in memory what lists and creates
// have shown, and nothing that a new process would miss.
type Provider struct {
	cfg   Config
	log   *slog.Logger
	api   *hcloud.Client
	types driver.Cached[[]*hcloud.ServerType]
	// network is the id of the private network.
	network driver.Cached[int64]
	// creating are the tokens whose creates run now.
	creating driver.Tokens
	// calls are those that the project has left.
	calls *budget

	mu      sync.Mutex
	servers map[muster.InstanceID]*server
	// reading is the list under way.
	reading driver.Reading
}

var (
	_ cloud.Provider       = (*Provider)(nil)
	_ cloud.Accessor       = (*Provider)(nil)
	_ cloud.Bootable       = (*Provider)(nil)
	_ cloud.Consistent     = (*Provider)(nil)
	_ cloud.Rated          = (*Provider)(nil)
	_ cloud.MetadataServed = (*Provider)(nil)
	_ cloud.Sweeper        = (*Provider)(nil)
	_ cloud.Sparing        = (*Provider)(nil)
	_ cloud.Resolver       = (*Provider)(nil)
)

// New makes the provider. It reads the token's file and calls nothing.
func New(cfg Config) (*Provider, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("provider %s: %w", cmp.Or(string(cfg.Name), "hetzner"), err)
	}
	cfg.Image, cfg.Access.User = cmp.Or(cfg.Image, defaultImage), cmp.Or(cfg.Access.User, "root")
	cfg.Poll = cmp.Or(cfg.Poll, defaultPoll)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if cfg.Client != nil {
		client = *cfg.Client
	}
	calls := &budget{}
	client.Transport = authorized{cfg.TokenFile, client.Transport, calls}
	options := []hcloud.ClientOption{
		hcloud.WithApplication("muster", ""), hcloud.WithHTTPClient(&client),
		// The library repeats a create after a time-out of the gateway. The fleet looks first.
		hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}),
	}
	if cfg.Endpoint != "" {
		options = append(options, hcloud.WithEndpoint(cfg.Endpoint))
	}
	p := &Provider{cfg: cfg, log: cfg.Logger, api: hcloud.NewClient(options...), calls: calls,
		servers: map[muster.InstanceID]*server{}}
	p.types = driver.Cached[[]*hcloud.ServerType]{Read: p.readTypes, Life: 5 * time.Minute, Stale: 24 * time.Hour, Now: cfg.Now}
	p.network = driver.Cached[int64]{Read: p.readNetwork, Life: time.Hour, Stale: 24 * time.Hour, Now: cfg.Now}
	return p, nil
}

// label is what the value of a label may be.
var label = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)

// check refuses what can never work, in sentences that say where to find what is missing.
func (c *Config) check() error {
	switch {
	case c.Name == "" || c.Owner == "":
		return errors.New("name and owner are missing")
	case !label.MatchString(c.Owner):
		return fmt.Errorf("owner %q cannot be a label: it may have %d letters, digits, dots, dashes and underscores", c.Owner, maxLabel)
	case c.TokenFile == "":
		return errors.New("token_file is missing: a file with an API token that may read and write; the console makes one under Security, API tokens")
	case len(c.Locations) == 0:
		return errors.New("locations are missing: name at least one, as fsn1")
	}
	if _, err := readToken(c.TokenFile); err != nil {
		return err
	}
	for _, l := range c.Locations {
		if l == "" || strings.ContainsAny(l, "/ ,") {
			return fmt.Errorf("locations: %q is not the name of a location: write it as fsn1", l)
		}
	}
	return cmp.Or(driver.CheckEndpoint(c.Endpoint, "https://host/v1"), c.Types.Check(), c.Prices.Check())
}

// readToken reads the token's file. What is in it reaches no error.
func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token_file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("token_file: %s has no API token: it must be the one line of the file", path)
	}
	return token, nil
}

// authorized sends the token that is in the file now, and notes how many calls are left.
type authorized struct {
	path  string
	next  http.RoundTripper
	calls *budget
}

// RoundTrip is http.RoundTripper's.
func (a authorized) RoundTrip(q *http.Request) (*http.Response, error) {
	token, err := readToken(a.path)
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultAuth, Err: err}
	}
	q = q.Clone(q.Context())
	q.Header.Set("Authorization", "Bearer "+token)
	next := a.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(q)
	if err == nil {
		a.calls.note(resp.Header)
	}
	return resp, err
}

// budget is how many calls of the hour the project has left, as its last answer said.
type budget struct{ limit, left atomic.Int64 }

// note reads the headers of an answer. One without them says nothing.
func (b *budget) note(h http.Header) {
	limit, err := strconv.ParseInt(h.Get("RateLimit-Limit"), 10, 64)
	if err != nil {
		return
	}
	if left, err := strconv.ParseInt(h.Get("RateLimit-Remaining"), 10, 64); err == nil {
		b.limit.Store(limit)
		b.left.Store(left)
	}
}

// scarceBelow is the share of a project's calls that is kept for what somebody waits for: 600 of the
// usual 3,600.
const scarceBelow = 6

// Scarce is cloud.Sparing's. Others may use calls of the same project.
func (p *Provider) Scarce() bool {
	return p.calls.left.Load() < p.calls.limit.Load()/scarceBelow
}

// UserDataLimit is cloud.Bootable's.
func (p *Provider) UserDataLimit() int { return maxUserData }

// Consistency is cloud.Consistent's.
func (p *Provider) Consistency() cloud.Consistency {
	return cloud.Consistency{ListLag: 10 * time.Second, Agreement: 10 * time.Second}
}

// Metadata is cloud.MetadataServed's.
func (p *Provider) Metadata() string { return "hetzner" }

// Rates is cloud.Rated's. A project has 3,600 calls an hour, one each second. A machine's life takes
// about six of them, so at this pace creates and destroys leave half of the calls to lists.
func (p *Provider) Rates() cloud.Rates {
	return cloud.Rates{Create: cloud.Rate{PerSecond: 10.0 / 60, Burst: 30}, Destroy: cloud.Rate{PerSecond: 0.5, Burst: 60},
		Read: cloud.Rate{PerSecond: 0.5, Burst: 30}, Tags: cloud.Rate{PerSecond: 0.2, Burst: 30}}
}
