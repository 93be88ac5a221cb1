package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// created is the machine behind a new instance, with the fate that the script has for it.
func (c *Cluster) created(in cloud.Instance) {
	fate := c.Cloud.Fate(in.ID)
	m := c.machineFor(in, in.Tags.Node)
	m.mute.Store(fate.NoBoot || fate.Boots > 0)
	c.mu.Lock()
	slow, oneIn := c.cfg.SlowProbe, c.cfg.SlowProbes
	c.mu.Unlock()
	if slow > 0 && c.delay(time.Duration(oneIn), "slow probe", in.ID) == 0 {
		m.ProbeTakes(slow)
	}
	c.mu.Lock()
	c.machines[in.ID] = m
	c.mu.Unlock()
	c.note("instance %s of %s is made%s", in.ID, in.Tags.Node, fateWords(fate))
	if fate.Stuck {
		m.Stick()
	}
	speak := func(on bool) {
		m := c.behind(in.ID) // which may be another node's by then
		if m == nil {
			return
		}
		m.mute.Store(!on)
		if on {
			_ = m.Start() // if it is gone by now, it is gone
		} else {
			m.Kill()
		}
	}
	switch {
	case fate.NoBoot:
	case fate.Boots > 0:
		time.AfterFunc(fate.Boots, func() { speak(true) })
	default:
		_ = m.Start() // it has just been made: there is nothing to refuse
	}
	if fate.AgentDies >= 0 {
		time.AfterFunc(fate.AgentDies, func() { speak(false) })
	}
	if fate.Broken >= 0 {
		time.AfterFunc(fate.Broken, func() {
			c.note("%s says that it is broken", in.Tags.Node)
			_ = c.propose(&state.NodeHealthChanged{ID: in.Tags.Node, Health: muster.NodeBroken, Reason: "the disk is broken"})
		})
	}
}

// machineFor is a machine that is a node's, without an agent yet.
func (c *Cluster) machineFor(in cloud.Instance, id muster.NodeID) *machine {
	return &machine{instance: in, id: id, Node: linktest.NewNode(linktest.Config{ID: id, Capacity: c.capacity(in.Offering), Attributes: map[string]string{"os": "linux"}, Delay: c.sandboxDelay})}
}

// rehome makes a machine that of another node, as muster-node start does with a host: what the node before left there ends.
func (c *Cluster) rehome(was *machine, id muster.NodeID) *machine {
	m := c.machineFor(was.instance, id)
	c.mu.Lock()
	if c.machines[was.instance.ID] != was {
		c.mu.Unlock()
		return was
	}
	c.machines[was.instance.ID] = m
	c.past = append(c.past, was.Node)
	c.mu.Unlock()
	c.note("instance %s of %s becomes that of %s", was.instance.ID, was.id, id)
	was.Destroy()
	return m
}

func fateWords(f fake.Fate) string {
	words := ""
	add := func(is bool, format string, args ...any) {
		if is {
			words += ", " + fmt.Sprintf(format, args...)
		}
	}
	add(f.NoBoot, "its agent never starts")
	add(f.Boots > 0, "its agent starts in %s", f.Boots)
	add(f.Stuck, "nothing on it ends")
	add(f.AgentDies >= 0, "its agent dies in %s", f.AgentDies)
	add(f.Broken >= 0, "it breaks in %s", f.Broken)
	return words
}

func (c *Cluster) capacity(name muster.OfferingName) muster.Resources {
	i := slices.IndexFunc(c.cfg.Offerings, func(o muster.Offering) bool { return o.Name == name })
	return c.cfg.Offerings[i].Capacity
}

func (c *Cluster) destroyed(in cloud.Instance) {
	c.mu.Lock()
	m := c.machines[in.ID]
	delete(c.machines, in.ID)
	if m != nil {
		c.past = append(c.past, m.Node)
	}
	c.mu.Unlock()
	if m != nil {
		c.note("instance %s of %s is no more", in.ID, in.Tags.Node)
		m.Destroy()
		if err := startedOnce(m.Node); err != nil {
			c.fail(err)
		}
	}
}

// switched is the machine of an instance that the cloud has switched off, or on. What is on its disk stays.
func (c *Cluster) switched(in cloud.Instance, off bool) {
	m := c.behind(in.ID)
	if m == nil {
		return
	}
	c.note("instance %s of %s is switched %s", in.ID, in.Tags.Node, map[bool]string{true: "off", false: "on"}[off])
	m.mute.Store(off)
	if off {
		m.Kill()
		m.Reboot()
	} else {
		_ = m.Start() // if it is gone by now, it is gone
	}
}

// running are the machines that there are.
func (c *Cluster) running() []*linktest.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*linktest.Node, 0, len(c.machines))
	for _, m := range c.machines {
		out = append(out, m.Node)
	}
	return out
}

// behind is the machine of an instance; nil if there is none.
func (c *Cluster) behind(id muster.InstanceID) *machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines[id]
}

// Machine is what stands behind a node; nil if nothing does.
func (c *Cluster) Machine(id muster.NodeID) *linktest.Node {
	if m := c.machine(id); m != nil {
		return m.Node
	}
	return nil
}

func (c *Cluster) machine(id muster.NodeID) *machine {
	if row := c.Log.Latest().Node(id); row != nil {
		return c.behind(row.Instance)
	}
	return nil
}

// Machines are the ids of the nodes whose machine is there, sorted.
func (c *Cluster) Machines() []muster.NodeID {
	var out []muster.NodeID
	c.Log.Latest().LiveNodes(func(n *state.Node) bool {
		if c.behind(n.Instance) != nil {
			out = append(out, n.ID)
		}
		return true
	})
	slices.Sort(out)
	return out
}

// all are the machines, those of the past included, in a fixed order.
func (c *Cluster) all() []*linktest.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.past)
	for _, id := range slices.Sorted(maps.Keys(c.machines)) {
		out = append(out, c.machines[id].Node)
	}
	return out
}
