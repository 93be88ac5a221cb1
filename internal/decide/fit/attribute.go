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

// Attributes is everything that constraints see of a node, merged: what its
// agent says, over that what the operator says of its offering, over that what
// the server knows. An empty value of the server's is not set.
func Attributes(n *state.Node) map[string]string {
	out := make(map[string]string, len(n.Attributes)+5)
	for k, v := range n.Attributes {
		out[k] = v
	}
	for _, k := range OwnAttributes() {
		if v, _ := served(n.Pool, &n.Offering, k); v != "" {
			out[k] = v
		} else {
			delete(out, k)
		}
	}
	return out
}

// Attribute is one of Attributes, without building the rest.
func Attribute(n *state.Node, name string) (value string, set bool) {
	if v, known := served(n.Pool, &n.Offering, name); known {
		return v, v != ""
	}
	v, ok := n.Attributes[name]
	return v, ok
}

// Served reports whether the server sets the attribute.
func Served(name string) bool {
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
