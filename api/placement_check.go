package api

import (
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// MaxDevices is how many devices a member may ask for, and a node may have.
const MaxDevices = 64

// named checks what a member asks for by name.
func (c *checks) named(s *JobSpec) {
	r := &s.Resources
	switch {
	case r.Cores < 0 || r.Cores > MaxCPU:
		c.Add("resources.cores", "is %d; it is 1 to %d whole cores", r.Cores, MaxCPU)
	case r.Cores > 0 && r.CPU != 0 && r.CPU != float64(r.Cores):
		c.Add("resources.cores", "is given beside cpu; cores are whole ones instead of cpu")
	}
	if c.Count("resources.devices", len(r.Devices)) {
		for i := range r.Devices {
			c.device(validate.Index("resources.devices", i), &r.Devices[i])
		}
	}
	if !c.Count("resources.ports", len(r.Ports)) || len(r.Ports) == 0 {
		return
	}
	if s.Image != "" && s.Network != string(muster.NetworkHost) {
		c.Add("resources.ports", "are the node's, and the container has a network of its own; say network: host, or give ports")
	}
	for i, p := range r.Ports {
		switch {
		case p < 1 || p > 65535:
			c.Add(validate.Index("resources.ports", i), "is %d; a port is 1 to 65535", p)
		case slices.Index(r.Ports, p) < i:
			c.Add(validate.Index("resources.ports", i), "is %d, which is there already", p)
		}
	}
}

func (c *checks) device(at string, d *DeviceAskSpec) {
	if d.Kind != "" && (len(d.Kind) > 64 || !validate.PlainWord(d.Kind)) {
		c.Add(at+".kind", "is %s; a kind has at most 64 letters, digits and . _ - /", validate.Quote(d.Kind))
	}
	if c.Count(at+".models", len(d.Models)) {
		for i, m := range d.Models {
			if m == "" || len(m) > 64 || !validate.PlainWord(m) {
				c.Add(validate.Index(at+".models", i), "is %s; a model has 1 to 64 letters, digits and . _ - /", validate.Quote(m))
			}
		}
	}
	switch parts := d.Part * muster.WholeDevice; {
	case d.Count < 0 || d.Count > MaxDevices:
		c.Add(at+".count", "is %d; it is 1 to %d whole devices", d.Count, MaxDevices)
	case d.Count > 0 && d.Part != 0:
		c.Add(at+".part", "is given beside count; a member has whole devices or a part of one")
	case d.Part != 0 && !(parts >= 1 && parts <= muster.WholeDevice):
		c.Add(at+".part", "is %s; it is 0.001 to 1 of one device", validate.Number(d.Part))
	}
}

// placement checks what says where members go.
func (c *checks) placement(s *JobSpec) {
	if c.Count("constraints", len(s.Constraints)) {
		for i := range s.Constraints {
			c.condition(validate.Index("constraints", i), &s.Constraints[i])
		}
	}
	if c.Count("affinities", len(s.Affinities)) {
		for i := range s.Affinities {
			a, at := &s.Affinities[i], validate.Index("affinities", i)
			c.condition(at, &ConstraintSpec{Attribute: a.Attribute, Op: a.Op, Value: a.Value, Values: a.Values})
			if a.Weight < -100 || a.Weight > 100 {
				c.Add(at+".weight", "is %d; it is -100 to 100", a.Weight)
			}
		}
	}
	if !c.Count("spread", len(s.Spread)) {
		return
	}
	for i := range s.Spread {
		c.spread(validate.Index("spread", i), &s.Spread[i])
	}
}

func (c *checks) spread(at string, s *SpreadSpec) {
	c.attribute(at, s.Attribute)
	if s.Weight < 0 || s.Weight > 100 {
		c.Add(at+".weight", "is %d; it is 1 to 100", s.Weight)
	}
	if !c.Count(at+".targets", len(s.Targets)) {
		return
	}
	sum := 0
	for i := range s.Targets {
		t := &s.Targets[i]
		switch {
		case t.Value == "":
			c.Add(validate.Index(at+".targets", i)+".value", "is missing; it is a value of %s", s.Attribute)
		case slices.IndexFunc(s.Targets, func(o SpreadTarget) bool { return o.Value == t.Value }) < i:
			c.Add(validate.Index(at+".targets", i)+".value", "is %s, which has a target already", validate.Quote(t.Value))
		}
		if t.Percent < 0 || t.Percent > 100 {
			c.Add(validate.Index(at+".targets", i)+".percent", "is %d; it is 0 to 100", t.Percent)
		}
		sum += max(t.Percent, 0)
		c.Text(validate.Index(at+".targets", i)+".value", t.Value, 1024)
	}
	if sum > 100 {
		c.Add(at+".targets", "add up to %d percent; at most 100", sum)
	}
}

func (c *checks) attribute(at, name string) {
	if name == "" {
		c.Add(at+".attribute", "is missing; name a node attribute, as os, arch or zone")
	} else if len(name) > 128 || !validate.PlainWord(name) {
		c.Add(at+".attribute", "is %s; a name has at most 128 letters, digits and . _ - /", validate.Quote(name))
	}
}

// condition checks one on a node's attributes.
func (c *checks) condition(at string, k *ConstraintSpec) {
	c.attribute(at, k.Attribute)
	op := k.Op
	if op == "" {
		op = muster.OpEqual
	}
	switch op {
	case muster.OpIn, muster.OpNotIn:
		if len(k.Values) == 0 {
			c.Add(at+".values", "are missing; %s needs at least one", op)
		}
		if k.Value != "" {
			c.Add(at+".value", "is not for the operator %s; write it into values", op)
		}
	case muster.OpIsSet, muster.OpIsNotSet:
		if k.Value != "" || len(k.Values) > 0 {
			c.Add(at, "has a value, and %s compares with none", op)
		}
	default:
		if !slices.Contains(muster.Operators(), op) {
			c.Add(at+".op", "is %s; it is one of %s", validate.Quote(op), strings.Join(muster.Operators(), ", "))
			break
		}
		if k.Value == "" {
			c.Add(at+".value", "is missing; %q compares with a value", op)
		} else if err := (&muster.Constraint{Op: op, Value: k.Value}).Check(); err != nil {
			c.Add(at+".value", "is %s: %v", validate.Quote(k.Value), err)
		}
		if len(k.Values) > 0 {
			c.Add(at+".values", "are for the operators in and not-in; %q compares with one value", op)
		}
	}
	c.Text(at+".value", k.Value, 1024)
	if c.Count(at+".values", len(k.Values)) {
		for j, v := range k.Values {
			c.Text(validate.Index(at+".values", j), v, 1024)
		}
	}
}
