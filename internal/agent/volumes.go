package agent

import (
	"slices"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// Volume is a directory of the node that containers may have mounted.
type Volume struct {
	Path string
	// Writable: they may ask to write there.
	Writable bool
}

// volumeAttributes are the names of what containers can have mounted here. A server places jobs with
// volumes by them.
func (n *node) volumeAttributes() map[string]string {
	writable := make(map[string]bool, len(n.cfg.Volumes))
	for name, v := range n.cfg.Volumes {
		writable[name] = v.Writable
	}
	read, write := muster.VolumeAttributes(writable)
	out := map[string]string{muster.AttributeVolumes: read}
	if write != "" {
		out[muster.AttributeVolumesWritable] = write
	}
	return out
}

// mountVolumes gives the container the volumes that its job asks for. The server has placed it by
// what the agent said; that it is otherwise now is the node's fault.
func (al *allocation) mountVolumes(c *contract.SandboxConfig) *muster.Failure {
	for _, v := range al.spec.Volumes {
		m := contract.Mount{Path: v.Path, Tmpfs: v.Tmpfs.Bytes(), Writable: v.Writable}
		if v.Name != "" {
			has, ok := al.node.cfg.Volumes[v.Name]
			switch {
			case !ok:
				return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "volume %s: no flag of the agent names it", v.Name)
			case v.Writable && !has.Writable:
				return contract.Failure(muster.FailureNode, muster.ReasonNodeFault, "volume %s: it may not be written here", v.Name)
			}
			m.Source, m.Name = has.Path, v.Name
		}
		c.Container.Mounts = append(c.Container.Mounts, m)
	}
	// One below another must not be covered by it.
	slices.SortFunc(c.Container.Mounts, func(a, b contract.Mount) int { return strings.Compare(a.Path, b.Path) })
	return nil
}
