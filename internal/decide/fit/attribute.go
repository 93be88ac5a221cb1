package fit

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// Names of attributes that the server sets. They win over what an offering or
// an agent says under the same name: a node cannot talk itself into a pool.
const (
	AttrPool     = "pool"
	AttrProvider = "provider"
	AttrOffering = "offering"
	AttrZone     = "zone"
	AttrMarket   = "market"
)

// OwnAttributes are the names of all of them.
func OwnAttributes() [5]string {
	return [...]string{AttrPool, AttrProvider, AttrOffering, AttrZone, AttrMarket}
}

// Attributes under muster.MetaPrefix come from the configuration alone; state sees to it.

// Attribute is one attribute of a node as constraints see it: what the server knows, else what the
// operator says of its offering, else what its agent says. An empty value of the server's is not set.
func Attribute(n *state.Node, name string) (value string, set bool) {
	if v, known := served(n.Pool, &n.Offering, name); known {
		return v, v != ""
	}
	v, ok := n.Attributes[name]
	return v, ok
}

// SetByServer reports whether the server sets the attribute.
func SetByServer(name string) bool {
	_, known := served("", &muster.Offering{}, name)
	return known
}

// served is the value of an attribute that the server sets; known is whether it is one.
func served(pool muster.PoolName, o *muster.Offering, name string) (value string, known bool) {
	switch name {
	case AttrPool:
		return string(pool), true
	case AttrProvider:
		return string(o.Provider), true
	case AttrOffering:
		return string(o.Name), true
	case AttrZone:
		return o.Zone, true
	case AttrMarket:
		return string(o.Market), true
	}
	return "", false
}
