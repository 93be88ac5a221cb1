package network

import (
	"context"
	"net/netip"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent"
)

// Agent is a Pool as an agent wants it.
type Agent struct{ *Pool }

var _ agent.Networks = Agent{}

// Take makes the network of a sandbox.
func (a Agent) Take(ctx context.Context, id muster.AllocID, spec agent.NetworkSpec) (*agent.Network, error) {
	s := Spec{Mode: spec.Mode, Ports: spec.Ports}
	for _, e := range spec.Egress {
		p, err := netip.ParsePrefix(e)
		if err != nil {
			return nil, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "egress " + e + ": not a network as 10.0.0.0/8"}
		}
		s.Egress = append(s.Egress, p)
	}
	n, err := a.Pool.Take(ctx, string(id), s)
	if err != nil {
		return nil, err
	}
	out := &agent.Network{Namespace: n.Path, DNS: n.DNS}
	if n.IP.IsValid() {
		out.Address = n.IP.String()
	}
	return out, nil
}

// Release ends the network of a sandbox.
func (a Agent) Release(ctx context.Context, id muster.AllocID) error {
	return a.Pool.Release(ctx, string(id))
}

// Restore keeps those networks and deletes all others.
func (a Agent) Restore(ctx context.Context, keep []muster.AllocID) error {
	ids := make([]string, len(keep))
	for i, id := range keep {
		ids[i] = string(id)
	}
	return a.Pool.Restore(ctx, ids)
}
