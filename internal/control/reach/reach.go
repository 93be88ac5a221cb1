package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// DefaultDir is Muster's directory on a host that is reached over SSH.
const DefaultDir = "/var/lib/muster"

// Waits between attempts to reach a host: short, because most of those that do not answer are just booting.
const dialFirst, dialLongest = 250 * time.Millisecond, 10 * time.Second

// Probe is what a new instance must pass before it is given an agent.
type Probe struct {
	// Command is for sh, run as the user who logs in; empty: no probe.
	Command string
	Timeout time.Duration
}

// Config is what a Reach needs.
type Config struct {
	// Provider is the configured one of a name; nil: none.
	Provider func(muster.ProviderName) cloud.Provider
	Programs *Programs
	// Probe of a node's pool or provider. May be nil: none.
	Probe func(n *state.Node) Probe
	// AgentArgs are what a pool's configuration adds to the arguments of its nodes' agents. May be nil.
	AgentArgs func(n *state.Node) []string
	// Cluster is this server's.
	Cluster func() string
	Logger  *slog.Logger
	// Silence, FirstWait and LongWait are remote's; 0: its defaults, and those above.
	Silence, FirstWait, LongWait time.Duration
}

// Reach is the ways to the nodes. All methods may be called at once.
type Reach struct {
	cfg  Config
	log  *slog.Logger
	pool *remote.Pool

	mu    sync.Mutex
	hosts map[muster.NodeID]*host
	known map[string]*remote.KnownHosts // by path
}

// host is what is known of a node that is reached over SSH. Guarded by Reach's mu.
type host struct {
	access cloud.Access
	// program is the path of muster-node there; empty: not known to be there.
	program string
	// prepared: its probe has passed and its agent was started by this process.
	prepared bool
	// told: that its sshd forbids forwarding.
	told bool
}

// New makes a Reach; nothing is dialled before Run.
func New(cfg Config) (*Reach, error) {
	if cfg.Provider == nil || cfg.Programs == nil || cfg.Cluster == nil {
		return nil, errors.New("reach: provider, programs and cluster are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	pool, err := remote.NewPool(remote.PoolConfig{
		FirstWait: cmp.Or(cfg.FirstWait, dialFirst), LongWait: cmp.Or(cfg.LongWait, dialLongest), Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Reach{cfg: cfg, log: cfg.Logger, pool: pool, hosts: map[muster.NodeID]*host{}, known: map[string]*remote.KnownHosts{}}, nil
}

// Run keeps the connections until ctx ends.
func (r *Reach) Run(ctx context.Context) error { return r.pool.Run(ctx) }

// StartsItself reports whether a new instance starts its agent without being reached.
func (r *Reach) StartsItself(n *state.Node) bool {
	_, ssh := cloud.As[cloud.Accessor](r.cfg.Provider(n.Offering.Provider))
	return !ssh
}

// Dial opens a connection to a node's agent. Over SSH a node that has not served yet has to be prepared
// first, by StartAgent: an agent that was left behind must not get it past its probe.
func (r *Reach) Dial(ctx context.Context, n *state.Node) (net.Conn, error) {
	return r.dial(ctx, n, (*Reach).conn)
}

// DialBulk is Dial for what would be in the way of small requests: over SSH a connection of its own.
func (r *Reach) DialBulk(ctx context.Context, n *state.Node) (net.Conn, error) {
	return r.dial(ctx, n, func(r *Reach, ctx context.Context, n *state.Node, p cloud.Provider) (*remote.Conn, error) {
		c, err := r.conn(ctx, n, p)
		if err != nil {
			return nil, err
		}
		return c.Bulk(ctx)
	})
}

func (r *Reach) dial(ctx context.Context, n *state.Node, by func(*Reach, context.Context, *state.Node, cloud.Provider) (*remote.Conn, error)) (net.Conn, error) {
	p := r.cfg.Provider(n.Offering.Provider)
	if d, ok := cloud.As[cloud.Dialer](p); ok {
		return d.DialAgent(ctx, n.Instance)
	}
	if n.Joined == 0 && !r.isPrepared(n.ID) {
		return nil, muster.Faultf(muster.FaultUnavailable, "node %s: its agent is not started yet", n.ID)
	}
	c, err := by(r, ctx, n, p)
	if err != nil {
		return nil, err
	}
	conn, err := c.DialUnix(ctx, r.socket(n))
	if err != nil {
		return nil, err
	}
	r.tell(n.ID, c)
	return conn, nil
}

func (r *Reach) isPrepared(id muster.NodeID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts[id]
	return h != nil && h.prepared
}

// socket is the path of the agent's socket on the node.
func (r *Reach) socket(n *state.Node) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return filepath.Join(r.hosts[n.ID].dir(), "nodes", string(n.ID), wire.SocketName)
}

func (h *host) dir() string {
	if h == nil {
		return DefaultDir
	}
	return cmp.Or(h.access.Dir, DefaultDir)
}

// tell notes that a host is reached in the costly way.
func (r *Reach) tell(id muster.NodeID, c *remote.Conn) {
	if c.Forwarding() != remote.ForwardingRefused {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts[id]; h != nil {
		h.told = true
	}
}

// Problems are sentences about the way to a node, for operators.
func (r *Reach) Problems(id muster.NodeID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts[id]; h != nil && h.told {
		return []string{"its sshd forbids forwarding to unix sockets, or the agent's is for root and the login is not: each connection costs a process there (muster-node dial)"}
	}
	return nil
}

// Enter allows connections to a node until Leave. Without it no connection is made: a request that outlives its node's
// link must not bring the host back, whose address may be a stranger's by then.
func (r *Reach) Enter(id muster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts[id] == nil {
		r.hosts[id] = &host{}
	}
}

// Leave closes what is open to a node and forgets it. Calls under way for it fail with FaultUnavailable.
func (r *Reach) Leave(id muster.NodeID) {
	r.mu.Lock()
	delete(r.hosts, id)
	r.mu.Unlock()
	r.pool.Remove(string(id))
}

// LeaveAllBut leaves every node but those that keep names.
func (r *Reach) LeaveAllBut(keep func(id muster.NodeID) bool) {
	r.mu.Lock()
	var left []muster.NodeID
	for id := range r.hosts {
		if !keep(id) {
			left = append(left, id)
		}
	}
	r.mu.Unlock()
	for _, id := range left {
		r.Leave(id)
	}
}

// errLeft is what a call gets whose node was left meanwhile.
func errLeft(id muster.NodeID) error {
	return muster.Faultf(muster.FaultUnavailable, "node %s: the server no longer keeps a connection to it", id)
}

// conn is the connection to a node's host.
func (r *Reach) conn(ctx context.Context, n *state.Node, p cloud.Provider) (*remote.Conn, error) {
	a, ok := cloud.As[cloud.Accessor](p)
	if !ok {
		return nil, muster.Faultf(muster.FaultInvalid, "node %s: its provider %s is not configured", n.ID, n.Offering.Provider)
	}
	access, err := a.Access(ctx, n.Instance)
	if err != nil {
		return nil, err
	}
	if access.HostKeys, err = hostKeys(ctx, p, n.Instance, access); err != nil {
		return nil, err
	}
	r.mu.Lock()
	h := r.hosts[n.ID]
	if h == nil {
		r.mu.Unlock()
		return nil, errLeft(n.ID)
	}
	if h.access.Address != access.Address {
		h.program, h.told = "", false // another machine, for all that is known
	}
	h.access = access
	program := h.program
	r.mu.Unlock()
	config, err := r.config(access, program)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.ID, err)
	}
	if err := r.pool.Set(string(n.ID), config); err != nil {
		return nil, err
	}
	if !r.has(n.ID) {
		// Leave may have come before Set, and then removes nothing.
		r.pool.Remove(string(n.ID))
		return nil, errLeft(n.ID)
	}
	c, err := r.pool.Get(ctx, string(n.ID))
	if err != nil && !r.has(n.ID) {
		return nil, errLeft(n.ID)
	}
	return c, err
}

// has reports whether a node was entered and not left.
func (r *Reach) has(id muster.NodeID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hosts[id] != nil
}

// hostKeys are those that the host may have, if no file says so.
func hostKeys(ctx context.Context, p cloud.Provider, id muster.InstanceID, a cloud.Access) ([]string, error) {
	if len(a.HostKeys) > 0 || a.KnownHosts != "" {
		return a.HostKeys, nil
	}
	if k, ok := cloud.As[cloud.HostKeyReader](p); ok {
		return k.HostKeys(ctx, id)
	}
	return nil, nil // refused by remote, in words
}

// config is an access as remote takes it.
func (r *Reach) config(a cloud.Access, program string) (remote.Config, error) {
	c := remote.Config{Address: a.Address, User: a.User, Program: program, Silence: r.cfg.Silence, Logger: r.log}
	key, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return c, &muster.Fault{Kind: muster.FaultInvalid, Message: "private key", Err: err}
	}
	signer, err := remote.ParseKey(muster.NewSecret(string(key)), muster.Secret{})
	if err != nil {
		return c, fmt.Errorf("%s: %w", a.KeyFile, err)
	}
	c.Signers = []remote.Signer{signer}
	for _, line := range a.HostKeys {
		k, err := remote.ParseHostKey(line)
		if err != nil {
			return c, err
		}
		c.HostKeys = append(c.HostKeys, k)
	}
	if len(c.HostKeys) == 0 && a.KnownHosts != "" {
		c.KnownHosts, err = r.knownHosts(a.KnownHosts)
	}
	return c, err
}

// knownHosts is one for all hosts of a file: it is parsed once.
func (r *Reach) knownHosts(path string) (*remote.KnownHosts, error) {
	r.mu.Lock()
	k := r.known[path]
	r.mu.Unlock()
	if k != nil {
		return k, nil
	}
	k, err := remote.OpenKnownHosts(path)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := r.known[path]; first != nil {
		return first, nil
	}
	r.known[path] = k
	return k, nil
}
