package config

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func good() *api.ServerConfig {
	c := Dev(4, 8*muster.GiB)
	c.DataDir = "/var/lib/muster"
	return &c
}

// labProvider and cloudProvider are right, and have the name that the pool of good asks for.
func labProvider() api.ProviderSpec {
	return api.ProviderSpec{Name: "local", Type: api.ProviderStatic, SSH: &api.SSHSpec{KeyFile: "/k", KnownHosts: "/kh"},
		Hosts: []api.HostSpec{{Name: "small", Address: "10.0.0.1"}, {Name: "large", Address: "[::1]:23", HostKeys: []string{"ssh-ed25519 AAAA host"}}}}
}

func cloudProvider() api.ProviderSpec {
	return api.ProviderSpec{Name: "local", Type: api.ProviderExec, Command: []string{"/bin/cloud", "-x"}, Env: map[string]string{"A": "b"}, SSH: &api.SSHSpec{KeyFile: "/k"}}
}

// A pool has a lease where a shutdown ends billing, and none elsewhere unless it says so.
func TestLeaseDefault(t *testing.T) {
	c := good()
	Defaults(c)
	if l := c.Pools[0].Lease; l != 0 {
		t.Errorf("local: %s", l)
	}
	c.Providers[0] = cloudProvider()
	Defaults(c)
	if l := c.Pools[0].Lease; l != 0 {
		t.Errorf("exec: %s", l)
	}
	c.Providers[0].ShutdownEndsBilling = true
	Defaults(c)
	if l := c.Pools[0].Lease; l != defaultLease {
		t.Errorf("exec whose shutdown ends billing: %s", l)
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		change func(c *api.ServerConfig)
		want   string
	}{
		{func(c *api.ServerConfig) {}, ""},
		{func(c *api.ServerConfig) { c.DataDir = "" }, `data_dir: is missing; name the directory in which the server keeps its state`},
		{func(c *api.ServerConfig) { c.Listen = ":4750" }, ""},
		{func(c *api.ServerConfig) { c.Listen = "4750" }, `listen: is "4750"; write host:port, as 127.0.0.1:4750`},
		{func(c *api.ServerConfig) { c.Listen = "127.0.0.1:http" }, `listen: is "127.0.0.1:http"; write host:port, as 127.0.0.1:4750`},
		{func(c *api.ServerConfig) { c.Listen, c.NoAuth = ":4750", true }, `no_auth: would let everyone who reaches :4750 in; it goes with a loopback address only`},
		{func(c *api.ServerConfig) { c.Listen, c.NoAuth = "10.0.0.1:4750", true }, `no_auth: would let everyone who reaches 10.0.0.1:4750 in; it goes with a loopback address only`},
		{func(c *api.ServerConfig) { c.Listen, c.NoAuth = "[::1]:4750", true }, ""},
		{func(c *api.ServerConfig) { c.Listen, c.NoAuth = "localhost:4750", true }, ""},
		{func(c *api.ServerConfig) { c.AllowedHosts = []string{"muster.example.org", "https://x"} }, `allowed_hosts[1]: is "https://x"; write a host name without scheme and path, as muster.example.org`},
		{func(c *api.ServerConfig) { c.Log = api.LogConfig{Format: "xml", Level: "loud"} }, "log.format: is \"xml\"; it is one of text, json\nlog.level: is \"loud\"; it is one of debug, info, warn, error"},
		{func(c *api.ServerConfig) { c.Blob.URL = "blobs" }, `blob.url: is "blobs"; write a bucket's address, as file:///var/lib/blobs or s3://name`},
		{func(c *api.ServerConfig) { c.Blob.Retention = 2 * c.Retention.Jobs }, `blob.retention: is 48h, longer than jobs are kept (24h); blobs go with their job`},
		{func(c *api.ServerConfig) { c.Providers, c.Pools = nil, nil }, "providers: are missing; without one no node can be made\npools: are missing; without one no node is made"},
		{func(c *api.ServerConfig) { c.Providers[0].Type = "vmware" }, `providers[0].type: is "vmware"; it is one of local, static, exec, qemu, ec2, hetzner, gce, azure, openstack`},
		{func(c *api.ServerConfig) { c.Providers[0].Hosts = []api.HostSpec{{Name: "h"}} }, `providers[0].hosts: is for providers of type static; this one is local`},
		{func(c *api.ServerConfig) { c.Providers[0].SSH = &api.SSHSpec{} }, `providers[0].ssh: is for providers of type static, exec, qemu, ec2, hetzner, gce, azure and openstack; this one is local`},
		{func(c *api.ServerConfig) { c.Providers[0] = api.ProviderSpec{Name: "local", Type: "static"} }, `providers[0].hosts: are missing; a static provider has the hosts that are written here`},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider() }, ""},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider(); c.Providers[0].SSH.KnownHosts = "" }, `providers[0].hosts[0].host_keys: are missing; write the host's public key here, or name a file in ssh.known_hosts: a host is never trusted because it answers`},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider(); c.Providers[0].SSH.KeyFile = "" }, "providers[0].hosts[0].key_file: is missing; name the private key here, or for all hosts in ssh.key_file\nproviders[0].hosts[1].key_file: is missing; name the private key here, or for all hosts in ssh.key_file"},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider(); c.Providers[0].SSH.KeyFile = "id" }, `providers[0].ssh.key_file: is "id"; write an absolute path`},
		{func(c *api.ServerConfig) {
			c.Providers[0] = labProvider()
			c.Providers[0].Hosts[1].Address = "10.0.0.1"
		}, `providers[0].hosts[1].address: is "10.0.0.1", the address of hosts[0] as well`},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider(); c.Providers[0].Hosts[1].Address = "root@x" }, `providers[0].hosts[1].address: is "root@x"; write a name or an address, with :PORT if it is not 22`},
		{func(c *api.ServerConfig) {
			c.Providers[0] = labProvider()
			c.Providers[0].Hosts[1].HostKeys = []string{"AAAA"}
		}, `providers[0].hosts[1].host_keys[0]: is "AAAA"; write a line as in ssh_host_ed25519_key.pub`},
		{func(c *api.ServerConfig) {
			c.Providers[0] = labProvider()
			c.Providers[0].Hosts[0].Offering, c.Pools[0].Offerings = "rack", []string{"large"}
		}, `providers[0].hosts[0].offering: is "rack", which this provider does not have`},
		{func(c *api.ServerConfig) { c.Providers[0] = labProvider(); c.Pools[0].Lease = api.Duration(time.Hour) }, `pools[0].lease: would shut down hosts that nobody can start again: provider local is static`},
		{func(c *api.ServerConfig) { c.Pools[0].Lease = api.Duration(time.Hour) }, ""},
		{func(c *api.ServerConfig) { c.Pools[0].Lease = api.Duration(time.Minute) }, `pools[0].lease: is 1m; it is at least 2m, longer than a restart of the server takes`},
		{func(c *api.ServerConfig) { c.Pools[0].Stop.Most = 1 }, `pools[0].stop.most: is 1, and provider local is of type local, which cannot stop instances; types that can are azure, ec2, gce, openstack`},
		{func(c *api.ServerConfig) { c.Pools[0].Stop.Timeout = api.Duration(time.Hour) }, `pools[0].stop.timeout: is 1h, and stop.most is 0, so that no node is ever stopped; set stop.most`},
		{func(c *api.ServerConfig) { c.Pools[0].Stop.Most = -1 }, `pools[0].stop.most: is -1; it is 0 to 1000000`},
		{func(c *api.ServerConfig) { c.Pools[0].Fence = api.Duration(45 * time.Second) }, ""},
		{func(c *api.ServerConfig) { c.Pools[0].Fence = api.Duration(50 * time.Second) }, `pools[0].fence: is 50s; it is 2s to three quarters of grace (45s), so that what it ends has ended when the grace is over`},
		{func(c *api.ServerConfig) { c.Pools[0].BootProbe.Command = "true" }, `pools[0].boot_probe: is for instances that are reached over SSH; provider local is local`},
		{func(c *api.ServerConfig) { c.Providers[0] = cloudProvider(); c.Pools[0].Offerings = []string{"any"} }, ""},
		{func(c *api.ServerConfig) {
			c.Providers[0] = cloudProvider()
			c.Providers[0].Command = []string{"cloud"}
		}, `providers[0].command[0]: is "cloud"; write an absolute path`},
		{func(c *api.ServerConfig) { c.Providers[0] = cloudProvider(); c.Providers[0].Command = nil }, `providers[0].command: is missing; name the program that makes the instances`},
		{func(c *api.ServerConfig) { c.Providers[0] = cloudProvider(); c.Providers[0].SSH = nil }, `providers[0].ssh.key_file: is missing; instances are reached over SSH`},
		{func(c *api.ServerConfig) {
			c.Providers[0] = cloudProvider()
			c.Pools[0].Lease = api.Duration(time.Hour)
		}, `pools[0].lease: is only where a shutdown ends billing; if it does, say shutdown_ends_billing: true of provider local`},
		{func(c *api.ServerConfig) {
			c.Providers[0] = cloudProvider()
			c.Providers[0].ShutdownEndsBilling = true
			c.Pools[0].Lease = api.Duration(time.Hour)
		}, ""},
		{func(c *api.ServerConfig) {
			c.Providers[0] = cloudProvider()
			c.Providers[0].BootProbe = api.ProbeSpec{Timeout: 1}
		}, `providers[0].boot_probe.command: is missing; a timeout goes with it`},
		{func(c *api.ServerConfig) { c.Providers[0].Offerings[1].Name = "small"; c.Pools[0].Offerings = nil }, `providers[0].offerings[1].name: is "small", the name of offerings[0] as well`},
		{func(c *api.ServerConfig) { c.Providers[0].Offerings[0].CPU = 0 }, `providers[0].offerings[0].cpu: is 0; it is 0.001 to 4096 cores`},
		{func(c *api.ServerConfig) { c.Providers[0].Offerings[0].Price = math.Inf(1) }, `providers[0].offerings[0].price: is not a number; it is 0 to 1e9 an hour`},
		{func(c *api.ServerConfig) { c.Providers[0].Offerings[0].Market = "cheap" }, `providers[0].offerings[0].market: is "cheap"; it is one of on-demand, spot`},
		{func(c *api.ServerConfig) { c.Providers[0].Offerings[0].Attributes = map[string]string{"a b": "c"} }, `providers[0].offerings[0].attributes: have the name "a b"; a name has at most 128 letters, digits and . _ - /`},
		{func(c *api.ServerConfig) { c.Pools[0].Provider = "aws" }, `pools[0].provider: is "aws", and no provider has that name`},
		{func(c *api.ServerConfig) { c.Pools[0].OCIRuntime = "rnc" }, "pools[0].oci_runtime: is \"rnc\"; it is crun, runc, runsc or none, or the absolute path of another OCI runtime program on the nodes"},
		{func(c *api.ServerConfig) { c.Pools[0].OCIRuntime = "bin/crun" }, "pools[0].oci_runtime: is \"bin/crun\"; it is crun, runc, runsc or none, or the absolute path of another OCI runtime program on the nodes"},
		{func(c *api.ServerConfig) { c.Pools[0].OCIRuntime = "runsc" }, ""},
		{func(c *api.ServerConfig) { c.Pools[0].OCIRuntime = "/opt/kata/bin/kata-runtime" }, ""},
		{func(c *api.ServerConfig) { c.Pools[0].OCIRuntime = api.RuntimeNone }, ""},
		{func(c *api.ServerConfig) { c.Pools[0].Offerings = []string{"small", "huge", "small"} }, "pools[0].offerings[1]: is \"huge\", which provider local does not have\npools[0].offerings[2]: is \"small\" again"},
		{func(c *api.ServerConfig) { c.Pools[0].Min = 5 }, `pools[0].min: is 5, more than max (4)`},
		{func(c *api.ServerConfig) { c.Pools = append(c.Pools, c.Pools[0]) }, `pools[1].name: is "dev", the name of pools[0] as well`},
	} {
		c := good()
		tt.change(c)
		var got []string
		for _, p := range Validate(c) {
			got = append(got, p.String())
		}
		if g := strings.Join(got, "\n"); g != tt.want {
			t.Errorf("got  %s\nwant %s", g, tt.want)
		}
	}
}

func TestDefaults(t *testing.T) {
	c := api.ServerConfig{
		Providers: []api.ProviderSpec{{Name: "here", Type: "local", Offerings: []api.OfferingSpec{{Name: "a"}, {Name: "b"}}}},
		Pools:     []api.PoolSpec{{Name: "p", Provider: "here", Min: 200}},
	}
	Defaults(&c)
	if p := c.Pools[0]; !reflect.DeepEqual(p.Offerings, []string{"a", "b"}) || p.Max != 200 || p.MaxLaunching != 200 || p.IdleTimeout != defaultIdleTimeout || p.BootTimeout != defaultBootTimeout {
		t.Errorf("%+v", p)
	}
	before, _ := json.Marshal(c)
	Defaults(&c)
	after, _ := json.Marshal(c)
	if string(before) != string(after) {
		t.Errorf("twice: %s\nonce: %s", after, before)
	}
}

func TestDev(t *testing.T) {
	for _, tt := range []struct {
		cpus   int
		memory muster.Bytes
	}{{0, 0}, {1, muster.GiB}, {2, 8 * muster.GiB}, {64, 512 * muster.GiB}} {
		c := Dev(tt.cpus, tt.memory)
		c.DataDir = "x"
		if p := Validate(&c); p != nil {
			t.Errorf("%d cpus, %s: %v", tt.cpus, tt.memory, p)
		}
		if len(c.Providers[0].Offerings) != min(max(tt.cpus, 1), 2) {
			t.Errorf("%d cpus: %+v", tt.cpus, c.Providers[0].Offerings)
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "[::1]": true, "localhost": true, "LOCALHOST": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.evil.org": false, "127.0.0.1.evil.org": false} {
		if got := isLoopback(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

// Instances would be kept among the server's own files.
func TestProviderNamesOfTheServersOwn(t *testing.T) {
	for _, name := range []string{"log", "blobs"} {
		c := Dev(2, 4<<30)
		c.DataDir, c.Providers[0].Name, c.Pools[0].Provider = "/x", name, name
		found := false
		for _, p := range Validate(&c) {
			found = found || p.Location == "providers[0].name"
		}
		if !found {
			t.Errorf("provider %q is accepted", name)
		}
	}
}

func TestRegistries(t *testing.T) {
	secret := muster.NewSecret("p")
	for _, x := range []struct {
		at   string // where the problem is; empty: none
		spec api.RegistrySpec
	}{
		{"", api.RegistrySpec{Host: "ghcr.io", Username: "u", Password: secret}},
		{"", api.RegistrySpec{Host: "localhost:5000", Insecure: true}},
		{"", api.RegistrySpec{Host: "10.0.0.1:5000", Username: "u", PasswordFile: "/etc/p", SendCredentials: true}},
		{"", api.RegistrySpec{Host: "docker.io", Mirror: "mirror.example.org:5000/hub"}},
		{"host", api.RegistrySpec{}},
		{"host", api.RegistrySpec{Host: "https://ghcr.io"}},
		{"host", api.RegistrySpec{Host: "ghcr"}},
		{"host", api.RegistrySpec{Host: "ghcr.io/team"}},
		{"host", api.RegistrySpec{Host: "ghcr.io:0"}},
		{"host", api.RegistrySpec{Host: ".io"}},
		{"password", api.RegistrySpec{Host: "a.b", Username: "u"}},
		{"password", api.RegistrySpec{Host: "a.b", Username: "u", Password: secret, PasswordFile: "/p"}},
		{"password_file", api.RegistrySpec{Host: "a.b", Username: "u", PasswordFile: "p"}},
		{"username", api.RegistrySpec{Host: "a.b", Password: secret}},
		{"send_credentials", api.RegistrySpec{Host: "a.b", SendCredentials: true}},
		{"", api.RegistrySpec{Host: "123456789012.dkr.ecr.eu-central-1.amazonaws.com", Identity: "ecr"}},
		{"", api.RegistrySpec{Host: "europe-docker.pkg.dev", Identity: "gcp"}},
		{"", api.RegistrySpec{Host: "gcr.io", Identity: "gcp"}},
		{"", api.RegistrySpec{Host: "eu.gcr.io", Identity: "gcp"}},
		{"", api.RegistrySpec{Host: "team.azurecr.io", Identity: "azure", Mirror: "m.b"}},
		{"identity", api.RegistrySpec{Host: "a.b", Identity: "oracle"}},
		{"identity", api.RegistrySpec{Host: "evilgcr.io", Identity: "gcp"}},
		{"identity", api.RegistrySpec{Host: "azurecr.io.example.org", Identity: "azure"}},
		{"identity", api.RegistrySpec{Host: "team.azurecr.io", Identity: "ecr"}},
		{"identity", api.RegistrySpec{Host: "team.azurecr.io", Identity: "azure", Username: "u", Password: secret}},
		{"insecure", api.RegistrySpec{Host: "team.azurecr.io", Identity: "azure", Insecure: true}},
		{"mirror", api.RegistrySpec{Host: "a.b", Mirror: "mirror"}},
		{"mirror", api.RegistrySpec{Host: "a.b", Mirror: "m.b/x/"}},
		{"mirror", api.RegistrySpec{Host: "a.b", Mirror: "http://m.b"}},
	} {
		c := Dev(2, 4*muster.GiB)
		c.DataDir, c.Registries = "/d", []api.RegistrySpec{x.spec}
		problems := Validate(&c)
		if x.at == "" && len(problems) > 0 || x.at != "" && (len(problems) != 1 || problems[0].Location != "registries[0]."+x.at) {
			t.Errorf("%+v: %v", x.spec, problems)
		}
	}
	c := Dev(2, 4*muster.GiB)
	c.DataDir, c.Registries = "/d", []api.RegistrySpec{{Host: "a.b"}, {Host: "a.b"}}
	if p := Validate(&c); len(p) != 1 || p[0].Location != "registries[1].host" {
		t.Errorf("%v", p)
	}
	for _, x := range []struct {
		list []api.RegistrySpec
		at   string // where the problem is; empty: none
	}{
		{[]api.RegistrySpec{{Host: "a.b", Namespaces: []string{"web", "ml"}}, {Host: "a.b"}, {Host: "a.b", Namespaces: []string{"shop"}}, {Host: "c.d", Namespaces: []string{"web"}}}, ""},
		{[]api.RegistrySpec{{Host: "a.b", Namespaces: []string{"web"}}, {Host: "a.b", Namespaces: []string{"ml", "web"}}}, "registries[1].namespaces[1]"},
		{[]api.RegistrySpec{{Host: "a.b", Namespaces: []string{"web", "web"}}}, "registries[0].namespaces[1]"},
		{[]api.RegistrySpec{{Host: "a.b", Namespaces: []string{"Web"}}}, "registries[0].namespaces[0]"},
		{[]api.RegistrySpec{{Host: "a.b", Namespaces: []string{""}}}, "registries[0].namespaces[0]"},
	} {
		c.Registries = x.list
		if p := Validate(&c); x.at == "" && len(p) > 0 || x.at != "" && (len(p) != 1 || p[0].Location != x.at) {
			t.Errorf("%+v: %v", x.list, p)
		}
	}
	c.Registries = []api.RegistrySpec{{Host: "a.b", Username: "u", Password: muster.NewSecret("hunter2")}}
	b, err := json.Marshal(c)
	if err != nil || strings.Contains(string(b), "hunter2") || strings.Contains(fmt.Sprintf("%+v %#v", c, c), "hunter2") {
		t.Errorf("%s %v", b, err)
	}
}

func TestImageCache(t *testing.T) {
	hub := []api.RegistrySpec{{Host: "docker.io"}}
	for _, x := range []struct {
		at         string // where the problem is; empty: none
		cache      api.ImageCacheConfig
		registries []api.RegistrySpec
	}{
		{"", api.ImageCacheConfig{}, nil},
		{"", api.ImageCacheConfig{Size: 1 << 30}, hub},
		{"", api.ImageCacheConfig{Size: 1 << 30, Fresh: api.Duration(time.Hour)}, hub},
		{"size", api.ImageCacheConfig{Size: 1 << 30}, nil},
		{"size", api.ImageCacheConfig{Size: -1}, hub},
		{"size", api.ImageCacheConfig{Fresh: api.Duration(time.Hour)}, hub},
		{"fresh", api.ImageCacheConfig{Size: 1 << 30, Fresh: api.Duration(time.Millisecond)}, hub},
		{"fresh", api.ImageCacheConfig{Size: 1 << 30, Fresh: api.Duration(48 * time.Hour)}, hub},
	} {
		c := Dev(2, 4*muster.GiB)
		c.DataDir, c.Registries, c.ImageCache = "/d", x.registries, x.cache
		Defaults(&c)
		problems := Validate(&c)
		if x.at == "" && len(problems) > 0 || x.at != "" && (len(problems) != 1 || problems[0].Location != "image_cache."+x.at) {
			t.Errorf("%+v: %v", x.cache, problems)
		}
		if x.cache.Size > 0 && c.ImageCache.Fresh == 0 {
			t.Errorf("%+v: has no time", x.cache)
		}
	}
}

func TestPoseidonConfig(t *testing.T) {
	base := func(p api.PoseidonConfig) *api.ServerConfig {
		s := good()
		s.Compat.Poseidon = &p
		Defaults(s)
		return s
	}
	for _, p := range []api.PoseidonConfig{{}, {Token: muster.NewSecret("0123456789abcdef")}, {TokenFile: "/etc/token", Namespace: "codeocean", Wait: api.Duration(time.Minute)}} {
		if wrong := Validate(base(p)); len(wrong) > 0 {
			t.Errorf("%+v: %v", p, wrong)
		}
	}
	for field, p := range map[string]api.PoseidonConfig{
		"token":      {Token: muster.NewSecret("short")},
		"token_file": {TokenFile: "token"},
		"namespace":  {Namespace: "Not A Name"},
		"wait":       {Wait: api.Duration(2 * time.Hour)},
	} {
		wrong := Validate(base(p))
		if len(wrong) != 1 || wrong[0].Location != "compat.poseidon."+field || strings.Contains(wrong[0].Message, "short") {
			t.Errorf("%s: %v", field, wrong)
		}
	}
	for _, token := range []string{"0123456789abcdef 0123456789abcdef", "0123456789abcdefü"} {
		if wrong := Validate(base(api.PoseidonConfig{Token: muster.NewSecret(token)})); len(wrong) != 1 || strings.Contains(wrong[0].Message, token) {
			t.Errorf("%v", wrong)
		}
	}
	if wrong := Validate(base(api.PoseidonConfig{Token: muster.NewSecret("0123456789abcdef"), TokenFile: "/x"})); len(wrong) != 1 {
		t.Errorf("%v", wrong)
	}
	if s := base(api.PoseidonConfig{}); s.Compat.Poseidon.Namespace != "default" {
		t.Errorf("%+v", s.Compat.Poseidon)
	}
	// It is there from the next start on, and without being asked for it is not there.
	changes, err := Changes(base(api.PoseidonConfig{}), base(api.PoseidonConfig{Wait: api.Duration(time.Second)}))
	if err != nil || len(changes) != 1 || !changes[0].Restart {
		t.Errorf("%+v %v", changes, err)
	}
}
