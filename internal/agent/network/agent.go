package network

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// Name is that of the networks of an agent, derived from its directory.
func Name(agentDir string) string {
	sum := sha256.Sum256([]byte(agentDir))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:5])) // 0-9 and a-v
}

// Agent is a Pool as an agent wants it. It changes nothing on the host before
// the first network is wanted: most agents of a host never run a container.
type Agent struct {
	pool *Pool
	// begun is closed when the pool has been restored.
	begun chan struct{}
	// turn holds a token for who restores it.
	turn chan struct{}
}

var _ contract.Networks = (*Agent)(nil)

// NewAgent makes it; nothing is started.
func NewAgent(c Config) (*Agent, error) {
	pool, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Agent{pool: pool, begun: make(chan struct{}), turn: make(chan struct{}, 1)}, nil
}

// Restore keeps those networks and deletes all others.
func (a *Agent) Restore(ctx context.Context, keep []muster.AllocID) error {
	if _, err := os.Stat(a.pool.config.Dir); errors.Is(err, fs.ErrNotExist) && len(keep) == 0 {
		return nil
	}
	ids := make([]string, len(keep))
	for i, id := range keep {
		ids[i] = string(id)
	}
	return a.begin(ctx, ids)
}

// begin restores the pool, once.
func (a *Agent) begin(ctx context.Context, keep []string) error {
	select {
	case <-a.begun:
		return nil
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-a.begun: // by who had the turn before
		return nil
	default:
	}
	if err := a.pool.Restore(ctx, keep); err != nil {
		return err
	}
	close(a.begun)
	return nil
}

// Run keeps some ready, from the first on that was wanted.
func (a *Agent) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.begun:
	}
	return a.pool.Run(ctx)
}

// Take makes the network of a sandbox.
func (a *Agent) Take(ctx context.Context, id muster.AllocID, spec contract.NetworkSpec) (*contract.Network, error) {
	s := Spec{Mode: spec.Mode, Ports: spec.Ports}
	for _, e := range spec.Egress {
		p, err := netip.ParsePrefix(e)
		if err != nil {
			return nil, &muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "egress " + e + ": not a network as 10.0.0.0/8"}
		}
		s.Egress = append(s.Egress, p)
	}
	if err := a.begin(ctx, nil); err != nil {
		return nil, err
	}
	n, err := a.pool.Take(ctx, string(id), s)
	if err != nil {
		return nil, err
	}
	out := &contract.Network{Namespace: n.Path, DNS: n.DNS}
	if n.IP.IsValid() {
		out.Address = n.IP.String()
	}
	return out, nil
}

// Release ends the network of a sandbox.
func (a *Agent) Release(ctx context.Context, id muster.AllocID) error {
	select {
	case <-a.begun:
		return a.pool.Release(ctx, string(id))
	default:
		return nil // it never had one
	}
}

// Check says whether this node can do it, and what not.
func (a *Agent) Check(ctx context.Context) (problems []string, err error) {
	if err := a.pool.Check(ctx); err != nil {
		return nil, err
	}
	return a.pool.Problems(), nil
}
