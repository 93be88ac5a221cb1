package fit

import (
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Kind sorts what keeps a member from a node, in the order in which it is looked for.
type Kind uint8

const (
	// None: nothing, the member fits.
	None Kind = iota
	// Closed: the node takes no new work; What is which of its stage, health and intent says so.
	Closed
	// Filtered: the pool or a constraint of the job; What is the condition as users write it.
	Filtered
	// Avoided: the member failed there before.
	Avoided
	// Short: not enough is free; What is the first dimension that lacks.
	Short
	// Occupied: the job is on distinct hosts, and has a member there. Check never returns it; package
	// place does, which knows the job's members.
	Occupied
)

// Obstacle is the first thing that keeps a member from a node. Its zero value is none.
type Obstacle struct {
	Kind Kind
	What string
}

// Check is the rule: may a member of the shape that failed on the nodes in
// avoid go to n, of which this much is free? Pass Room(n) as free, less what is
// promised to others. Devices and ports are those of the row.
func Check(s *Shape, n *state.Node, free muster.Resources, avoid []muster.NodeID) Obstacle {
	return CheckSpace(s, n, Space{free, n.Taken}, avoid)
}

// CheckSpace is Check where devices and ports are not those of the row either.
func CheckSpace(s *Shape, n *state.Node, free Space, avoid []muster.NodeID) Obstacle {
	if why := closed(n); why != "" {
		return Obstacle{Closed, why}
	}
	if c := Feasible(s, n); c != "" {
		return Obstacle{Filtered, c}
	}
	if slices.Contains(avoid, n.ID) {
		return Obstacle{Kind: Avoided}
	}
	if dim := s.Short(free, n.Devices()); dim != "" {
		return Obstacle{Short, dim}
	}
	return Obstacle{}
}

// closed names which of stage, health and intent keeps new work from the node, or "".
func closed(n *state.Node) string {
	switch {
	case n.Schedulable():
		return ""
	case n.Stage != muster.NodeServing:
		return string(n.Stage)
	case n.Health != muster.NodeGood:
		return string(n.Health)
	case n.Intent == muster.NodeDrain:
		return "set to drain"
	}
	return "on " + string(n.Intent)
}

// need is a condition as users read it. Of volumes they have written names, and no condition on an
// attribute.
func need(c *muster.Constraint) string {
	if c.Op != muster.OpSetContains || c.Attribute != muster.AttributeVolumes && c.Attribute != muster.AttributeVolumesWritable {
		return c.String()
	}
	noun := "volume"
	if strings.Contains(c.Value, ",") {
		noun = "volumes"
	}
	if c.Attribute == muster.AttributeVolumesWritable {
		noun = "writable " + noun
	}
	return "the need for " + noun + " " + strings.ReplaceAll(c.Value, ",", ", ")
}

// FeasibleIn is Feasible of the conditions on these attributes alone. A node that is gone or that has
// joined before shows with it what nodes of its kind say of themselves. What the pool's configuration
// decides must not be asked of it: the configuration may have changed since.
func FeasibleIn(s *Shape, n *state.Node, attributes []string) string {
	for i := range s.Constraints {
		c := &s.Constraints[i]
		if !slices.Contains(attributes, c.Attribute) {
			continue
		}
		if v, set := Attribute(n, c.Attribute); !c.Met(v, set) {
			return need(c)
		}
	}
	return ""
}

// Feasible names the first condition of the shape that the node does not meet,
// or "" if it could hold a member were it open and empty enough.
func Feasible(s *Shape, n *state.Node) string {
	if s.Pool != "" && s.Pool != n.Pool {
		return AttrPool + " = " + string(s.Pool)
	}
	for i := range s.Constraints {
		c := &s.Constraints[i]
		if v, set := Attribute(n, c.Attribute); !c.Met(v, set) {
			return need(c)
		}
	}
	return ""
}

// runtimeMeets reports whether the nodes of a pool will meet a condition on their container
// runtime, as far as the pool's configuration decides it. A condition on its version is known only
// when a node has asked it.
func runtimeMeets(p *state.Pool, c *muster.Constraint) (met, known bool) {
	about := c.Attribute == muster.AttributeContainers || c.Attribute == muster.AttributeIsolation
	switch {
	case p.Runtime == "" || !about:
		return false, false
	case p.Runtime == api.RuntimeNone:
		return c.Met("", false), true
	case c.Op == muster.OpIsSet:
		return true, true
	case c.Attribute == muster.AttributeIsolation:
		// The usual two give what the kernel of the node allows, others are of a kind of their own.
		return c.Met(p.Runtime, true), p.Runtime != "crun" && p.Runtime != "runc"
	}
	for _, name := range muster.RuntimePrograms() {
		if needs := muster.RuntimeNeeds(name); needs.Op == c.Op && needs.Value == c.Value {
			return name == p.Runtime, true
		}
	}
	return false, false
}

// poolMeets reports whether the nodes of a pool will meet a condition, where the pool's
// configuration decides it: on their container runtime or on their volumes.
func poolMeets(p *state.Pool, c *muster.Constraint) (met, known bool) {
	value := p.Volumes
	switch c.Attribute {
	case muster.AttributeVolumes:
	case muster.AttributeVolumesWritable:
		value = p.VolumesWritable
	default:
		return runtimeMeets(p, c)
	}
	switch {
	case p.Runtime == api.RuntimeNone:
		// Only containers have volumes.
		return c.Met("", false), true
	case p.Volumes == "":
		return false, false
	}
	return c.Met(value, value != ""), true
}

// OfferingFits tells what would keep a member of the shape from an empty node
// that the pool made of the offering: Filtered, Short, or None. Whether the
// offering is available now does not matter. Attributes that neither the server
// nor the operator sets are known only when the agent of such a node has spoken
// (arch, os, …); constraints on them are taken as met, and their attributes are
// listed in unsure, in the order of the constraints.
func OfferingFits(s *Shape, p *state.Pool, o *muster.Offering) (obstacle Obstacle, unsure []string) {
	switch {
	case s.Pool != "" && s.Pool != p.Name:
		return Obstacle{Filtered, AttrPool + " = " + string(s.Pool)}, nil
	case !p.Covers(o):
		return Obstacle{Filtered, "pool " + string(p.Name) + " does not use it"}, nil
	}
	for i := range s.Constraints {
		c := &s.Constraints[i]
		if met, known := poolMeets(p, c); known && !met {
			return Obstacle{Filtered, need(c)}, nil
		} else if known {
			continue
		}
		v, known := served(p.Name, o, c.Attribute)
		set := v != ""
		if !known {
			if key, meta := strings.CutPrefix(c.Attribute, muster.MetaPrefix); meta {
				if v, set = p.Meta[key]; !set {
					v, set = o.Attributes[c.Attribute]
				}
			} else if v, set = o.Attributes[c.Attribute]; !set {
				unsure = append(unsure, c.Attribute)
				continue
			}
		}
		if !c.Met(v, set) {
			return Obstacle{Filtered, need(c)}, nil
		}
	}
	if dim := s.Short(Space{Resources: o.Capacity}, o.Devices); dim != "" {
		return Obstacle{Short, dim}, nil
	}
	return Obstacle{}, unsure
}
