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
	const (
		qemu, ec2, hetzner    = api.ProviderQemu, api.ProviderEC2, api.ProviderHetzner
		openstack, gce, azure = api.ProviderOpenStack, api.ProviderGCE, api.ProviderAzure
	)
	all := api.CloudTypes()
	real := []string{ec2, hetzner, openstack, gce, azure}
	c.ofTypes(at, p.Type, []fieldOf{
		{"region", p.Region != "", []string{ec2}},
		{"subnets", len(p.Subnets) > 0, []string{ec2}},
		{"security_groups", len(p.SecurityGroups) > 0, []string{ec2, openstack}},
		{"instance_profile", p.Profile != "", []string{ec2}},
		{"subscription", p.Subscription != "", []string{azure}},
		{"resource_group", p.ResourceGroup != "", []string{azure}},
		{"location", p.Location != "", []string{azure}},
		{"subnet", p.Subnet != "", []string{azure, gce}},
		{"project", p.Project != "", []string{gce}},
		{"zones", len(p.Zones) > 0, []string{gce, azure, openstack}},
		{"cloud", p.Cloud != "", []string{openstack}},
		{"network", p.Network != "", []string{openstack, hetzner}},
		{"locations", len(p.Locations) > 0, []string{hetzner}},
		{"token_file", p.TokenFile != "", []string{hetzner}},
		{"image", p.Image != "", all},
		{"types", len(p.Types) > 0, real},
		{"markets", len(p.Markets) > 0, []string{ec2, gce, azure}},
		{"disk", p.Disk != 0, real},
		{"public_ip", p.PublicIP, real},
		{"user_data_file", p.UserDataFile != "", all},
		{"credentials", p.Credentials != api.CloudCredentials{}, []string{ec2, gce, openstack}},
		{"rates", p.Rates != api.CloudRates{}, real},
		{"prices", len(p.Prices) > 0, real},
		{"prices_file", p.PricesFile != "", real},
		{"price_factor", p.PriceFactor != 0, real},
		{"max_life", p.MaxLife != 0, []string{gce}},
		{"endpoint", p.Endpoint != "", real},
		{"accelerator", p.Accelerator != "", []string{qemu}},
		{"labels", len(p.Labels) > 0, append([]string{api.ProviderExec}, real...)},
	})
	c.absolute(at+".token_file", p.TokenFile)
	c.absolute(at+".user_data_file", p.UserDataFile)
	c.absolute(at+".prices_file", p.PricesFile)
	c.absolute(at+".credentials.file", p.Credentials.File)
	c.oneOf(at+".accelerator", p.Accelerator, "kvm", "tcg")
	c.size(at+".disk", p.Disk)
	c.duration(at+".max_life", p.MaxLife, api.MaxInstanceLife)
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
	if p.Credentials.File != "" && p.Credentials.Profile != "" && p.Type != ec2 {
		c.Add(at+".credentials.profile", "is for providers of type %s", ec2)
	}
	c.cloudNeeds(at, p)
	if strings.ContainsAny(p.Image, " \t\n") && p.Type != openstack {
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
	case api.ProviderHetzner:
		need("token_file", p.TokenFile != "", "name a file with an API token that may read and write; the console makes one under Security, API tokens")
		need("locations", len(p.Locations) > 0, "name at least one location, as fsn1")
	case api.ProviderOpenStack:
		need("cloud", p.Cloud != "", "name the cloud in clouds.yaml")
		need("network", p.Network != "", "name the network of the instances; `openstack network list` lists them")
		need("image", p.Image != "", "name an image with cloud-init; `openstack image list` lists them")
		need("prices", len(p.Prices) > 0 || p.PricesFile != "", "OpenStack knows no prices: give the price per hour of each flavor to offer, 0 if it costs nothing")
	case api.ProviderGCE:
		need("project", p.Project != "", "name the project; `gcloud projects list` lists them")
		need("zones", len(p.Zones) > 0, "name at least one zone, as europe-west1-b")
		need("prices_file", len(p.Prices) > 0 || p.PricesFile != "", "Google's price list cannot be read by machine type: give prices per hour in prices or in a file")
	case api.ProviderAzure:
		need("subscription", p.Subscription != "", "name the subscription's id; `az account show` prints it")
		need("resource_group", p.ResourceGroup != "", "name the resource group; `az group create` makes one")
		need("location", p.Location != "", "name the location, as westeurope")
		need("subnet", p.Subnet != "", "name the subnet by its resource id; `az network vnet subnet list` lists them")
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
		fill(&p.Disk, defaultCloudDisk)
		fill(&p.PriceFactor, 1)
	}
	if slices.Contains([]string{api.ProviderEC2, api.ProviderGCE, api.ProviderAzure}, p.Type) && len(p.Markets) == 0 {
		p.Markets = []string{string(muster.OnDemand)}
	}
	if p.BootProbe.Command == "" {
		p.BootProbe.Command = cloudBootProbe
	}
}

// endsBilling reports whether an instance that shuts itself down is paid for no more. Pools of such
// providers have a lease by default.
func endsBilling(p *api.ProviderSpec) bool {
	switch p.Type {
	case api.ProviderEC2, api.ProviderQemu, api.ProviderGCE:
		return true
	}
	return p.ShutdownEndsBilling
}
