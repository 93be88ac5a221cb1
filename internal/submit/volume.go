package submit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// noVolumes says which volumes of a spec no node can have: the job would wait forever. A pool of
// the configuration has the volumes that it names. A node that runs keeps what its agent was
// started with, so that it may have a volume that the configuration names no longer.
func (s *Service) noVolumes(spec *api.JobSpec) (out []api.ProblemField) {
	if s.cfg.Running == nil || !slices.ContainsFunc(spec.Volumes, func(v api.VolumeSpec) bool { return v.Name != "" }) {
		return nil
	}
	pools := slices.DeleteFunc(slices.Clone(s.cfg.Running().Pools), func(p api.PoolSpec) bool {
		return spec.Pool != "" && p.Name != spec.Pool
	})
	if len(pools) == 0 || s.nodeHas(spec) {
		return nil
	}
	// What is wrong with one volume is said before what is wrong with all of them together.
	for i, v := range spec.Volumes {
		if why := lacking(pools, v, spec.Pool); v.Name != "" && why != "" {
			out = append(out, api.ProblemField{Location: fmt.Sprintf("volumes[%d].name", i), Message: why})
		}
	}
	if len(out) == 0 && !slices.ContainsFunc(pools, func(p api.PoolSpec) bool {
		return !slices.ContainsFunc(spec.Volumes, func(v api.VolumeSpec) bool { return v.Name != "" && lacking([]api.PoolSpec{p}, v, "") != "" })
	}) {
		return []api.ProblemField{{Location: "volumes", Message: "each is in a pool, but no pool has all of them; see docs/volumes.md"}}
	}
	return out
}

// lacking says why none of the pools has a volume as it is asked for; "" if one has. only is the
// pool that the job names, if it names one.
func lacking(pools []api.PoolSpec, v api.VolumeSpec, only string) string {
	known, readOnly := map[string]bool{}, ""
	for _, p := range pools {
		has, ok := p.Volumes[v.Name]
		if ok && (has.Writable || !v.Writable) {
			return ""
		}
		if ok {
			readOnly = p.Name
		}
		for name := range p.Volumes {
			known[name] = true
		}
	}
	if readOnly != "" {
		return fmt.Sprintf("volume %s is read-only in pool %s; ask for it without writable, or set writable in the pool's configuration; see docs/volumes.md", v.Name, readOnly)
	}
	who := "no pool has"
	if only != "" {
		who = "pool " + only + " does not have"
	}
	others := "there are none"
	if len(known) > 0 {
		others = "known: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	}
	return fmt.Sprintf("%s a volume named %s (%s); see docs/volumes.md", who, v.Name, others)
}

// nodeHas reports whether a node that runs now has all volumes that a spec asks for.
func (s *Service) nodeHas(spec *api.JobSpec) (has bool) {
	var read, write []string
	for _, v := range spec.Volumes {
		if v.Name != "" {
			read = append(read, v.Name)
		}
		if v.Name != "" && v.Writable {
			write = append(write, v.Name)
		}
	}
	needs := muster.VolumeNeeds(read, write)
	s.cfg.State.Latest().LiveNodes(func(n *state.Node) bool {
		has = (spec.Pool == "" || spec.Pool == string(n.Pool)) && !slices.ContainsFunc(needs, func(c muster.Constraint) bool {
			value, set := n.Attributes[c.Attribute]
			return !c.Met(value, set)
		})
		return !has
	})
	return has
}
