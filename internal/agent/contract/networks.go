package contract

import (
	"context"

	"github.com/musterhq/muster"
)

// Networks gives sandboxes networks of their own. All methods may be called at once.
type Networks interface {
	// Check says whether this node can do it, and what it cannot do: sentences for operators.
	Check(ctx context.Context) (problems []string, err error)
	// Take makes the network of a sandbox, known by its allocation's id.
	Take(ctx context.Context, id muster.AllocID, spec NetworkSpec) (*Network, error)
	// Release deletes it. It may be called twice, and for an id that never had one.
	Release(ctx context.Context, id muster.AllocID) error
	// Restore is called once, before any other: keep names the sandboxes that an earlier agent
	// started and that may still run; all other networks are deleted.
	Restore(ctx context.Context, keep []muster.AllocID) error
	// Run keeps some networks ready until ctx ends.
	Run(ctx context.Context) error
}

// NetworkSpec is what a sandbox may reach, and on which ports it may be reached.
type NetworkSpec struct {
	Mode muster.NetworkMode
	// Egress are networks in CIDR form; empty: everything.
	Egress []string
	Ports  []int
}

// Network is a network of a sandbox's own.
type Network struct {
	// Namespace is the path of its network namespace, valid in this process until the sandbox runs.
	// Empty: the runtime makes a namespace with nothing but a loopback.
	Namespace string
	// Address of the sandbox; empty: it has none but the loopback's.
	Address string
	// DNS are lines of resolv.conf; Hosts of /etc/hosts, beside localhost.
	DNS, Hosts []string
}
