package config

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

// clouds are providers as short as they can be, as docs/clouds has them.
func clouds() map[string]api.ProviderSpec {
	cloud := func(kind string, c api.CloudSpec) api.ProviderSpec {
		return api.ProviderSpec{Name: "local", Type: kind, CloudSpec: c}
	}
	return map[string]api.ProviderSpec{
		"ec2":       cloud("ec2", api.CloudSpec{Region: "eu-central-1", Subnets: []string{"subnet-0a"}, SecurityGroups: []string{"sg-0c"}}),
		"gce":       cloud("gce", api.CloudSpec{Project: "acme", Zones: []string{"europe-west1-b"}, PricesFile: "/etc/muster/gce-prices.yaml"}),
		"hetzner":   cloud("hetzner", api.CloudSpec{TokenFile: "/etc/muster/hcloud.token", Locations: []string{"fsn1"}}),
		"openstack": cloud("openstack", api.CloudSpec{Cloud: "acme", Network: "nodes", Image: "debian-12", Prices: map[string]float64{"m1.large": 0.08}}),
		"azure": cloud("azure", api.CloudSpec{Subscription: "00000000-1111-2222-3333-444444444444", ResourceGroup: "muster", Location: "westeurope",
			Subnet: "/subscriptions/0/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/nodes"}),
		"qemu": cloud("qemu", api.CloudSpec{Image: "/var/lib/muster/images/debian-12.qcow2"}),
	}
}

// TestShortClouds: what docs/clouds says is enough is enough, and each of its fields is needed.
func TestShortClouds(t *testing.T) {
	for name, p := range clouds() {
		c := good()
		c.Providers[0], c.Pools[0].Offerings = p, nil
		if got := Validate(c); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
		Defaults(c)
		if c.Providers[0].BootProbe.Command == "" || (name == "ec2" || name == "gce") && c.Providers[0].Disk == 0 {
			t.Errorf("%s: no defaults: %+v", name, c.Providers[0])
		}
		if lease := c.Pools[0].Lease; (lease != 0) != (name == "ec2" || name == "gce" || name == "qemu") {
			t.Errorf("%s: its pool has a lease of %s", name, lease)
		}
		if got := Validate(c); len(got) != 0 {
			t.Errorf("%s with its defaults: %v", name, got)
		}
		// Stopping is for those whose driver is a cloud.Stopper; with OpenStack, billing seldom ends with it.
		c.Providers[0].ShutdownEndsBilling = name == "openstack"
		c.Pools[0].Stop.Most, c.Pools[0].Stop.Timeout = 2, 0
		if got := Validate(c); (len(got) == 0) != (name == "ec2" || name == "gce" || name == "azure" || name == "openstack") {
			t.Errorf("%s with stopped nodes: %v", name, got)
		}
		if c.Providers[0].ShutdownEndsBilling = false; name == "openstack" && len(Validate(c)) != 1 {
			t.Errorf("%s stops nodes that are billed: %v", name, Validate(c))
		}
		if Defaults(c); c.Pools[0].Stop.Timeout != defaultStopTimeout {
			t.Errorf("%s: nodes are stopped for %s", name, c.Pools[0].Stop.Timeout)
		}
		c = good()
		c.Providers[0], c.Pools[0].Offerings = api.ProviderSpec{Name: "local", Type: name}, nil
		missing := Validate(c)
		if len(missing) == 0 {
			t.Errorf("%s: nothing is needed", name)
		}
		for _, m := range missing {
			if !strings.Contains(m.String(), "is missing; ") {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

func TestCloudRefusals(t *testing.T) {
	for _, c := range []struct {
		of     string
		change func(*api.ProviderSpec)
		want   string
	}{
		{"ec2", func(p *api.ProviderSpec) { p.Accelerator = "kvm" }, `providers[0].accelerator: is for providers of type qemu; this one is ec2`},
		{"ec2", func(p *api.ProviderSpec) { p.Types = []string{"m7i.["} }, `providers[0].types[0]: is "m7i.["; write the name of an instance type, with * as wildcard, as m7i.*`},
		{"ec2", func(p *api.ProviderSpec) { p.Markets = []string{"cheap"} }, `providers[0].markets[0]: is "cheap"; it is one of on-demand, spot`},
		{"ec2", func(p *api.ProviderSpec) { p.UserDataFile = "x.sh" }, `providers[0].user_data_file: is "x.sh"; write an absolute path`},
		{"ec2", func(p *api.ProviderSpec) { p.Endpoint = "ftp://x" }, `providers[0].endpoint: is "ftp://x"; write an address, as https://ec2.example.org`},
		{"ec2", func(p *api.ProviderSpec) { p.Rates.Create = -1 }, `providers[0].rates.create: is -1; it is 0 to 10000 a second`},
		{"ec2", func(p *api.ProviderSpec) { p.Prices = map[string]float64{"m7i": -1} }, `providers[0].prices.m7i: is -1; it is 0 to 1e9`},
		{"ec2", func(p *api.ProviderSpec) { p.Image = "ami-0a" }, `providers[0].ssh.user: is missing; name the login user of image "ami-0a", as admin; it is known of aliases only, as debian-12`},
		{"qemu", func(p *api.ProviderSpec) { p.Markets = []string{"spot"} }, `providers[0].markets: is for providers of type ec2, gce and azure; this one is qemu`},
		{"openstack", func(p *api.ProviderSpec) { p.PublicIP = true }, `providers[0].public_ip: is for providers of type ec2, hetzner, gce and azure; this one is openstack`},
		{"openstack", func(p *api.ProviderSpec) { p.Credentials.Profile = "x" }, `providers[0].credentials.profile: is for providers of type ec2; this one is openstack`},
		{"hetzner", func(p *api.ProviderSpec) { p.Disk = 1 }, `providers[0].disk: is for providers of type ec2, gce, azure and openstack; this one is hetzner`},
		{"ec2", func(p *api.ProviderSpec) { p.SSH = &api.SSHSpec{KnownHosts: "/known_hosts"} }, `providers[0].ssh.known_hosts: is for hosts that have their keys already; the server makes those of this provider's instances`},
		{"gce", func(p *api.ProviderSpec) { p.Credentials.Profile = "x" }, `providers[0].credentials.profile: is for providers of type ec2; this one is gce`},
		{"ec2", func(p *api.ProviderSpec) { p.MaxLife = 1 }, `providers[0].max_life: is for providers of type gce; this one is ec2`},
		{"azure", func(p *api.ProviderSpec) { p.SecurityGroups = []string{"a", "b"} }, `providers[0].security_groups: has 2 entries; an instance of azure has one at most`},
		{"azure", func(p *api.ProviderSpec) { p.Region = "westeurope" }, `providers[0].region: is for providers of type ec2 and openstack; this one is azure`},
		{"qemu", func(p *api.ProviderSpec) { p.Image = "debian-12" }, `providers[0].image: is "debian-12"; write an absolute path`},
	} {
		s := good()
		s.Providers[0], s.Pools[0].Offerings = clouds()[c.of], nil
		c.change(&s.Providers[0])
		got := Validate(s)
		if len(got) != 1 || got[0].String() != c.want {
			t.Errorf("got  %v\nwant %s", got, c.want)
		}
	}
}
