package operate

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// State is what is read.
type State interface {
	Latest() *state.Snapshot
}

// Loops is what the leader's loops know beside the state.
type Loops interface {
	explain.Loops
	// Usage is what a node's agent last reported, nil if nothing is known, and what the agent says
	// that the node cannot do.
	Usage(id muster.NodeID) (*api.NodeUsage, []string)
	// Unsold returns since when a provider's offerings cannot be listed and the error of the last
	// list; 0 and nil if they can.
	Unsold(provider muster.ProviderName) (since muster.Time, why error)
	// Unblock has the provider asked again for what it refused to a pool, and returns how many
	// blocks that ended.
	Unblock(pool muster.PoolName) int
}

// Idle is the Loops of a server that does not lead: they know nothing.
type Idle struct{}

func (Idle) Usage(muster.NodeID) (*api.NodeUsage, []string)  { return nil, nil }
func (Idle) Fleet() (*size.Decisions, []size.Block)          { return nil, nil }
func (Idle) Paused() string                                  { return "" }
func (Idle) Unstored(muster.JobUID) (int, error)             { return 0, nil }
func (Idle) Troubles() func(*state.Node) string              { return func(*state.Node) string { return "" } }
func (Idle) Unsold(muster.ProviderName) (muster.Time, error) { return 0, nil }
func (Idle) Blind(muster.ProviderName) (muster.Time, error)  { return 0, nil }
func (Idle) Rates(muster.ProviderName) []api.CallRate        { return nil }
func (Idle) Unblock(muster.PoolName) int                     { return 0 }

// Link reaches the images in nodes' caches. All methods may be called at once. Faults: not-found,
// unavailable.
type Link interface {
	Images(ctx context.Context, id muster.NodeID) (wire.ImageList, error)
	PullImage(ctx context.Context, id muster.NodeID, ref string, ns muster.Namespace) iter.Seq2[wire.PullProgress, error]
	PruneImages(ctx context.Context, id muster.NodeID, all bool) (wire.Pruned, error)
}

// Config of a Service. All but those marked optional are needed.
type Config struct {
	State    State
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	// Loops are those of the present leadership. Optional: without, nothing is known beside the
	// state.
	Loops func() Loops
	// Link is the link of the present leadership. Its error is told to whoever asks while there is
	// none.
	Link func() (Link, error)
	// Running is the configuration that the server runs with now. Optional.
	Running func() *api.ServerConfig
	// Check tries a provider: launches an instance, waits for its agent, runs one command, and
	// destroys the instance. say is called for each step. Optional.
	Check func(ctx context.Context, name muster.ProviderName, want api.ProviderCheck, say func(step, text string)) error
}

// Service is what operators do, by what they do it to. Its methods may be called from any
// goroutine, and keep nothing between calls. Errors are problems and faults; fields of problems are
// named as in the body of a request.
type Service struct {
	Nodes      *Nodes
	Images     *Images
	Pools      *Pools
	Namespaces *Namespaces
	Providers  *Providers
}

// New makes a Service. It starts nothing.
func New(c Config) (*Service, error) {
	if c.State == nil || c.Proposer == nil || c.Link == nil {
		return nil, errors.New("operations: state, proposer and link are needed")
	}
	if c.Loops == nil {
		c.Loops = func() Loops { return Idle{} }
	}
	d := &desk{c}
	return &Service{Nodes: &Nodes{d}, Images: &Images{d}, Pools: &Pools{d}, Namespaces: &Namespaces{d}, Providers: &Providers{d}}, nil
}

// desk is what all parts of a Service share: the configuration, and what it takes to find a node
// and to propose.
type desk struct{ cfg Config }

// lease is how long nodes of a pool wait for a server before they end themselves; 0: for ever.
func (d *desk) lease(name muster.PoolName) api.Duration {
	if d.cfg.Running == nil {
		return 0
	}
	return d.cfg.Running().Pool(string(name)).Lease
}

// node is the row of a node.
func (d *desk) node(id string) (*state.Node, error) {
	n := d.cfg.State.Latest().Node(muster.NodeID(id))
	if n == nil {
		return nil, problem.NotFound("node %s: not found", problem.Clip(id))
	}
	return n, nil
}

// propose commits a fact of which only the error matters.
func (d *desk) propose(ctx context.Context, f state.Fact) error {
	_, _, err := d.cfg.Proposer.Propose(ctx, f)
	return err
}

const (
	// maxSaid bounds what an operator says of what he does, longestHold for how long that may be.
	maxSaid, maxWho = 1000, 200
	longestHold     = 10 * 365 * 24 * time.Hour
)

// checkSaid bounds what operators say, as it goes into the log as it is and stays there.
func checkSaid(reason, who string) error {
	switch {
	case len(reason) > maxSaid:
		return problem.Invalid("body.reason", "has %d bytes; at most %d", len(reason), maxSaid)
	case len(who) > maxWho:
		return problem.Invalid("body.who", "has %d bytes; at most %d", len(who), maxWho)
	}
	return nil
}

// anOperator stands for who does not say who he is.
const anOperator = "operator"
