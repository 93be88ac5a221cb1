package api

import (
	"cmp"
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
)

// Validate tells all that is wrong with a server's configuration, or nil.
// Locations are paths as "pools[0].provider". It never panics.
func (s *ServerConfig) Validate() []ProblemField {
	c := &checks{}
	if s.DataDir == "" {
		c.add("data_dir", "is missing; name the directory in which the server keeps its state")
	} else {
		c.text("data_dir", s.DataDir, 4095)
	}
	c.listen(s)
	for i, h := range s.AllowedHosts {
		if h == "" || len(h) > 255 || strings.ContainsAny(h, "/@* \t") || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r > '~' }) {
			c.add(index("allowed_hosts", i), "is %s; write a host name without scheme and path, as muster.example.org", quote(h))
		}
	}
	c.oneOf("log.format", s.Log.Format, "text", "json")
	c.oneOf("log.level", s.Log.Level, "debug", "info", "warn", "error")
	if s.Blob.URL != "" {
		if u, err := url.Parse(s.Blob.URL); err != nil || u.Scheme == "" || u.Host == "" && u.Path == "" {
			c.add("blob.url", "is %s; write a bucket's address, as file:///var/lib/blobs or s3://name", quote(s.Blob.URL))
		}
	}
	c.size("blob.quota", s.Blob.Quota)
	c.duration("blob.retention", s.Blob.Retention, MaxTimeout)
	if w := s.Scheduler.Workers; w < 0 || w > 16 {
		c.add("scheduler.workers", "is %d; want 1 to 16", w)
	}
	c.duration("retention.jobs", s.Retention.Jobs, MaxTimeout)
	c.duration("retention.nodes", s.Retention.Nodes, MaxTimeout)
	if n := s.Retention.Attempts; n < 0 || n > 1000 {
		c.add("retention.attempts", "is %d; it is 1 to 1000", n)
	}
	if j := s.Retention.Jobs; j > 0 && s.Blob.Retention > j {
		c.add("blob.retention", "is %s, longer than jobs are kept (%s); blobs go with their job", s.Blob.Retention, j)
	}
	c.size("low_water", s.LowWater)
	c.limits(s.Limits)
	c.providers(s.Providers)
	c.registries(s.Registries)
	c.pools(s)
	c.shares(s.Shares)
	c.policies(s.Policies)
	if s.Compat.Poseidon != nil {
		c.poseidon(s.Compat.Poseidon)
	}
	return c.problems
}

func (c *checks) poseidon(p *PoseidonConfig) {
	const at = "compat.poseidon"
	c.text(at+".token_file", p.TokenFile, 4095)
	token := p.Token.Reveal()
	switch {
	case token != "" && p.TokenFile != "":
		c.add(at+".token", "is given together with token_file; give one of them")
	case p.TokenFile != "" && !strings.HasPrefix(p.TokenFile, "/"):
		c.add(at+".token_file", "is %s; write an absolute path", quote(p.TokenFile))
	case token != "" && len(token) < MinToken:
		c.add(at+".token", "has %d characters; a token has at least %d", len(token), MinToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		c.add(at+".token", "has characters that no header can carry; write it in ASCII, without spaces")
	}
	if p.Namespace != "" {
		c.name(at+".namespace", p.Namespace)
	}
	c.duration(at+".wait", p.Wait, MaxClaimWait)
	c.size(at+".memory_reserve", p.MemoryReserve)
}

func (c *checks) shares(list []ShareSpec) {
	weights := map[string]int{}
	for i := range list {
		r, at := &list[i], index("shares", i)
		if _, err := path.Match(r.Match, ""); err != nil || r.Match == "" {
			c.add(at+".match", "is %s; write the name of a namespace, or a pattern as team-*", quote(r.Match))
		}
		if r.Class != "" {
			if err := muster.CheckName(r.Class); err != nil {
				c.add(at+".class", "%v", err)
			}
		}
		if r.Weight < 0 || r.Weight > 1_000_000 {
			c.add(at+".weight", "is %d; it is 0 to 1000000", r.Weight)
		}
		if w, seen := weights[r.Class]; seen && r.Class != "" && w != r.Weight {
			c.add(at+".weight", "is %d, and %d where class %s is named before; a class has one weight", r.Weight, w, r.Class)
		} else if !seen {
			weights[r.Class] = r.Weight
		}
	}
}

func (c *checks) oneOf(location, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		c.add(location, "is %s; it is one of %s", quote(value), strings.Join(known, ", "))
	}
}

func (c *checks) size(location string, s Size) {
	if s < 0 {
		c.add(location, "is %d bytes; it cannot be negative", int64(s))
	}
}

func (c *checks) listen(s *ServerConfig) {
	if s.Listen == "" {
		return
	}
	host, port, err := net.SplitHostPort(s.Listen)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || strconv.FormatUint(n, 10) != port {
		c.add("listen", "is %s; write host:port, as %s", quote(s.Listen), DefaultListen)
		return
	}
	if s.NoAuth && !IsLoopback(host) {
		c.add("no_auth", "would let everyone who reaches %s in; it goes with a loopback address only", s.Listen)
	}
}

// IsLoopback reports whether a host of a listen address or of a Host header,
// without port, is this host and nothing else.
func IsLoopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// reservedNames are those of a server's own files: instances of a local
// provider are kept in a directory of the provider's name beside them.
func reservedNames() []string { return []string{"log", "blobs", "token", "server.json"} }

func (c *checks) providers(list []ProviderSpec) {
	if len(list) == 0 {
		c.add("providers", "are missing; without one no node can be made")
	}
	names := map[string]int{}
	for i := range list {
		p, at := &list[i], index("providers", i)
		c.unique(at+".name", "providers", p.Name, names, i)
		if slices.Contains(reservedNames(), p.Name) {
			c.add(at+".name", "is %s, which the server keeps for itself in its data directory; take another name", quote(p.Name))
		}
		offerings := map[string]int{}
		for j := range p.Offerings {
			o, at := &p.Offerings[j], index(at+".offerings", j)
			c.unique(at+".name", "offerings", o.Name, offerings, j)
			c.offering(at, o)
		}
		c.providerOfType(at, p)
	}
}

func (c *checks) unique(location, list, name string, seen map[string]int, i int) {
	c.name(location, name)
	if first, twice := seen[name]; twice && name != "" {
		c.add(location, "is %s, the name of %s[%d] as well", quote(name), list, first)
		return
	}
	seen[name] = i
}

func (c *checks) offering(at string, o *OfferingSpec) {
	if v := o.CPU; !(v >= MinCPU && v <= MaxCPU) {
		c.add(at+".cpu", "is %s; it is %g to %d cores", number(v), MinCPU, MaxCPU)
	}
	if o.Memory < MinMemory {
		c.add(at+".memory", "is %d bytes; at least %s is needed, with its unit, as 2GiB", int64(o.Memory), MinMemory)
	}
	c.size(at+".disk", o.Disk)
	// The price is kept as whole millionths in 64 bits.
	if v := o.Price; !(v >= 0 && v <= 1e9) || math.IsNaN(v) {
		c.add(at+".price", "is %s; it is 0 to 1e9 an hour", number(v))
	}
	if o.Zone != "" && (len(o.Zone) > 128 || !plainWord(o.Zone)) {
		c.add(at+".zone", "is %s; it has at most 128 letters, digits and . _ - /", quote(o.Zone))
	}
	c.oneOf(at+".market", o.Market, string(muster.OnDemand), string(muster.Spot))
	c.duration(at+".boot_delay", o.BootDelay, MaxKillGrace)
	if o.Max < 0 {
		c.add(at+".max", "is %d; it cannot be negative", o.Max)
	}
	c.attributes(at+".attributes", o.Attributes)
	c.attributes(at+".meta", o.Meta)
	if c.count(at+".devices", len(o.Devices)) {
		c.devices(at+".devices", o.Devices)
	}
}

func (c *checks) attributes(at string, list map[string]string) {
	for _, k := range sortedKeys(list) {
		if k == "" || len(k) > 128 || !plainWord(k) {
			c.add(at, "have the name %s; a name has at most 128 letters, digits and . _ - /", quote(k))
			continue
		}
		c.text(at+"."+k, list[k], 1024)
	}
}

func (c *checks) devices(at string, list []DeviceSpec) {
	all := 0
	for i := range list {
		d, at := &list[i], index(at, i)
		for _, w := range [...]struct{ field, value string }{{"kind", d.Kind}, {"model", d.Model}} {
			if len(w.value) > 64 || !plainWord(w.value) {
				c.add(at+"."+w.field, "is %s; it has at most 64 letters, digits and . _ - /", quote(w.value))
			}
		}
		if d.Count < 0 || d.Count > MaxDevices {
			c.add(at+".count", "is %d; it is 1 to %d", d.Count, MaxDevices)
		}
		all += max(d.Count, 1)
	}
	if all > MaxDevices {
		c.add(at, "are %d in all; a node has at most %d", all, MaxDevices)
	}
}

func (c *checks) pools(s *ServerConfig) {
	if len(s.Pools) == 0 {
		c.add("pools", "are missing; without one no node is made")
	}
	names := map[string]int{}
	for i := range s.Pools {
		p, at := &s.Pools[i], index("pools", i)
		c.unique(at+".name", "pools", p.Name, names, i)
		known := slices.ContainsFunc(s.Providers, func(v ProviderSpec) bool { return v.Name == p.Provider })
		if !known {
			c.add(at+".provider", "is %s, and no provider has that name", quote(p.Provider))
		}
		sold := s.offerings(p.Provider)
		for j, o := range p.Offerings {
			if known && len(sold) > 0 && !slices.Contains(sold, o) {
				c.add(index(at+".offerings", j), "is %s, which provider %s does not have", quote(o), p.Provider)
			}
			if slices.Index(p.Offerings, o) < j {
				c.add(index(at+".offerings", j), "is %s again", quote(o))
			}
		}
		for _, n := range []struct {
			name  string
			value int
		}{{"max", p.Max}, {"min", p.Min}, {"max_launching", p.MaxLaunching}, {"spare", p.Spare}} {
			if n.value < 0 || n.value > 1_000_000 {
				c.add(at+"."+n.name, "is %d; it is 0 to 1000000", n.value)
			}
		}
		if p.Max > 0 && p.Min > p.Max {
			c.add(at+".min", "is %d, more than max (%d)", p.Min, p.Max)
		}
		if p.Max > 0 && p.Spare > p.Max {
			c.add(at+".spare", "is %d, more than max (%d)", p.Spare, p.Max)
		}
		if v := p.PriceFactor; v != 0 && !(v >= 1 && v <= 1000) {
			c.add(at+".price_factor", "is %s; it is 1 to 1000", number(v))
		}
		if p.Placement != "" {
			c.oneOf(at+".placement", p.Placement, PlacementBinpack, PlacementSpread)
		}
		c.attributes(at+".meta", p.Meta)
		c.money(at+".budget.per_hour", p.Budget.PerHour)
		c.money(at+".budget.per_month", p.Budget.PerMonth)
		c.duration(at+".idle_timeout", p.IdleTimeout, MaxTimeout)
		c.duration(at+".boot_timeout", p.BootTimeout, 24*MaxKillGrace)
		if g := p.Grace; g != 0 && (g < minGrace || g > 24*MaxKillGrace) {
			c.add(at+".grace", "is %s; it is %s to %s", g, minGrace, 24*MaxKillGrace)
		}
		if most := cmp.Or(p.Grace, DefaultGrace) * 3 / 4; p.Fence != 0 && (p.Fence < minFence || p.Fence > most) {
			c.add(at+".fence", "is %s; it is %s to three quarters of grace (%s), so that what it ends has ended when the grace is over", p.Fence, minFence, most)
		}
		if len(p.Ready) > 0 && p.Ready[0] == "" {
			c.add(at+".ready", "names no program; write a command and its arguments, as [/usr/local/bin/ready, --fast]")
		}
		c.duration(at+".ready_timeout", p.ReadyTimeout, Duration(10*time.Minute))
		c.duration(at+".sideline", p.Sideline, MaxTimeout)
		if v := s.provider(p.Provider); v != nil {
			c.poolOfProvider(at, p, v)
		}
	}
}

// minFence is longer than a few sets take.
const minFence = Duration(2e9)

// minGrace is longer than an agent that is replaced, or a connection that is made anew, takes.
const minGrace = Duration(5e9)

// money is kept as whole millionths in 64 bits.
func (c *checks) money(location string, v float64) {
	if !(v >= 0 && v <= 1e9) {
		c.add(location, "is %s; it is 0 to 1e9", number(v))
	}
}

func (c *checks) registries(list []RegistrySpec) {
	hosts := map[string]int{}
	for i := range list {
		r, at := &list[i], index("registries", i)
		if !registryHost(r.Host) {
			c.add(at+".host", "is %s; write it as in the name of an image, as ghcr.io or registry.example.org:5000", quote(r.Host))
		} else if first, twice := hosts[r.Host]; twice {
			c.add(at+".host", "is %s, the host of registries[%d] as well", quote(r.Host), first)
		} else {
			hosts[r.Host] = i
		}
		c.text(at+".username", r.Username, 1024)
		c.text(at+".password_file", r.PasswordFile, 4095)
		given := !r.Password.IsZero()
		switch {
		case given && r.PasswordFile != "":
			c.add(at+".password", "is given together with password_file; give one of them")
		case r.PasswordFile != "" && !strings.HasPrefix(r.PasswordFile, "/"):
			c.add(at+".password_file", "is %s; write an absolute path", quote(r.PasswordFile))
		case r.Username != "" && !given && r.PasswordFile == "":
			c.add(at+".password", "is missing; username goes with password or password_file")
		case r.Username == "" && (given || r.PasswordFile != ""):
			c.add(at+".username", "is missing; a password goes with it")
		case r.SendCredentials && r.Username == "":
			c.add(at+".send_credentials", "is true, and there are no credentials to send")
		}
		if host, _, _ := strings.Cut(r.Mirror, "/"); r.Mirror != "" && (!registryHost(host) || !plainWord(strings.ReplaceAll(r.Mirror, ":", "")) || strings.HasSuffix(r.Mirror, "/")) {
			c.add(at+".mirror", "is %s; write HOST or HOST/PREFIX, as mirror.example.org/hub", quote(r.Mirror))
		}
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
