package config

import "github.com/musterhq/muster/api"

// OnlyOneServer says why a provider cannot be used by a cluster of several servers; "" if it can. Its
// instances are on the host of the server that made them. Another leader would not find them there,
// take all of its nodes for gone and run their work a second time.
func OnlyOneServer(p *api.ProviderSpec) string {
	switch p.Type {
	case api.ProviderLocal:
		return "its nodes are processes on the host of the server that starts them, and no other server reaches them; use type static with hosts that each server reaches over SSH"
	case api.ProviderQemu:
		return "its nodes are virtual machines on the host of the server that starts them, and no other server reaches them; use type static with hosts that each server reaches over SSH"
	}
	return ""
}
