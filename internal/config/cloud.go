package config

import (
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/validate"
)

// cloud checks the fields of clouds: none where another type has them, and all that a type needs.
func (c *checks) cloud(at string, p *api.ProviderSpec) {
	const ec2, hetzner, gce, azure, openstack = api.ProviderEC2, api.ProviderHetzner, api.ProviderGCE, api.ProviderAzure, api.ProviderOpenStack
	all, real := api.CloudTypes(), []string{ec2, hetzner, gce, azure, openstack}
	// The addresses of an OpenStack cloud are in clouds.yaml, and floating ones are not made.
	addressed := []string{ec2, hetzner, gce, azure}
	c.ofTypes(at, p.Type, []fieldOf{
		{"region", p.Region != "", []string{ec2, openstack}},
		{"subnets", len(p.Subnets) > 0, []string{ec2}},
		{"security_groups", len(p.SecurityGroups) > 0, []string{ec2, azure, openstack}},
		{"instance_profile", p.Profile != "", []string{ec2}},
		{"network", p.Network != "", []string{hetzner, gce, openstack}},
		{"cloud", p.Cloud != "", []string{openstack}},
		{"locations", len(p.Locations) > 0, []string{hetzner}},
		{"project", p.Project != "", []string{gce}},
		{"zones", len(p.Zones) > 0, []string{gce, azure}},
		{"max_life", p.MaxLife != 0, []string{gce}},
		{"subscription", p.Subscription != "", []string{azure}},
		{"resource_group", p.ResourceGroup != "", []string{azure}},
		{"location", p.Location != "", []string{azure}},
		{"subnet", p.Subnet != "", []string{azure}},
		{"token_file", p.TokenFile != "", []string{hetzner}},
		{"image", p.Image != "", all},
		{"types", len(p.Types) > 0, real},
		{"markets", len(p.Markets) > 0, []string{ec2, gce, azure}},
		{"disk", p.Disk != 0, []string{ec2, gce, azure, openstack}},
		{"public_ip", p.PublicIP, addressed},
		{"user_data_file", p.UserDataFile != "", all},
		{"credentials", p.Credentials != api.CloudCredentials{}, []string{ec2, gce, openstack}},
		{"rates", p.Rates != api.CloudRates{}, real},
		{"prices", len(p.Prices) > 0, real},
		{"prices_file", p.PricesFile != "", real},
		{"price_factor", p.PriceFactor != 0, real},
		{"endpoint", p.Endpoint != "", addressed},
		{"accelerator", p.Accelerator != "", []string{api.ProviderQemu}},
		{"labels", len(p.Labels) > 0, append([]string{api.ProviderExec}, real...)},
	})
	c.absolute(at+".token_file", p.TokenFile)
	c.absolute(at+".user_data_file", p.UserDataFile)
	c.absolute(at+".prices_file", p.PricesFile)
	c.absolute(at+".credentials.file", p.Credentials.File)
	c.oneOf(at+".accelerator", p.Accelerator, "kvm", "tcg")
	c.size(at+".disk", p.Disk)
	for i, m := range p.Markets {
		c.oneOf(validate.Index(at+".markets", i), m, string(muster.OnDemand), string(muster.Spot))
	}
	for i, t := range p.Types {
		if _, err := path.Match(t, ""); err != nil || t == "" {
			c.Add(validate.Index(at+".types", i), "is %s; write the name of an instance type, with * as wildcard, as m7i.*", validate.Quote(t))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(p.Prices)) {
		c.money(at+".prices."+k, p.Prices[k])
	}
	if f := p.PriceFactor; f < 0 || f > 100 {
		c.Add(at+".price_factor", "is %s; it is above 0 and at most 100", validate.Number(f))
	}
	for name, r := range map[string]float64{"create": p.Rates.Create, "destroy": p.Rates.Destroy, "read": p.Rates.Read} {
		if !(r >= 0 && r <= 10_000) {
			c.Add(at+".rates."+name, "is %s; it is 0 to 10000 a second", validate.Number(r))
		}
	}
	if p.Endpoint != "" {
		if u, err := url.Parse(p.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			c.Add(at+".endpoint", "is %s; write an address, as https://ec2.example.org", validate.Quote(p.Endpoint))
		}
	}
	if p.SSH != nil && p.SSH.KnownHosts != "" && isCloud(p) {
		c.Add(at+".ssh.known_hosts", "is for hosts that have their keys already; the server makes those of this provider's instances")
	}
	c.cloudNeeds(at, p)
	if strings.ContainsAny(p.Image, " \t\n") {
		c.Add(at+".image", "is %s; it has no spaces", validate.Quote(p.Image))
	}
}

// cloudNeeds says what a cloud's provider lacks, and where to find it.
func (c *checks) cloudNeeds(at string, p *api.ProviderSpec) {
	need := func(field string, given bool, hint string) {
		if !given {
			c.Add(at+"."+field, "is missing; %s", hint)
		}
	}
	switch p.Type {
	case api.ProviderEC2:
		need("region", p.Region != "", "name the region, as eu-central-1")
		need("subnets", len(p.Subnets) > 0, "name at least one subnet; `aws ec2 describe-subnets` lists them")
		need("security_groups", len(p.SecurityGroups) > 0, "name a security group that lets this server in on port 22; `aws ec2 describe-security-groups` lists them")
		own := strings.HasPrefix(p.Image, "ami-") || strings.HasPrefix(p.Image, "/")
		need("ssh.user", !own || p.SSH != nil && p.SSH.User != "", "name the login user of image "+validate.Quote(p.Image)+", as admin; it is known of aliases only, as debian-12")
	case api.ProviderHetzner:
		need("token_file", p.TokenFile != "", "name a file with an API token that may read and write; the console makes one under Security, API tokens")
		need("locations", len(p.Locations) > 0, "name at least one location, as fsn1")
	case api.ProviderGCE:
		need("project", p.Project != "", "name the id of a project; `gcloud projects list` prints them")
		need("zones", len(p.Zones) > 0, "name at least one zone, as europe-west1-b; `gcloud compute zones list` prints them")
		need("prices", len(p.Prices) > 0 || p.PricesFile != "", "name prices of types, as n2-standard-4: 0.21, or of a family; docs/clouds/gce.md has how")
		if p.Credentials.Profile != "" {
			c.Add(at+".credentials.profile", "is for providers of type ec2; this one is gce")
		}
	case api.ProviderAzure:
		need("subscription", p.Subscription != "", "name the id of the subscription; `az account list` lists them")
		need("resource_group", p.ResourceGroup != "", "name a resource group for the instances; `az group create` makes one")
		need("location", p.Location != "", "name the location, as westeurope; `az account list-locations` lists them")
		need("subnet", p.Subnet != "", "name the resource id of a subnet; `az network vnet subnet show` prints it")
		if len(p.SecurityGroups) > 1 {
			c.Add(at+".security_groups", "has %d entries; an instance of azure has one at most", len(p.SecurityGroups))
		}
	case api.ProviderOpenStack:
		need("cloud", p.Cloud != "", "name an entry of clouds.yaml; the dashboard makes the file under Identity, Application Credentials")
		need("network", p.Network != "", "name the network of the instances; `openstack network list` prints them")
		need("image", p.Image != "", "name an image with cloud-init; `openstack image list` prints them")
		need("prices", len(p.Prices) > 0 || p.PricesFile != "", "name a price for each flavor that may be used, as m1.large: 0.08; OpenStack knows none")
		if p.Credentials.Profile != "" {
			c.Add(at+".credentials.profile", "is for providers of type ec2; this one is openstack")
		}
	case api.ProviderQemu:
		need("image", p.Image != "", "name a disk image with cloud-init; `make vm-image` builds one")
		c.absolute(at+".image", p.Image)
	}
}

// isCloud reports whether a provider makes machines in a cloud.
func isCloud(p *api.ProviderSpec) bool { return slices.Contains(api.CloudTypes(), p.Type) }

// cloudDefaults fills in what a cloud's provider leaves out.
func cloudDefaults(p *api.ProviderSpec) {
	if !isCloud(p) {
		return
	}
	if p.Type != api.ProviderQemu {
		fill(&p.PriceFactor, 1)
	}
	if p.Type == api.ProviderOpenStack {
		fill(&p.Disk, defaultCloudDisk)
	}
	if p.Type == api.ProviderEC2 || p.Type == api.ProviderGCE || p.Type == api.ProviderAzure {
		fill(&p.Disk, defaultCloudDisk)
		if len(p.Markets) == 0 {
			p.Markets = []string{string(muster.OnDemand)}
		}
	}
	if p.BootProbe.Command == "" {
		p.BootProbe.Command = cloudBootProbe
	}
}

// endsBilling reports whether an instance that shuts itself down is paid for no more. Pools of such
// providers have a lease by default. On GCE its disk is still paid for, which is little beside its cores.
func endsBilling(p *api.ProviderSpec) bool {
	switch p.Type {
	case api.ProviderEC2, api.ProviderGCE, api.ProviderQemu:
		return true
	}
	return p.ShutdownEndsBilling
}
