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

// DefaultDir is Muster's directory on a host that is reached over SSH, unless the provider names
// another one.
const DefaultDir = "/var/lib/muster"

// The delays between attempts to reach a host: the first, which doubles, and the longest. They are
// short because most hosts that do not answer are booting.
const dialFirst, dialLongest = 250 * time.Millisecond, 10 * time.Second

// Probe is the check that a new instance must pass before it gets an agent.
type Probe struct {
	// Command is for sh, and is run as the login user. Empty means no probe.
	Command string
	// Timeout bounds the command; 0 means half a minute.
	Timeout time.Duration
}

// Config holds what a Reach needs. Provider, Programs and Cluster are required.
type Config struct {
	// Provider returns the configured provider with a name; nil if there is none.
	Provider func(muster.ProviderName) cloud.Provider
	Programs *Programs
	// Probe returns the probe of a node's pool or provider. Nil means that no node has one.
	Probe func(n *state.Node) Probe
	// AgentArgs returns the arguments that a pool's configuration adds for the agents of its nodes.
	// May be nil.
	AgentArgs func(n *state.Node) []string
	// Network returns the network settings of a node's agent, as package outbound encodes them;
	// empty: those of its environment. May be nil.
	Network func(n *state.Node) ([]byte, error)
	// Replacement returns the host key that a node whose host key the server made shows after the
	// first connection: the private half and the public one as a line. ok is false for nodes whose
	// provider knows their host keys. May be nil.
	Replacement func(n *state.Node) (private muster.Secret, line string, ok bool, err error)
	// Rekeyed records in the log that a node shows another host key from now on. Needed with
	// Replacement.
	Rekeyed func(ctx context.Context, id muster.NodeID, line string) error
	// HostKeyFile is where hosts have their ed25519 host key. Empty means OpenSSH's usual place.
	HostKeyFile string
	// Cluster returns the id of this server's cluster.
	Cluster func() string
	Logger  *slog.Logger
	// Silence, FirstWait and LongWait are those of package remote. Zero means its default for
	// Silence, and dialFirst and dialLongest.
	Silence, FirstWait, LongWait time.Duration
}

// Reach holds the connections to the nodes. All methods may be called concurrently.
type Reach struct {
	cfg  Config
	log  *slog.Logger
	pool *remote.Pool

	// mu guards hosts and the fields of each host, and known. It is never held during a call to a
	// host or a provider.
	mu    sync.Mutex
	hosts map[muster.NodeID]*host
	// known has the parsed known_hosts files by path.
	known map[string]*remote.KnownHosts // by path
	// jumps are the names of the bastions in the pool. mu guards it.
	jumps map[string]bool
}

// host is what is known about a node that was entered. Reach.mu guards it.
type host struct {
	// access is how to log in, as the provider said last.
	access cloud.Access
	// program is the path of muster-node on the host; empty if it is not known to be there.
	program string
	// prepared says that the probe has passed and this process has started the agent.
	prepared bool
	// told says that its sshd forbids forwarding, as an operator should know.
	told bool
}

// New makes a Reach. It dials nothing before Run.
func New(cfg Config) (*Reach, error) {
	if cfg.Provider == nil || cfg.Programs == nil || cfg.Cluster == nil {
		return nil, errors.New("reach: provider, programs and cluster are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	pool, err := remote.NewPool(remote.PoolConfig{
		FirstWait: cmp.Or(cfg.FirstWait, dialFirst), LongWait: cmp.Or(cfg.LongWait, dialLongest), Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &Reach{cfg: cfg, log: cfg.Logger, pool: pool, hosts: map[muster.NodeID]*host{}, known: map[string]*remote.KnownHosts{}, jumps: map[string]bool{}}, nil
}

// Run keeps the connections until ctx ends.
func (r *Reach) Run(ctx context.Context) error { return r.pool.Run(ctx) }

// StartsItself reports whether a new instance starts its agent by itself. An instance that is
// reached over SSH does not.
func (r *Reach) StartsItself(n *state.Node) bool {
	_, ssh := cloud.As[cloud.Accessor](r.cfg.Provider(n.Offering.Provider))
	return !ssh
}

// Dial opens a connection to a node's agent. Over SSH, StartAgent must have prepared a node that
// has not served yet: otherwise an agent that was left on the host would bring the node into
// service without its probe.
func (r *Reach) Dial(ctx context.Context, n *state.Node) (net.Conn, error) {
	return r.dial(ctx, n, (*Reach).conn)
}

// DialBulk is Dial for transfers that would delay small requests. Over SSH it uses a second
// connection to the host.
func (r *Reach) DialBulk(ctx context.Context, n *state.Node) (net.Conn, error) {
	return r.dial(ctx, n, func(r *Reach, ctx context.Context, n *state.Node, p cloud.Provider) (*remote.Conn, error) {
		c, err := r.conn(ctx, n, p)
		if err != nil {
			return nil, err
		}
		return c.Bulk(ctx)
	})
}

// dial opens a connection to a node's agent, over SSH by the connection that by returns.
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

// isPrepared reports whether this process has started the agent of a node.
func (r *Reach) isPrepared(id muster.NodeID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hosts[id]
	return h != nil && h.prepared
}

// socket returns the path of the agent's socket on the node's host.
func (r *Reach) socket(n *state.Node) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return filepath.Join(r.hosts[n.ID].dir(), "nodes", string(n.ID), wire.SocketName)
}

// dir returns Muster's directory on the host. h may be nil.
func (h *host) dir() string {
	if h == nil {
		return DefaultDir
	}
	return cmp.Or(h.access.Dir, DefaultDir)
}

// tell records that each connection to a host costs a process there.
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

// Problems returns sentences about the path to a node, for operators.
func (r *Reach) Problems(id muster.NodeID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts[id]; h != nil && h.told {
		return []string{"its sshd forbids forwarding to unix sockets, or the agent's is for root and the login is not: each connection costs a process there (muster-node dial)"}
	}
	return nil
}

// Enter allows connections to a node until Leave. Without it none is made. A request that outlives
// the link to its node must not connect again: the address may belong to another machine by then.
func (r *Reach) Enter(id muster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts[id] == nil {
		r.hosts[id] = &host{}
	}
}

// Leave closes the connections to a node and forgets it. Calls to it that are under way fail with
// FaultUnavailable.
func (r *Reach) Leave(id muster.NodeID) {
	// The entry goes first, so that conn, which checks it after it has added a connection, removes
	// what it adds from now on.
	r.mu.Lock()
	left := r.hosts[id]
	delete(r.hosts, id)
	r.mu.Unlock()
	r.pool.Remove(string(id))
	if left != nil && left.access.Jump != nil {
		r.dropJumps()
	}
}

// LeaveAllBut leaves every node for which keep returns false.
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

// errLeft is the error of a call whose node was left meanwhile.
func errLeft(id muster.NodeID) error {
	return muster.Faultf(muster.FaultUnavailable, "node %s: the server no longer keeps a connection to it", id)
}

// conn returns the connection to a node's host, and makes it if needed. It asks the provider each
// time how to log in: an address may change.
func (r *Reach) conn(ctx context.Context, n *state.Node, p cloud.Provider) (*remote.Conn, error) {
	a, ok := cloud.As[cloud.Accessor](p)
	if !ok {
		return nil, muster.Faultf(muster.FaultInvalid, "node %s: its provider %s is not configured", n.ID, n.Offering.Provider)
	}
	access, err := a.Access(ctx, n.Instance)
	if err != nil {
		return nil, err
	}
	if access.HostKeys, err = r.hostKeys(ctx, p, n, access); err != nil {
		return nil, err
	}
	r.mu.Lock()
	h := r.hosts[n.ID]
	if h == nil {
		r.mu.Unlock()
		return nil, errLeft(n.ID)
	}
	if h.access.Address != access.Address {
		// It may be another machine, on which nothing is known to be.
		h.program, h.told = "", false
	}
	h.access = access
	program := h.program
	r.mu.Unlock()
	config, err := r.config(access, program)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.ID, err)
	}
	if access.Jump != nil {
		if config.Through, err = r.throughShared(access); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.ID, err)
		}
	}
	if err := r.pool.Set(string(n.ID), config); err != nil {
		return nil, err
	}
	if !r.has(n.ID) {
		// Leave may have run before Set, and then it removed nothing.
		r.pool.Remove(string(n.ID))
		r.dropJumps()
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

// hostKeys returns the keys that a host may have, from the access, the log or the provider; nil if a
// known_hosts file has them.
func (r *Reach) hostKeys(ctx context.Context, p cloud.Provider, n *state.Node, a cloud.Access) ([]string, error) {
	if len(a.HostKeys) > 0 || a.KnownHosts != "" {
		return a.HostKeys, nil
	}
	if n.HostKey != "" {
		keys := []string{n.HostKey}
		// Until the node has joined, the replacement may be on the host already although the log does
		// not say so: a server can die between the two, and a restored backup is older than both.
		// After that the log has it, and nothing is derived for each connection.
		if n.Joined != 0 {
			return keys, nil
		}
		if _, line, ok := r.replacement(n); ok && line != n.HostKey {
			keys = append(keys, line)
		}
		return keys, nil
	}
	if k, ok := cloud.As[cloud.HostKeyReader](p); ok {
		return k.HostKeys(ctx, n.Instance)
	}
	// Package remote refuses a host without known keys, with a clear error.
	return nil, nil
}

// config turns an access into the configuration of package remote. It reads the private key each
// time, so a new key takes effect without a restart.
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

// knownHosts returns a known_hosts file. All hosts share one, so it is parsed once.
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
	// Another call may have been faster. All must use the same one.
	if first := r.known[path]; first != nil {
		return first, nil
	}
	r.known[path] = k
	return k, nil
}
