package api

// Types of providers that make machines in a cloud.
const (
	// ProviderQemu makes virtual machines on the server's own host.
	ProviderQemu = "qemu"
	// ProviderEC2 is Amazon's.
	ProviderEC2 = "ec2"
	// ProviderHetzner is Hetzner Cloud.
	ProviderHetzner = "hetzner"
	// ProviderGCE is Google Compute Engine.
	ProviderGCE = "gce"
	// ProviderAzure is Microsoft's.
	ProviderAzure = "azure"
	// ProviderOpenStack is any cloud of OpenStack.
	ProviderOpenStack = "openstack"
)

// CloudSpec is what a provider of a cloud says beyond what all providers do. Which fields belong to
// which type is checked by package config.
type CloudSpec struct {
	Region         string   `json:"region,omitempty" doc:"Of ec2: as eu-central-1. Of openstack: default: that of clouds.yaml."`
	Subnets        []string `json:"subnets,omitempty" doc:"Of ec2: subnets to launch in. The zones of the offerings are theirs."`
	SecurityGroups []string `json:"security_groups,omitempty" doc:"Of ec2, azure and openstack: security groups of the instances; of azure at most one, by its resource id; of openstack by name. They must let the server in on port 22."`
	Profile        string   `json:"instance_profile,omitempty" doc:"Of ec2: IAM instance profile of the instances. Default: none."`

	Project string   `json:"project,omitempty" doc:"Of gce: id of the project."`
	Zones   []string `json:"zones,omitempty" doc:"Of gce: zones to launch in, as europe-west1-b. Of azure: zones as 1, and regional: wherever the cloud chooses. Default of azure: regional."`
	MaxLife Duration `json:"max_life,omitempty" doc:"Of gce: the cloud deletes an instance after this time, even if no server runs. Default: never."`

	Network   string   `json:"network,omitempty" doc:"Of hetzner: name or id of a private network for the instances. Default: none. Of gce: name of a subnetwork that each region of the zones has, or the path of one. Default: default. Of openstack: name or id of the network of the instances, over which the server reaches them."`
	Cloud     string   `json:"cloud,omitempty" doc:"Of openstack: the entry of clouds.yaml that has the address of the cloud and the credentials."`
	Locations []string `json:"locations,omitempty" doc:"Of hetzner: locations to launch in, as fsn1."`
	TokenFile string   `json:"token_file,omitempty" scope:"server" doc:"Of hetzner: file with the API token. An absolute path."`

	Subscription  string `json:"subscription,omitempty" doc:"Of azure: id of the subscription."`
	ResourceGroup string `json:"resource_group,omitempty" doc:"Of azure: resource group of the instances, best one for this cluster alone. It exists already."`
	Location      string `json:"location,omitempty" doc:"Of azure: location, as westeurope."`
	Subnet        string `json:"subnet,omitempty" doc:"Of azure: resource id of the subnet of the instances."`

	Image        string   `json:"image,omitempty" doc:"Image of new instances: an alias as debian-12 or ubuntu-24.04, or the cloud's own id. Of qemu: the absolute path of a disk image. What an alias stands for is kept for an hour."`
	Types        []string `json:"types,omitempty" doc:"Instance types to offer, with * as wildcard, as m7i.*. Default: recent general, compute and memory types up to 32 cores, x86-64, without GPU."`
	Markets      []string `json:"markets,omitempty" enum:"on-demand,spot" doc:"Of ec2, gce and azure: markets to launch in. Default: on-demand."`
	Disk         Size     `json:"disk,omitempty" zero:"50GiB" doc:"Of ec2, gce, azure and openstack: size of the root disk; of openstack, of flavors that have none. Its price is part of the offering's where the cloud says it. Default: 50GiB."`
	PublicIP     bool     `json:"public_ip,omitempty" doc:"Give instances a public IPv4 address. Default: false; instances of hetzner then have IPv6 only."`
	UserDataFile string   `json:"user_data_file,omitempty" scope:"server" doc:"File with a script (#!) or #cloud-config that cloud-init runs on new instances in addition. An absolute path."`

	Credentials CloudCredentials `json:"credentials,omitzero" scope:"server" doc:"Default: what the tools of the cloud use by themselves, as environment variables, a file in the home directory, or the identity of the machine."`
	Rates       CloudRates       `json:"rates,omitzero" doc:"Most calls per second. Default: what is known of the cloud's limits."`

	Prices      map[string]float64 `json:"prices,omitempty" doc:"Price per hour by instance type. It wins over what the cloud says. Of gce: needed, and also by family (docs/clouds/gce.md)."`
	PricesFile  string             `json:"prices_file,omitempty" scope:"server" doc:"YAML file with prices, in the format of prices. An absolute path."`
	PriceFactor float64            `json:"price_factor,omitempty" zero:"1" doc:"Factor for prices that the cloud says, as 0.8 for a discount of 20 %. Default: 1."`

	Endpoint    string            `json:"endpoint,omitempty" doc:"Address of the cloud's API, for tests and private endpoints. Default: the cloud's own."`
	Accelerator string            `json:"accelerator,omitempty" enum:"kvm,tcg" doc:"Of qemu: default: kvm if it works here, else tcg."`
	Labels      map[string]string `json:"labels,omitempty" doc:"Further tags of instances, for bills."`
}

// CloudCredentials say which credentials to use. Secrets are never values here, but in files.
type CloudCredentials struct {
	Profile string `json:"profile,omitempty" doc:"Of ec2: profile in the AWS configuration files."`
	File    string `json:"file,omitempty" doc:"Of ec2: credentials file in the format of AWS's tools. Of gce: JSON file of a service account. Of openstack: clouds.yaml, where it is not in its usual places. An absolute path."`
}

// CloudRates bound the calls to a cloud. Zero: the default of its driver.
type CloudRates struct {
	Create  float64 `json:"create,omitempty" doc:"Instances created per second."`
	Destroy float64 `json:"destroy,omitempty" doc:"Instances destroyed per second."`
	Read    float64 `json:"read,omitempty" doc:"Pages of lists and offerings read per second."`
}

// CloudTypes are the types of providers that make machines in a cloud.
func CloudTypes() []string {
	return []string{ProviderQemu, ProviderEC2, ProviderHetzner, ProviderGCE, ProviderAzure, ProviderOpenStack}
}
