// Package clouds makes the providers of clouds from their configuration. It is the one place that
// knows all drivers, so a program that does not import it links none of their libraries.
//
// It must never ask a cloud anything: the configuration is checked by package config, and what a cloud
// says to it by the provider's Resolve.
package clouds

import (
	"fmt"
	"maps"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/azure"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/cloud/ec2"
	"github.com/musterhq/muster/internal/cloud/gce"
	"github.com/musterhq/muster/internal/cloud/hetzner"
	"github.com/musterhq/muster/internal/cloud/openstack"
	"github.com/musterhq/muster/internal/cloud/qemu"
)

// Open is a cloud.Opener.
func Open(spec *api.ProviderSpec, env cloud.Env) (cloud.Provider, error) {
	prices, err := pricesOf(spec)
	if err != nil {
		return nil, err
	}
	markets := make([]muster.Market, len(spec.Markets))
	for i, m := range spec.Markets {
		markets[i] = muster.Market(m)
	}
	name := muster.ProviderName(spec.Name)
	switch spec.Type {
	case api.ProviderQemu:
		return qemu.New(qemu.Config{
			Name: name, Owner: env.Owner, Dir: env.Dir, Image: spec.Image, Offerings: env.Offerings, Accelerator: spec.Accelerator,
			Access: env.Access, Logger: env.Logger,
		})
	case api.ProviderEC2:
		return ec2.New(ec2.Config{
			Name: name, Owner: env.Owner, Region: spec.Region, Subnets: spec.Subnets, SecurityGroups: spec.SecurityGroups,
			Types: spec.Types, Markets: markets, Image: spec.Image, Disk: spec.Disk.Bytes(), PublicIP: spec.PublicIP, InstanceProfile: spec.Profile,
			Prices: prices, Access: env.Access, Profile: spec.Credentials.Profile, CredentialsFile: spec.Credentials.File,
			Endpoint: spec.Endpoint, Logger: env.Logger,
		})
	case api.ProviderHetzner:
		return hetzner.New(hetzner.Config{
			Name: name, Owner: env.Owner, TokenFile: spec.TokenFile, Locations: spec.Locations, Types: spec.Types, Image: spec.Image,
			PublicIP: spec.PublicIP, Network: spec.Network, Prices: prices, Access: env.Access,
			Endpoint: spec.Endpoint, Logger: env.Logger,
		})
	case api.ProviderAzure:
		group := ""
		if len(spec.SecurityGroups) > 0 {
			group = spec.SecurityGroups[0]
		}
		return azure.New(azure.Config{
			Name: name, Owner: env.Owner, Subscription: spec.Subscription, ResourceGroup: spec.ResourceGroup, Location: spec.Location, Zones: spec.Zones,
			Subnet: spec.Subnet, SecurityGroup: group, Types: spec.Types, Markets: markets, Image: spec.Image, Disk: spec.Disk.Bytes(), PublicIP: spec.PublicIP,
			Prices: prices, Access: env.Access, Endpoint: spec.Endpoint, Logger: env.Logger,
		})
	case api.ProviderGCE:
		return gce.New(gce.Config{
			Name: name, Owner: env.Owner, Project: spec.Project, Zones: spec.Zones, Subnetwork: spec.Network, Types: spec.Types, Markets: markets,
			Image: spec.Image, Disk: spec.Disk.Bytes(), PublicIP: spec.PublicIP, MaxLife: time.Duration(spec.MaxLife), Prices: prices,
			Access: env.Access, CredentialsFile: spec.Credentials.File, Endpoint: spec.Endpoint, Logger: env.Logger,
		})
	case api.ProviderOpenStack:
		return openstack.New(openstack.Config{
			Name: name, Owner: env.Owner, Server: env.Server, Cloud: spec.Cloud, CloudsFile: spec.Credentials.File, Region: spec.Region, Network: spec.Network,
			SecurityGroups: spec.SecurityGroups, Types: spec.Types, Image: spec.Image, Disk: spec.Disk.Bytes(), Prices: prices,
			Access: env.Access, Logger: env.Logger,
		})
	}
	return nil, fmt.Errorf("type %s has no driver in this version; docs/providers.md says how a program of your own takes its place", spec.Type)
}

// pricesOf are the operator's prices: those of the file, and over them those of the configuration.
func pricesOf(spec *api.ProviderSpec) (driver.Prices, error) {
	p := driver.Prices{Table: map[string]float64{}, Factor: spec.PriceFactor}
	if spec.PricesFile != "" {
		b, err := os.ReadFile(spec.PricesFile)
		if err != nil {
			return p, fmt.Errorf("prices_file: %w", err)
		}
		if err := yaml.Unmarshal(b, &p.Table); err != nil {
			return p, fmt.Errorf("prices_file: %s: write lines as m7i.large: 0.12: %w", spec.PricesFile, err)
		}
		if p.Table == nil {
			p.Table = map[string]float64{}
		}
	}
	maps.Copy(p.Table, spec.Prices)
	return p, p.Check()
}
