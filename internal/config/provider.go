package config

import (
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/validate"
)

// providerOfType checks what belongs to one type of provider, and that it has nothing of another's.
func (c *checks) providerOfType(at string, p *api.ProviderSpec) {
	own := []string{api.ProviderLocal, api.ProviderStatic, api.ProviderExec}
	clouds := api.CloudTypes()
	types := slices.Concat(own, clouds)
	if !slices.Contains(types, p.Type) {
		c.Add(at+".type", "is %s; it is one of %s", validate.Quote(p.Type), strings.Join(types, ", "))
		return
	}
	remote := slices.Concat([]string{api.ProviderStatic, api.ProviderExec}, clouds)
	c.ofTypes(at, p.Type, []fieldOf{
		{"offerings", len(p.Offerings) > 0, []string{api.ProviderLocal, api.ProviderStatic, api.ProviderQemu}},
		{"ssh", p.SSH != nil, remote},
		{"hosts", len(p.Hosts) > 0, []string{api.ProviderStatic}},
		{"command", len(p.Command) > 0, []string{api.ProviderExec}},
		{"env", len(p.Env) > 0, []string{api.ProviderExec}},
		{"timeout", p.Timeout != 0, []string{api.ProviderExec}},
		{"boot_probe", p.BootProbe != api.ProbeSpec{}, remote},
		{"shutdown_ends_billing", p.ShutdownEndsBilling, []string{api.ProviderExec, api.ProviderOpenStack}},
	})
	c.cloud(at, p)
	if p.SSH != nil {
		c.ssh(at+".ssh", p.SSH)
	}
	c.probe(at+".boot_probe", p.BootProbe)
	switch p.Type {
	case api.ProviderLocal:
		if len(p.Offerings) == 0 {
			c.Add(at+".offerings", "are missing; a %s provider sells what is written here", api.ProviderLocal)
		}
	case api.ProviderStatic:
		c.hosts(at, p)
	case api.ProviderExec:
		c.program(at, p)
	}
}

// fieldOf is a field that only some types of providers have.
type fieldOf struct {
	name  string
	given bool
	of    []string
}

// ofTypes refuses fields of other types.
func (c *checks) ofTypes(at, kind string, fields []fieldOf) {
	for _, f := range fields {
		if f.given && !slices.Contains(f.of, kind) {
			last := len(f.of) - 1
			list := strings.Join(f.of[:last], ", ")
			if last > 0 {
				list += " and "
			}
			c.Add(at+"."+f.name, "is for providers of type %s; this one is %s", list+f.of[last], kind)
		}
	}
}

// absolute checks the path of a file or directory.
func (c *checks) absolute(location, p string) {
	if p != "" && (!path.IsAbs(p) || strings.ContainsAny(p, "\x00\n")) {
		c.Add(location, "is %s; write an absolute path", validate.Quote(p))
	}
}

func (c *checks) ssh(at string, s *api.SSHSpec) {
	c.absolute(at+".key_file", s.KeyFile)
	c.absolute(at+".known_hosts", s.KnownHosts)
	c.absolute(at+".dir", s.Dir)
	c.user(at+".user", s.User)
	c.Text(at+".shutdown", s.Shutdown, 4095)
	c.absolute(at+".proxy_jump_key_file", s.ProxyJumpKeyFile)
	user, address := api.SplitJump(s.ProxyJump)
	switch {
	case s.ProxyJump == "" && s.ProxyJumpKeyFile != "":
		c.Add(at+".proxy_jump_key_file", "is for proxy_jump, which is missing")
	case s.ProxyJump == "" && len(s.ProxyJumpHostKeys) > 0:
		c.Add(at+".proxy_jump_host_keys", "are for proxy_jump, which is missing")
	case s.ProxyJump == "":
	case strings.Contains(s.ProxyJump, ","):
		c.Add(at+".proxy_jump", "is %s; there can be one bastion only", validate.Quote(s.ProxyJump))
	default:
		c.address(at+".proxy_jump", address)
		c.user(at+".proxy_jump", user)
		if len(s.ProxyJumpHostKeys) == 0 && s.KnownHosts == "" {
			c.Add(at+".proxy_jump_host_keys", "are missing; write the bastion's public key here: a host is never trusted because it answers")
		}
	}
}

func (c *checks) user(location, name string) {
	if name != "" && (len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })) {
		c.Add(location, "is %s; write the name of a user", validate.Quote(name))
	}
}

func (c *checks) probe(at string, p api.ProbeSpec) {
	c.Text(at+".command", p.Command, 64<<10)
	c.duration(at+".timeout", p.Timeout, api.MaxKillGrace)
	if p.Command == "" && p.Timeout != 0 {
		c.Add(at+".command", "is missing; a timeout goes with it")
	}
}

func (c *checks) hosts(at string, p *api.ProviderSpec) {
	if len(p.Hosts) == 0 {
		c.Add(at+".hosts", "are missing; a %s provider has the hosts that are written here", api.ProviderStatic)
	}
	names := map[string]int{}
	addresses := map[string]int{}
	sold := map[string]bool{}
	for i := range p.Offerings {
		sold[p.Offerings[i].Name] = true
	}
	for i := range p.Hosts {
		h, at := &p.Hosts[i], validate.Index(at+".hosts", i)
		c.unique(at+".name", "hosts", h.Name, names, i)
		c.address(at+".address", h.Address)
		if first, twice := addresses[h.Address]; twice && h.Address != "" {
			c.Add(at+".address", "is %s, the address of hosts[%d] as well", validate.Quote(h.Address), first)
		} else {
			addresses[h.Address] = i
		}
		c.user(at+".user", h.User)
		c.absolute(at+".key_file", h.KeyFile)
		if h.KeyFile == "" && (p.SSH == nil || p.SSH.KeyFile == "") {
			c.Add(at+".key_file", "is missing; name the private key here, or for all hosts in ssh.key_file")
		}
		if len(h.HostKeys) == 0 && (p.SSH == nil || p.SSH.KnownHosts == "") {
			c.Add(at+".host_keys", "are missing; write the host's public key here, or name a file in ssh.known_hosts: a host is never trusted because it answers")
		}
		c.hostKeys(at+".host_keys", h.HostKeys)
		switch {
		case h.Offering != "" && !sold[h.Offering]:
			c.Add(at+".offering", "is %s, which this provider does not have", validate.Quote(h.Offering))
		case h.Offering == "" && sold[h.Name]:
			c.Add(at+".name", "is %s, the name of an offering as well; say offering: %s if it is one of those", validate.Quote(h.Name), h.Name)
		case h.Offering != "" && (h.Price != 0 || h.Zone != "" || len(h.Attributes) > 0):
			c.Add(at+".offering", "has a price, zone and attributes of its own; a host that names one has none")
		}
		if h.Zone != "" && (len(h.Zone) > 128 || !validate.PlainWord(h.Zone)) {
			c.Add(at+".zone", "is %s; it has at most 128 letters, digits and . _ - /", validate.Quote(h.Zone))
		}
		c.money(at+".price", h.Price)
		c.attributes(at+".attributes", h.Attributes)
	}
}

func (c *checks) hostKeys(location string, keys []string) {
	for j, k := range keys {
		if f := strings.Fields(k); len(f) < 2 || strings.ContainsAny(k, "\n\x00") {
			c.Add(validate.Index(location, j), "is %s; write a line as in ssh_host_ed25519_key.pub", validate.Quote(k))
		}
	}
}

func (c *checks) address(location, a string) {
	host, _, err := net.SplitHostPort(a)
	if err != nil {
		host = strings.Trim(a, "[]")
	}
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '@' }) {
		c.Add(location, "is %s; write a name or an address, with :PORT if it is not 22", validate.Quote(a))
	}
}

func (c *checks) program(at string, p *api.ProviderSpec) {
	if len(p.Command) == 0 || p.Command[0] == "" {
		c.Add(at+".command", "is missing; name the program that makes the instances")
	} else {
		c.absolute(at+".command[0]", p.Command[0])
	}
	for i, w := range p.Command {
		c.Text(validate.Index(at+".command", i), w, 4095)
	}
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			c.Add(at+".env", "have the name %s; a name has no =", validate.Quote(k))
			continue
		}
		c.Text(at+".env."+k, p.Env[k], 64<<10)
	}
	c.duration(at+".timeout", p.Timeout, api.MaxKillGrace)
	if p.SSH == nil || p.SSH.KeyFile == "" {
		c.Add(at+".ssh.key_file", "is missing; instances are reached over SSH")
	}
}

// runtimeProgram checks a program that makes containers. Names are those that are known: a misspelt one would leave nodes
// without containers, and be found out by them only.
func (c *checks) runtimeProgram(location, program string) {
	switch {
	case program == "" || slices.Contains(muster.RuntimePrograms(), program) || program == api.RuntimeNone:
	case path.IsAbs(program) && path.Base(program) != "/" && !strings.ContainsAny(program, "\x00\n"):
	default:
		c.Add(location, "is %s; it is %s or %s, or the absolute path of another OCI runtime program on the nodes", validate.Quote(program), strings.Join(muster.RuntimePrograms(), ", "), api.RuntimeNone)
	}
}

// stoppers are the types of providers that can stop instances and start them again.
var stoppers = []string{api.ProviderAzure, api.ProviderEC2, api.ProviderGCE, api.ProviderOpenStack}

// minLease leaves a server time to be started again, beyond the grace of nodes.
const minLease = api.Duration(2 * 60e9)

// poolOfProvider checks what a pool says that only some providers have.
func (c *checks) poolOfProvider(at string, p *api.PoolSpec, v *api.ProviderSpec) {
	c.probe(at+".boot_probe", p.BootProbe)
	if p.BootProbe.Command != "" && v.Type == api.ProviderLocal {
		c.Add(at+".boot_probe", "is for instances that are reached over SSH; provider %s is %s", v.Name, v.Type)
	}
	c.runtimeProgram(at+".oci_runtime", p.OCIRuntime)
	for i, a := range p.AllowAddresses {
		if _, err := netip.ParsePrefix(a); err != nil {
			if _, err := netip.ParseAddr(a); err != nil {
				c.Add(validate.Index(at+".allow_addresses", i), "is %s; write an address or a prefix, as 10.0.0.0/8", validate.Quote(a))
			}
		}
	}
	if p.Network != nil {
		c.network(at+".network", p.Network)
	}
	c.volumes(at+".volumes", p.Volumes)
	c.size(at+".input_limit", p.InputLimit)
	c.oneOf(at+".runtime_holes", p.RuntimeHoles, "warn", api.HolesRefuse)
	switch {
	case p.Stop.Most <= 0:
	case v.Type == api.ProviderOpenStack && !v.ShutdownEndsBilling:
		c.Add(at+".stop.most", "is only where a shutdown ends billing; if it does, say shutdown_ends_billing: true of provider %s", v.Name)
	case !slices.Contains(stoppers, v.Type):
		c.Add(at+".stop.most", "is %d, and provider %s is of type %s, which cannot stop instances; types that can are %s", p.Stop.Most, v.Name, v.Type, strings.Join(stoppers, ", "))
	}
	switch {
	case p.Lease == 0:
	case v.Type == api.ProviderStatic:
		c.Add(at+".lease", "would shut down hosts that nobody can start again: provider %s is %s", v.Name, v.Type)
	case v.Type == api.ProviderHetzner:
		c.Add(at+".lease", "is only where a shutdown ends billing, and Hetzner bills servers that are switched off")
	case v.Type == api.ProviderAzure:
		c.Add(at+".lease", "is only where a shutdown ends billing, and Azure bills machines that shut themselves down")
	case (v.Type == api.ProviderExec || v.Type == api.ProviderOpenStack) && !v.ShutdownEndsBilling:
		c.Add(at+".lease", "is only where a shutdown ends billing; if it does, say shutdown_ends_billing: true of provider %s", v.Name)
	case p.Lease < minLease:
		c.Add(at+".lease", "is %s; it is at least %s, longer than a restart of the server takes", p.Lease, minLease)
	case p.Lease <= p.Grace:
		c.Add(at+".lease", "is %s; it is longer than grace (%s)", p.Lease, p.Grace)
	default:
		c.duration(at+".lease", p.Lease, api.MaxTimeout)
	}
}

// volumes checks the directories that a pool lets containers see.
func (c *checks) volumes(at string, all map[string]api.PoolVolume) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at, p := at+"."+name, all[name].Path
		c.Name(at, name)
		switch {
		case name == muster.VolumeTmpfs:
			c.Add(at, "is taken: it stands for file systems in memory")
		case !api.IsVolumePath(p) || strings.Contains(p, ","):
			c.Add(at+".path", "is %s; it is an absolute path without a comma, . or .., not / and not in /proc, /sys or /dev", validate.Quote(p))
		}
	}
}
