package config

import (
	"cmp"
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/validate"
)

// Validate tells all that is wrong with a server's configuration, or nil.
// Locations are paths as "pools[0].provider". It never panics.
func Validate(s *api.ServerConfig) []api.ProblemField {
	c := &checks{}
	if s.DataDir == "" {
		c.Add("data_dir", "is missing; name the directory in which the server keeps its state")
	} else {
		c.Text("data_dir", s.DataDir, 4095)
	}
	c.listen(s)
	c.cluster(s)
	for i, h := range s.AllowedHosts {
		if h == "" || len(h) > 255 || strings.ContainsAny(h, "/@* \t") || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r > '~' }) {
			c.Add(validate.Index("allowed_hosts", i), "is %s; write a host name without scheme and path, as muster.example.org", validate.Quote(h))
		}
	}
	c.oneOf("log.format", s.Log.Format, "text", "json")
	c.oneOf("log.level", s.Log.Level, "debug", "info", "warn", "error")
	if s.Blob.URL != "" {
		if u, err := url.Parse(s.Blob.URL); err != nil || u.Scheme == "" || u.Host == "" && u.Path == "" {
			c.Add("blob.url", "is %s; write a bucket's address, as file:///var/lib/blobs or s3://name", validate.Quote(s.Blob.URL))
		}
	}
	c.size("blob.quota", s.Blob.Quota)
	c.duration("blob.retention", s.Blob.Retention, api.MaxTimeout)
	if w := s.Scheduler.Workers; w < 0 || w > 16 {
		c.Add("scheduler.workers", "is %d; want 1 to 16", w)
	}
	c.duration("retention.jobs", s.Retention.Jobs, api.MaxTimeout)
	c.duration("retention.nodes", s.Retention.Nodes, api.MaxTimeout)
	c.duration("retention.history", s.Retention.History, api.MaxTimeout)
	if n := s.Retention.Attempts; n < 0 || n > 1000 {
		c.Add("retention.attempts", "is %d; it is 1 to 1000", n)
	}
	if j := s.Retention.Jobs; j > 0 && s.Blob.Retention > j {
		c.Add("blob.retention", "is %s, longer than jobs are kept (%s); blobs go with their job", s.Blob.Retention, j)
	}
	c.size("low_water", s.LowWater)
	c.limits(s.Limits)
	c.providers(s.Providers)
	c.registries(s.Registries)
	c.imageCache(s)
	c.network("network", &s.Network)
	c.pools(s)
	c.shares(s.Shares)
	c.policies(s.Policies)
	if s.Compat.Poseidon != nil {
		c.poseidon(s.Compat.Poseidon)
	}
	var out []api.ProblemField
	for _, p := range c.Problems {
		out = append(out, api.ProblemField(p))
	}
	return out
}

func (c *checks) poseidon(p *api.PoseidonConfig) {
	const at = "compat.poseidon"
	c.Text(at+".token_file", p.TokenFile, 4095)
	token := p.Token.Reveal()
	switch {
	case token != "" && p.TokenFile != "":
		c.Add(at+".token", "is given together with token_file; give one of them")
	case p.TokenFile != "" && !strings.HasPrefix(p.TokenFile, "/"):
		c.Add(at+".token_file", "is %s; write an absolute path", validate.Quote(p.TokenFile))
	case token != "" && len(token) < MinToken:
		c.Add(at+".token", "has %d characters; a token has at least %d", len(token), MinToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		c.Add(at+".token", "has characters that no header can carry; write it in ASCII, without spaces")
	}
	if p.Namespace != "" {
		c.Name(at+".namespace", p.Namespace)
	}
	c.duration(at+".wait", p.Wait, api.MaxClaimWait)
	c.size(at+".memory_reserve", p.MemoryReserve)
}

func (c *checks) shares(list []api.ShareSpec) {
	weights := map[string]int{}
	for i := range list {
		r, at := &list[i], validate.Index("shares", i)
		if _, err := path.Match(r.Match, ""); err != nil || r.Match == "" {
			c.Add(at+".match", "is %s; write the name of a namespace, or a pattern as team-*", validate.Quote(r.Match))
		}
		if r.Class != "" {
			if err := muster.CheckName(r.Class); err != nil {
				c.Add(at+".class", "%v", err)
			}
		}
		if r.Weight < 0 || r.Weight > 1_000_000 {
			c.Add(at+".weight", "is %d; it is 0 to 1000000", r.Weight)
		}
		if w, seen := weights[r.Class]; seen && r.Class != "" && w != r.Weight {
			c.Add(at+".weight", "is %d, and %d where class %s is named before; a class has one weight", r.Weight, w, r.Class)
		} else if !seen {
			weights[r.Class] = r.Weight
		}
	}
}

// checks gathers what is wrong.
type checks struct{ validate.Checks }

func (c *checks) duration(location string, d, most api.Duration) {
	validate.AtMost(&c.Checks, location, d, most)
}

func (c *checks) oneOf(location, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		c.Add(location, "is %s; it is one of %s", validate.Quote(value), strings.Join(known, ", "))
	}
}

func (c *checks) size(location string, s api.Size) {
	if s < 0 {
		c.Add(location, "is %d bytes; it cannot be negative", int64(s))
	}
}

func (c *checks) listen(s *api.ServerConfig) {
	if s.Listen == "" {
		return
	}
	host, port, err := net.SplitHostPort(s.Listen)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || strconv.FormatUint(n, 10) != port {
		c.Add("listen", "is %s; write host:port, as %s", validate.Quote(s.Listen), DefaultListen)
		return
	}
	if s.NoAuth && !isLoopback(host) {
		c.Add("no_auth", "would let everyone who reaches %s in; it goes with a loopback address only", s.Listen)
	}
}

// isLoopback reports whether a host of a listen address or of a Host header,
// without port, is this host and nothing else.
func isLoopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// reservedNames are those of a server's own files: instances of a local
// provider are kept in a directory of the provider's name beside them.
func reservedNames() []string {
	return []string{"log", "blobs", "token", "server.json", "keys", "peers", "claim.key"}
}

func (c *checks) providers(list []api.ProviderSpec) {
	if len(list) == 0 {
		c.Add("providers", "are missing; without one no node can be made")
	}
	names := map[string]int{}
	for i := range list {
		p, at := &list[i], validate.Index("providers", i)
		c.unique(at+".name", "providers", p.Name, names, i)
		if slices.Contains(reservedNames(), p.Name) {
			c.Add(at+".name", "is %s, which the server keeps for itself in its data directory; take another name", validate.Quote(p.Name))
		}
		offerings := map[string]int{}
		for j := range p.Offerings {
			o, at := &p.Offerings[j], validate.Index(at+".offerings", j)
			c.unique(at+".name", "offerings", o.Name, offerings, j)
			c.offering(at, o)
		}
		c.providerOfType(at, p)
	}
}

func (c *checks) unique(location, list, name string, seen map[string]int, i int) {
	c.Name(location, name)
	if first, twice := seen[name]; twice && name != "" {
		c.Add(location, "is %s, the name of %s[%d] as well", validate.Quote(name), list, first)
		return
	}
	seen[name] = i
}

func (c *checks) offering(at string, o *api.OfferingSpec) {
	if v := o.CPU; !(v >= api.MinCPU && v <= api.MaxCPU) {
		c.Add(at+".cpu", "is %s; it is %g to %d cores", validate.Number(v), api.MinCPU, api.MaxCPU)
	}
	if o.Memory < api.MinMemory {
		c.Add(at+".memory", "is %d bytes; at least %s is needed, with its unit, as 2GiB", int64(o.Memory), api.MinMemory)
	}
	c.size(at+".disk", o.Disk)
	// The price is kept as whole millionths in 64 bits.
	if v := o.Price; !(v >= 0 && v <= 1e9) || math.IsNaN(v) {
		c.Add(at+".price", "is %s; it is 0 to 1e9 an hour", validate.Number(v))
	}
	if o.Zone != "" && (len(o.Zone) > 128 || !validate.PlainWord(o.Zone)) {
		c.Add(at+".zone", "is %s; it has at most 128 letters, digits and . _ - /", validate.Quote(o.Zone))
	}
	c.oneOf(at+".market", o.Market, string(muster.OnDemand), string(muster.Spot))
	c.duration(at+".boot_delay", o.BootDelay, api.MaxKillGrace)
	if o.Max < 0 {
		c.Add(at+".max", "is %d; it cannot be negative", o.Max)
	}
	c.attributes(at+".attributes", o.Attributes)
	c.attributes(at+".meta", o.Meta)
	if c.Count(at+".devices", len(o.Devices)) {
		c.devices(at+".devices", o.Devices)
	}
}

func (c *checks) attributes(at string, list map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(list)) {
		if k == "" || len(k) > 128 || !validate.PlainWord(k) {
			c.Add(at, "have the name %s; a name has at most 128 letters, digits and . _ - /", validate.Quote(k))
			continue
		}
		c.Text(at+"."+k, list[k], 1024)
	}
}

func (c *checks) devices(at string, list []api.DeviceSpec) {
	all := 0
	for i := range list {
		d, at := &list[i], validate.Index(at, i)
		for _, w := range [...]struct{ field, value string }{{"kind", d.Kind}, {"model", d.Model}} {
			if len(w.value) > 64 || !validate.PlainWord(w.value) {
				c.Add(at+"."+w.field, "is %s; it has at most 64 letters, digits and . _ - /", validate.Quote(w.value))
			}
		}
		if d.Count < 0 || d.Count > api.MaxDevices {
			c.Add(at+".count", "is %d; it is 1 to %d", d.Count, api.MaxDevices)
		}
		all += max(d.Count, 1)
	}
	if all > api.MaxDevices {
		c.Add(at, "are %d in all; a node has at most %d", all, api.MaxDevices)
	}
}

func (c *checks) pools(s *api.ServerConfig) {
	if len(s.Pools) == 0 {
		c.Add("pools", "are missing; without one no node is made")
	}
	names := map[string]int{}
	for i := range s.Pools {
		p, at := &s.Pools[i], validate.Index("pools", i)
		c.unique(at+".name", "pools", p.Name, names, i)
		known := slices.ContainsFunc(s.Providers, func(v api.ProviderSpec) bool { return v.Name == p.Provider })
		if !known {
			c.Add(at+".provider", "is %s, and no provider has that name", validate.Quote(p.Provider))
		}
		sold := offerings(s, p.Provider)
		for j, o := range p.Offerings {
			if known && len(sold) > 0 && !slices.Contains(sold, o) {
				c.Add(validate.Index(at+".offerings", j), "is %s, which provider %s does not have", validate.Quote(o), p.Provider)
			}
			if slices.Index(p.Offerings, o) < j {
				c.Add(validate.Index(at+".offerings", j), "is %s again", validate.Quote(o))
			}
		}
		for _, n := range []struct {
			name  string
			value int
		}{{"max", p.Max}, {"min", p.Min}, {"max_launching", p.MaxLaunching}, {"spare", p.Spare}, {"stop.most", p.Stop.Most}} {
			if n.value < 0 || n.value > 1_000_000 {
				c.Add(at+"."+n.name, "is %d; it is 0 to 1000000", n.value)
			}
		}
		if p.Max > 0 && p.Min > p.Max {
			c.Add(at+".min", "is %d, more than max (%d)", p.Min, p.Max)
		}
		if p.Max > 0 && p.Spare > p.Max {
			c.Add(at+".spare", "is %d, more than max (%d)", p.Spare, p.Max)
		}
		if v := p.PriceFactor; v != 0 && !(v >= 1 && v <= 1000) {
			c.Add(at+".price_factor", "is %s; it is 1 to 1000", validate.Number(v))
		}
		if p.Placement != "" {
			c.oneOf(at+".placement", p.Placement, api.PlacementBinpack, api.PlacementSpread)
		}
		c.attributes(at+".meta", p.Meta)
		c.money(at+".budget.per_hour", p.Budget.PerHour)
		c.money(at+".budget.per_month", p.Budget.PerMonth)
		c.duration(at+".idle_timeout", p.IdleTimeout, api.MaxTimeout)
		c.duration(at+".stop.timeout", p.Stop.Timeout, api.MaxTimeout)
		if p.Stop.Most == 0 && p.Stop.Timeout != 0 {
			c.Add(at+".stop.timeout", "is %s, and stop.most is 0, so that no node is ever stopped; set stop.most", p.Stop.Timeout)
		}
		c.duration(at+".boot_timeout", p.BootTimeout, 24*api.MaxKillGrace)
		if g := p.Grace; g != 0 && (g < minGrace || g > 24*api.MaxKillGrace) {
			c.Add(at+".grace", "is %s; it is %s to %s", g, minGrace, 24*api.MaxKillGrace)
		}
		if most := cmp.Or(p.Grace, defaultGrace) * 3 / 4; p.Fence != 0 && (p.Fence < minFence || p.Fence > most) {
			c.Add(at+".fence", "is %s; it is %s to three quarters of grace (%s), so that what it ends has ended when the grace is over", p.Fence, minFence, most)
		}
		if len(p.Ready) > 0 && p.Ready[0] == "" {
			c.Add(at+".ready", "names no program; write a command and its arguments, as [/usr/local/bin/ready, --fast]")
		}
		c.duration(at+".ready_timeout", p.ReadyTimeout, api.Duration(10*time.Minute))
		c.duration(at+".sideline", p.Sideline, api.MaxTimeout)
		if v := s.Provider(p.Provider); v.Name != "" {
			c.poolOfProvider(at, p, v)
		}
	}
}

// minFence is longer than a few sets take.
const minFence = api.Duration(2e9)

// minGrace is longer than an agent that is replaced, or a connection that is made anew, takes.
const minGrace = api.Duration(5e9)

// money is kept as whole millionths in 64 bits.
func (c *checks) money(location string, v float64) {
	if !(v >= 0 && v <= 1e9) {
		c.Add(location, "is %s; it is 0 to 1e9", validate.Number(v))
	}
}

func (c *checks) registries(list []api.RegistrySpec) {
	users := registryUsers{}
	for i := range list {
		r, at := &list[i], validate.Index("registries", i)
		if !registryHost(r.Host) {
			c.Add(at+".host", "is %s; write it as in the name of an image, as ghcr.io or registry.example.org:5000", validate.Quote(r.Host))
		} else {
			c.registryNamespaces(users, i, r)
		}
		c.Text(at+".username", r.Username, 1024)
		c.Text(at+".password_file", r.PasswordFile, 4095)
		given := !r.Password.IsZero()
		c.identity(at, r)
		switch {
		case r.Identity != "":
		case given && r.PasswordFile != "":
			c.Add(at+".password", "is given together with password_file; give one of them")
		case r.PasswordFile != "" && !strings.HasPrefix(r.PasswordFile, "/"):
			c.Add(at+".password_file", "is %s; write an absolute path", validate.Quote(r.PasswordFile))
		case r.Username != "" && !given && r.PasswordFile == "":
			c.Add(at+".password", "is missing; username goes with password or password_file")
		case r.Username == "" && (given || r.PasswordFile != ""):
			c.Add(at+".username", "is missing; a password goes with it")
		case r.SendCredentials && r.Username == "":
			c.Add(at+".send_credentials", "is true, and there are no credentials to send")
		}
		if host, _, _ := strings.Cut(r.Mirror, "/"); r.Mirror != "" && (!registryHost(host) || !validate.PlainWord(strings.ReplaceAll(r.Mirror, ":", "")) || strings.HasSuffix(r.Mirror, "/")) {
			c.Add(at+".mirror", "is %s; write HOST or HOST/PREFIX, as mirror.example.org/hub", validate.Quote(r.Mirror))
		}
	}
}

// registryUsers has which entry a namespace uses for a host. The empty namespace stands for all
// that no entry names.
type registryUsers map[[2]string]int

// registryNamespaces checks who uses an entry: a namespace has one entry for a host at most.
func (c *checks) registryNamespaces(users registryUsers, i int, r *api.RegistrySpec) {
	at := validate.Index("registries", i)
	if len(r.Namespaces) == 0 {
		if first, twice := users[[2]string{r.Host}]; twice {
			c.Add(at+".host", "is %s, the host of registries[%d] as well, and neither says for which namespaces it is; give one of them namespaces", validate.Quote(r.Host), first)
			return
		}
		users[[2]string{r.Host}] = i
	}
	for k, ns := range r.Namespaces {
		where := validate.Index(at+".namespaces", k)
		if err := muster.CheckName(ns); err != nil {
			c.Add(where, "is %s; write the name of a namespace, as web", validate.Quote(ns))
			continue
		}
		if first, twice := users[[2]string{r.Host, ns}]; twice {
			c.Add(where, "is %s, which registries[%d] names for %s already; a namespace has one entry for a host", validate.Quote(ns), first, validate.Quote(r.Host))
			continue
		}
		users[[2]string{r.Host, ns}] = i
	}
}

// imageCache checks the cache of images.
func (c *checks) imageCache(s *api.ServerConfig) {
	ic := s.ImageCache
	c.size("image_cache.size", ic.Size)
	if f := ic.Fresh.Std(); f != 0 && (f < time.Second || f > 24*time.Hour) {
		c.Add("image_cache.fresh", "is %s; it is 1s to 24h", ic.Fresh)
	}
	switch {
	case ic.Size == 0 && ic.Fresh != 0:
		c.Add("image_cache.size", "is missing; fresh goes with it")
	case ic.Size > 0 && len(s.Registries) == 0:
		c.Add("image_cache.size", "is %s, and no registries are named: those under registries are cached; write one as - host: docker.io", muster.Bytes(ic.Size))
	}
}

// hostsOfIdentities are the registries to which the credentials of an identity may be sent: they are
// worth more than one registry, so no other host gets them.
var hostsOfIdentities = map[string]struct {
	suffixes []string
	example  string
}{
	api.IdentityECR:   {[]string{".amazonaws.com", ".amazonaws.com.cn", ".on.aws"}, "123456789012.dkr.ecr.eu-central-1.amazonaws.com"},
	api.IdentityGCP:   {[]string{"-docker.pkg.dev", ".gcr.io", "gcr.io"}, "europe-docker.pkg.dev"},
	api.IdentityAzure: {[]string{".azurecr.io", ".azurecr.cn", ".azurecr.us"}, "NAME.azurecr.io"},
}

// identity checks what an entry says of an identity of a cloud.
func (c *checks) identity(at string, r *api.RegistrySpec) {
	if r.Identity == "" {
		return
	}
	hosts, known := hostsOfIdentities[r.Identity]
	ends := func(suffix string) bool {
		return strings.HasSuffix(r.Host, suffix) && (suffix[0] != 'g' || r.Host == suffix)
	}
	switch {
	case !known:
		c.Add(at+".identity", "is %s; want ecr, gcp or azure", validate.Quote(r.Identity))
	case r.Username != "" || !r.Password.IsZero() || r.PasswordFile != "" || r.SendCredentials:
		c.Add(at+".identity", "is given together with a username, a password or send_credentials; give one of them")
	case r.Insecure:
		c.Add(at+".insecure", "is true, and credentials of an identity are sent by HTTPS only; leave one of them out")
	case !slices.ContainsFunc(hosts.suffixes, ends):
		c.Add(at+".identity", "is %s, and %s is no registry of that cloud; write a host as %s", r.Identity, validate.Quote(r.Host), hosts.example)
	}
}

// registryHost reports whether a name can be that of a registry: with a dot or a port, or localhost.
func registryHost(h string) bool {
	name, port, hasPort := strings.Cut(h, ":")
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return false
		}
	}
	if name == "" || len(name) > 253 || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
		return false
	}
	odd := strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-'
	})
	return !odd && (hasPort || name == "localhost" || strings.Contains(name, "."))
}

func (c *checks) policies(list []api.PolicySpec) {
	for i := range list {
		p, at := &list[i], validate.Index("policies", i)
		if _, err := path.Match(p.Match, ""); err != nil || p.Match == "" {
			c.Add(at+".match", "is %s; write the name of a namespace, or a pattern as team-*", validate.Quote(p.Match))
		}
		for k, kind := range p.Isolation {
			if kind == string(muster.IsolationProcess) || muster.CheckName(kind) != nil {
				c.Add(validate.Index(at+".isolation", k), "is %s; write container, container-userns or the name of a runtime of its own, as runsc", validate.Quote(kind))
			}
		}
		for k, r := range p.Registries {
			local := strings.HasPrefix(r, api.ImageLayout) || strings.HasPrefix(r, api.ImageArchive)
			_, dir, _ := strings.Cut(r, ":")
			switch {
			case local && (!strings.HasPrefix(dir, "/") || path.Clean(dir) != dir):
				c.Add(validate.Index(at+".registries", k), "is %s; write the path of a directory, as %s/srv/images", validate.Quote(r), api.ImageLayout)
			case !local && (r == "" || strings.ContainsAny(r, " @") || strings.HasSuffix(r, "/") || strings.Contains(r, "://") || !strings.ContainsAny(strings.SplitN(r, "/", 2)[0], ".:")):
				c.Add(validate.Index(at+".registries", k), "is %s; write the name of a registry, as docker.io, or more of the images' names, as ghcr.io/team", validate.Quote(r))
			}
		}
	}
}

func (c *checks) limits(l api.LimitsConfig) {
	if n := l.Connections; n != 0 && (n < 16 || n > 1_000_000) {
		c.Add("limits.connections", "is %d; want 16 to 1000000", n)
	}
	if n := l.ConnectionsPerAddress; n < 0 || n > 1_000_000 {
		c.Add("limits.connections_per_address", "is %d; want 1 to 1000000", n)
	}
}
