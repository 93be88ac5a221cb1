package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Source is the state as it is applied.
type Source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Blobs keeps what is too large for the log. All methods may be called at
// once; a blob is there whole or not at all.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	List(ctx context.Context, prefix string) ([]blob.Info, error)
	Delete(ctx context.Context, key string) error
}

// Config is what a Link needs.
type Config struct {
	State    Source
	Proposer state.Proposer
	// Clock is the log's; nil: the system's.
	Clock clock.Clock
	Blobs Blobs
	// Dial opens a connection to the agent of a node. It fails soon if the agent does not listen.
	Dial func(ctx context.Context, n *state.Node) (net.Conn, error)
	// StartAgent makes sure that an agent of this build runs on the node. It is
	// called when the agent cannot be reached, and once for each node that an earlier leader has
	// launched. FaultNotFound: no instance is there. May be nil.
	StartAgent func(ctx context.Context, n *state.Node) error
	// DialBulk is Dial for what would be in the way of small requests: declared outputs, inputs
	// and much output. May be nil: Dial.
	DialBulk func(ctx context.Context, n *state.Node) (net.Conn, error)
	// StartsItself reports whether a new instance starts its agent by itself, and is left a while to do so. May be nil: all do.
	StartsItself func(n *state.Node) bool
	// Enter is called before anything is asked of a node, Leave after the last of it. Requests of users may end later, and must
	// not open anything to the node then. May be nil.
	Enter, Leave func(id muster.NodeID)
	// LeaveAllBut is called when Run begins, with the nodes that it links: what is open to others, left from a loop before this
	// one, is closed. At the end of Run nothing is left: the next loop goes on over the same connections. May be nil.
	LeaveAllBut func(linked func(id muster.NodeID) bool)
	// Lease is how long a node may hear nothing before it ends itself; 0: for ever. Held nodes have none. May be nil: none has.
	Lease func(n *state.Node) time.Duration
	// Problems are sentences about the way to a node, for operators. May be nil.
	Problems func(id muster.NodeID) []string
	// OCIRuntime is the program by which nodes of a pool make containers, as the configuration has it; empty: crun, else runc. May be nil.
	OCIRuntime func(pool muster.PoolName) string
	// Grants makes the rights to pull images that agents ask for. May be nil: then they get none.
	Grants Granter
	// DiskTight says why output is not stored now, as the server's disk is nearly full; nil while it is. May be nil.
	DiskTight func() error
	// OutputMost is how many bytes the declared outputs of an allocation may have together; 0: no limit. May be nil: none.
	OutputMost func() int64
	Logger     *slog.Logger
	// Seed of the jitter between dials.
	Seed uint64
	// StoreFor is how long the declared outputs of an allocation may be in storing
	// before it fails; 0: ten minutes.
	StoreFor time.Duration
}

// Link is the loop. See the package comment.
type Link struct {
	cfg   Config
	log   *slog.Logger
	stats stats
	// ships holds a token for each stream being shipped, on all nodes together.
	ships chan struct{}
	// grants holds a token for each right to pull an image that is being made.
	grants chan struct{}

	// term is the one under which Run began; set before anything else runs.
	term uint64
	// since is the log's time when Run began. What was placed later, only this link can have shipped.
	since muster.Time

	mu    sync.Mutex
	nodes map[muster.NodeID]*nodeLink
	// dropped are links of nodes that are terminating and have no contact any more. What they have shipped of
	// allocations that still ran is committed once the node is gone.
	dropped map[muster.NodeID]*nodeLink

	// unstored says of allocations whose command has succeeded why their declared outputs are not stored yet.
	unstoredMu sync.Mutex
	unstored   map[muster.AllocID]unstored
}

// shipsAtOnce bounds the streams and declared outputs in storing at one time, and so the
// memory and the requests to the blob store.
const shipsAtOnce = 16

// New makes a Link; it does nothing before Run.
func New(cfg Config) (*Link, error) {
	switch {
	case cfg.State == nil, cfg.Proposer == nil, cfg.Blobs == nil, cfg.Dial == nil:
		return nil, errors.New("link: state, proposer, blobs and dial are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.StoreFor == 0 {
		cfg.StoreFor = 10 * time.Minute
	}
	if cfg.OutputMost == nil {
		cfg.OutputMost = func() int64 { return 0 }
	}
	if cfg.DiskTight == nil {
		cfg.DiskTight = func() error { return nil }
	}
	if cfg.DialBulk == nil {
		cfg.DialBulk = cfg.Dial
	}
	if cfg.StartsItself == nil {
		cfg.StartsItself = func(*state.Node) bool { return true }
	}
	if cfg.Enter == nil {
		cfg.Enter = func(muster.NodeID) {}
	}
	if cfg.Leave == nil {
		cfg.Leave = func(muster.NodeID) {}
	}
	if cfg.LeaveAllBut == nil {
		cfg.LeaveAllBut = func(func(muster.NodeID) bool) {}
	}
	if cfg.Lease == nil {
		cfg.Lease = func(*state.Node) time.Duration { return 0 }
	}
	if cfg.Problems == nil {
		cfg.Problems = func(muster.NodeID) []string { return nil }
	}
	return &Link{
		cfg: cfg, log: cfg.Logger, ships: make(chan struct{}, shipsAtOnce), grants: make(chan struct{}, grantsAtOnce),
		nodes: map[muster.NodeID]*nodeLink{}, dropped: map[muster.NodeID]*nodeLink{},
		unstored: map[muster.AllocID]unstored{},
	}, nil
}

// Run keeps every link until ctx ends. It must begin only after the leader's
// TermBegan was applied: that term is on every set that it sends.
func (l *Link) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.forgetNodes()

	snap := l.cfg.State.Latest()
	l.term, l.since = snap.Meta().Term, snap.Meta().Time
	pos := state.AfterIndex(snap.Index())
	now := l.cfg.Clock.Now()
	l.cfg.LeaveAllBut(func(id muster.NodeID) bool {
		n := snap.Node(id)
		return n != nil && linked(snap, n, now)
	})
	l.all(ctx, &wg, snap)
	for {
		// In the middle of an entry there is more already, and nothing may come after it for a long time.
		if pos == state.AfterIndex(pos.Index) && l.cfg.State.Feed().Wait(ctx, pos.Index) != nil || ctx.Err() != nil {
			return nil
		}
		next, err := l.step(ctx, &wg, pos)
		if err != nil {
			return err
		}
		pos = next
	}
}

// stepLimit bounds the changes read at once.
const stepLimit = 4096

// step hands the changes after pos to the nodes that they are of.
func (l *Link) step(ctx context.Context, wg *sync.WaitGroup, pos state.Position) (state.Position, error) {
	feed := l.cfg.State.Feed()
	changes, last, err := feed.After(pos, stepLimit)
	if muster.IsKind(err, muster.FaultTooOld) {
		snap := l.cfg.State.Latest()
		l.all(ctx, wg, snap)
		return state.AfterIndex(snap.Index()), nil
	}
	if err != nil {
		return pos, fmt.Errorf("change feed: %w", err)
	}
	// Boxes are poked when all is in them: what one fact places on a node goes there in one set.
	mail := map[*mailbox]bool{}
	defer func() {
		for box, urgent := range mail {
			box.poke(urgent)
		}
	}()
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Node != nil:
			l.nodeChanged(ctx, wg, c.Node)
		case c.NodeBefore != nil:
			l.forget(c.NodeBefore.ID)
		case c.AllocBefore != nil || c.Alloc != nil:
			l.allocChanged(c, mail)
		case c.Config && l.cfg.State.Latest().Meta().Term != l.term:
			return pos, fmt.Errorf("another leader has begun: term %d after %d", l.cfg.State.Latest().Meta().Term, l.term)
		}
	}
	if len(changes) == stepLimit {
		return changes[len(changes)-1].Position(), nil
	}
	return state.AfterIndex(last), nil
}

// linked reports whether a node has an agent to talk to.
func linked(snap *state.Snapshot, n *state.Node, now muster.Time) bool {
	switch n.Stage {
	case muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining:
		return true
	case muster.NodeTerminating:
		return now < endingUntil(n) && (n.LiveAllocs > 0 || n.IdleSince > n.StageSince && hasOpenOutput(snap, n.ID))
	}
	return false
}

// all takes every node from the snapshot.
func (l *Link) all(ctx context.Context, wg *sync.WaitGroup, snap *state.Snapshot) {
	seen := map[muster.NodeID]bool{}
	snap.LiveNodes(func(n *state.Node) bool {
		seen[n.ID] = true
		l.nodeChanged(ctx, wg, n)
		if nl := l.node(n.ID); nl != nil {
			nl.box.addAll()
		}
		return true
	})
	for _, id := range l.nodeIDs() {
		if !seen[id] {
			l.forget(id)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.dropped {
		if !seen[id] {
			delete(l.dropped, id)
		}
	}
}

func (l *Link) nodeIDs() []muster.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]muster.NodeID, 0, len(l.nodes))
	for id := range l.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (l *Link) node(id muster.NodeID) *nodeLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[id]
}

func (l *Link) nodeChanged(ctx context.Context, wg *sync.WaitGroup, n *state.Node) {
	nl := l.node(n.ID)
	isLinked := linked(l.cfg.State.Latest(), n, l.cfg.Clock.Now())
	switch {
	case nl != nil && (isLinked || n.Stage == muster.NodeTerminating && nl.terminating()):
		// A link to a node that is being destroyed ends by itself.
		nl.changed(n)
	case nl != nil && l.drop(nl):
		if n.Stage == muster.NodeGone {
			l.takeDropped(n.ID)
		}
		nl.end()
		wg.Go(func() { l.giveUpOutputs(ctx, n, nl) })
	case n.Stage == muster.NodeGone:
		if nl := l.takeDropped(n.ID); nl != nil {
			wg.Go(func() { l.giveUpOutputs(ctx, n, nl) })
		}
	case l.isDropped(n.ID):
		// What is to be said of it is said, and the rest once it is gone.
	case isLinked:
		l.cfg.Enter(n.ID)
		nl = newNodeLink(l, n)
		l.mu.Lock()
		l.nodes[n.ID] = nl
		l.mu.Unlock()
		wg.Go(func() {
			nl.run(ctx)
			if ctx.Err() == nil && l.drop(nl) {
				l.giveUpOutputs(ctx, nl.row.Load(), nl) // it has ended by itself
			}
		})
	case n.Stage == muster.NodeTerminating:
		// The leader before may have been killed before it could say what became of the output. That is done once, and not
		// for each change of the row.
		nl := newNodeLink(l, n)
		close(nl.gone) // it never runs
		l.mu.Lock()
		l.dropped[n.ID] = nl
		l.mu.Unlock()
		wg.Go(func() { l.giveUpOutputs(ctx, n, nl) })
	}
}

// drop takes a link out of the current ones, and keeps what it has shipped until its node is gone; false if that was done before.
func (l *Link) drop(nl *nodeLink) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nodes[nl.id] != nl {
		return false
	}
	delete(l.nodes, nl.id)
	l.dropped[nl.id] = nl
	return true
}

// takeDropped takes a node's link out of those that were dropped; nil if there is none.
func (l *Link) takeDropped(id muster.NodeID) *nodeLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	nl := l.dropped[id]
	delete(l.dropped, id)
	return nl
}

func (l *Link) isDropped(id muster.NodeID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropped[id] != nil
}

// forget ends the link of a node that the state does not have any more.
func (l *Link) forget(id muster.NodeID) {
	l.mu.Lock()
	nl := l.nodes[id]
	delete(l.nodes, id)
	l.mu.Unlock()
	if nl != nil {
		nl.end()
	}
}

// forgetNodes leaves nothing for readers once the links have ended.
func (l *Link) forgetNodes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.nodes)
}

// allocChanged puts what changed into its node's box, and notes that the box is to be poked, and how.
func (l *Link) allocChanged(c *state.Change, mail map[*mailbox]bool) {
	a, urgent := c.Alloc, false
	if a == nil {
		a = c.AllocBefore // purged
	}
	switch c.Verb {
	case state.VerbAllocPlaced, state.VerbAllocStopping, state.VerbAllocClaimed: // a claimed runner may have stood still
		urgent = true
	case state.VerbAllocStarting, state.VerbAllocRunning:
		return // known: it came from here
	}
	if nl := l.node(a.Node); nl != nil {
		nl.box.put(a.ID)
		mail[nl.box] = mail[nl.box] || urgent
	}
}

// fence is put on every set. Not ok: another leader has begun, and its term may not be borrowed.
func (l *Link) fence(snap *state.Snapshot) (wire.Fence, bool) {
	m := snap.Meta()
	return wire.Fence{Cluster: m.Cluster, Epoch: m.Epoch, Term: l.term, Index: m.Index}, m.Term == l.term
}

// Stats are counts since the server began to lead, and what is now.
type Stats struct {
	Nodes, Up                        int
	Dials, AgentStarts               uint64
	Reports, Updates, Sets           uint64
	ShippedBytes, ShipFaults, Inputs uint64
	Grants                           uint64
	Probes                           uint64
}

type stats struct {
	dials, starts, reports, updates, sets, shipped, shipFaults, inputs, grants, probes atomic.Uint64
}

// Stats says what the link has done and holds.
func (l *Link) Stats() Stats {
	s := Stats{
		Dials: l.stats.dials.Load(), AgentStarts: l.stats.starts.Load(), Reports: l.stats.reports.Load(),
		Updates: l.stats.updates.Load(), Sets: l.stats.sets.Load(), ShippedBytes: l.stats.shipped.Load(),
		ShipFaults: l.stats.shipFaults.Load(), Inputs: l.stats.inputs.Load(), Grants: l.stats.grants.Load(), Probes: l.stats.probes.Load(),
	}
	l.mu.Lock()
	nodes := make([]*nodeLink, 0, len(l.nodes))
	for _, nl := range l.nodes {
		nodes = append(nodes, nl)
	}
	l.mu.Unlock()
	s.Nodes = len(nodes)
	for _, nl := range nodes {
		if nl.contactNow().Up {
			s.Up++
		}
	}
	return s
}

// Usage is what a node's agent last said that its sandboxes use.
type Usage struct {
	wire.Usage
	FreeDisk int64
	// Heard is when something last came from the agent; 0: nothing under this leader.
	Heard muster.Time
	// Problems are what the agent says that its node cannot do.
	Problems []string
}

// Heard is the time since which silence of a node's agent counts: when it was last heard, or when the link to it began if it has
// not been heard since. Without a link it is now: that nothing is known, as before Run, is not silence.
func (l *Link) Heard(id muster.NodeID) muster.Time {
	nl := l.node(id)
	if nl == nil {
		return l.cfg.Clock.Now()
	}
	c := nl.contactNow()
	return max(c.Heard, c.Began)
}

// Usage of a node; not ok if there is no link to it.
func (l *Link) Usage(id muster.NodeID) (Usage, bool) {
	nl := l.node(id)
	if nl == nil {
		return Usage{}, false
	}
	way := l.cfg.Problems(id)
	nl.mu.Lock()
	defer nl.mu.Unlock()
	u := nl.usage
	u.Heard = nl.contact.Heard
	if len(way) > 0 {
		u.Problems = append(slices.Clone(u.Problems), way...)
	}
	return u, true
}
