package agent

import (
	"context"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// isolated reports whether the sandbox has a network that is made for it.
func isolated(spec *wire.AllocSpec) bool {
	return spec != nil && spec.Image != "" && muster.NetworkMode(spec.Network) != muster.NetworkHost
}

// takeNetwork gives a container a network of its own.
func (al *allocation) takeNetwork(ctx context.Context, c *contract.Container) *muster.Failure {
	n, s := al.node, al.spec
	if muster.NetworkMode(s.Network) == muster.NetworkNone {
		c.Network = &contract.Network{}
		return nil
	}
	if n.noNetworks != nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "network bridge: not to be had on node %s: %v", n.cfg.Node, n.noNetworks)
	}
	if n.cfg.Networks == nil {
		return contract.Failure(muster.FailureNode, muster.ReasonNoRuntime, "network bridge: not to be had on node %s; see its problems", n.cfg.Node)
	}
	network, err := n.cfg.Networks.Take(ctx, al.id, contract.NetworkSpec{Mode: muster.NetworkBridge, Egress: s.Egress, Ports: s.Ports})
	if err != nil {
		return contract.AsFailure(err, muster.FailureNode, muster.ReasonNodeFault, "network")
	}
	if network.Address != "" {
		network.Hosts = append(network.Hosts, network.Address+"\t"+c.Hostname)
	}
	c.Network = network
	return nil
}

const (
	// releaseTimeout bounds one try to delete a network, releaseRetry is the wait between two.
	releaseTimeout = 30 * time.Second
	releaseRetry   = 10 * time.Second
)

// releaseNetwork deletes the network of a sandbox that has ended. What cannot be deleted now is
// tried again, by the next agent if this one ends first.
func (n *node) releaseNetwork(ctx context.Context, id muster.AllocID) {
	if n.cfg.Networks == nil {
		return
	}
	try, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	err := n.cfg.Networks.Release(try, id)
	cancel()
	if err == nil {
		return
	}
	n.log.Warn("network of a sandbox cannot be deleted yet", "alloc", id, "error", err)
	n.crew.spawn(func() {
		if wait.For(ctx, releaseRetry) {
			n.releaseNetwork(ctx, id)
		}
	})
}
