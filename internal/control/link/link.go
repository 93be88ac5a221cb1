package link

import (
	"cmp"
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
	"github.com/musterhq/muster/internal/control/link/pulls"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Source is the applied state: the newest snapshot, and the feed of changes.
type Source interface {
	Latest() *state.Snapshot
	Feed() *state.Feed
}

// Blobs stores what is too large for the log. All methods may be called concurrently. A blob is
// stored whole or not at all.
type Blobs interface {
	Put(ctx context.Context, key string, r io.Reader) (int64, error)
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	List(ctx context.Context, prefix string) ([]blob.Info, error)
	Delete(ctx context.Context, key string) error
}

// Config holds what a Link needs. State, Proposer, Blobs and Dial are required.
type Config struct {
	State    Source
	Proposer state.Proposer
	// Clock is the clock of the log. Nil means the clock of the system.
	Clock clock.Clock
	Blobs Blobs
	// Dial opens a connection to the agent of a node. It fails soon if the agent does not listen.
	Dial func(ctx context.Context, n *state.Node) (net.Conn, error)
	// StartAgent makes sure that an agent of this build runs on the node. The link calls it when
	// the agent cannot be reached, and once for each node that an earlier leader launched.
	// FaultNotFound means that the instance does not exist. May be nil.
	StartAgent func(ctx context.Context, n *state.Node) error
	// KeepAgents reports whether agents of other builds are left as they are, as while the servers of a
	// cluster have different versions: each new leader would replace them all. Optional: they are replaced.
	KeepAgents func() bool
	// DialBulk opens a second connection for transfers that would delay small requests: declared
	// outputs, inputs and large amounts of output. Nil means Dial.
	DialBulk func(ctx context.Context, n *state.Node) (net.Conn, error)
	// StartsItself reports whether a new instance starts its agent by itself. Such an instance gets
	// some time before the link starts the agent. Nil means that all do.
	StartsItself func(n *state.Node) bool
	// Enter is called before the link first contacts a node, and Leave when the link to the node
	// ends for good. User requests may outlive the link; after Leave they must not open new
	// connections to the node. May be nil.
	Enter, Leave func(id muster.NodeID)
	// LeaveAllBut is called when Run begins. It closes the connections, left from an earlier run,
	// to nodes that this run does not link. When Run ends, connections stay open for the next run.
	// May be nil.
	LeaveAllBut func(linked func(id muster.NodeID) bool)
	// Lease is how long a node may go without contact before it ends itself; 0 means for ever. A
	// held node gets no lease. Nil means that no node has one.
	Lease func(n *state.Node) time.Duration
	// Problems returns sentences about the path to a node, for operators. May be nil.
	Problems func(id muster.NodeID) []string
	// OCIRuntime returns the configured runtime program for containers on the nodes of a pool.
	// Empty means crun, else runc. May be nil.
	OCIRuntime func(pool muster.PoolName) string
	// Grants creates the pull credentials that agents ask for. If it is nil, agents get none.
	Grants pulls.Granter
	// ImageCache holds the images whose grants have a digest. May be nil.
	ImageCache pulls.ImageCache
	// DiskTight returns why output is not stored now, because the server's disk is nearly full, or
	// nil if it has room. May be nil.
	DiskTight func() error
	// OutputMost is the largest total size in bytes of an allocation's declared outputs; 0 means no
	// limit. Nil means no limit.
	OutputMost func() int64
	Logger     *slog.Logger
	// Noticed gets what a node's agent says of its cloud's notices: each change, and all of a new
	// contact; the zero Notice: none. It must not block. May be nil.
	Noticed func(id muster.NodeID, n wire.Notice)
	// Seed seeds the jitter between dials.
	Seed uint64
	// StoreFor bounds the time for storing an allocation's declared outputs. After it the
	// allocation fails. Zero means ten minutes.
	StoreFor time.Duration
}

// Link is the control loop. See the package comment.
type Link struct {
	cfg   Config
	log   *slog.Logger
	stats stats
	// ships is a semaphore: it holds a token for each stream being shipped, over all nodes.
	ships chan struct{}
	// grants is a semaphore: it holds a token for each pull credential being created.
	grants chan struct{}
	// parts is a semaphore: it holds a token for each part of a cached image being sent.
	parts chan struct{}

	// term is the term under which Run began. Run sets it before it starts a goroutine.
	term uint64
	// since is the log's time when Run began. Only this link can have shipped output of an
	// allocation that was placed later.
	since muster.Time

	// mu guards nodes and dropped. The rows in them have locks of their own.
	mu    sync.Mutex
	nodes map[muster.NodeID]*nodeLink
	// dropped holds the links of terminating nodes that have no contact any more. They still know
	// what they have shipped of allocations that were running. giveUpOutputs commits that once the
	// node is gone.
	dropped map[muster.NodeID]*nodeLink

	// unstored holds allocations whose command succeeded and whose declared outputs could not be
	// stored yet, with the reason. unstoredMu guards it.
	unstoredMu sync.Mutex
	unstored   map[muster.AllocID]unstored
}

// shipsAtOnce bounds how many streams and declared outputs are stored at the same time. That bounds
// the memory and the requests to the blob store.
const shipsAtOnce = 16

// partsAtOnce bounds how many parts of cached images are sent at the same time.
const partsAtOnce = 64

// New makes a Link. It does nothing before Run.
func New(cfg Config) (*Link, error) {
	switch {
	case cfg.State == nil, cfg.Proposer == nil, cfg.Blobs == nil, cfg.Dial == nil:
		return nil, errors.New("link: state, proposer, blobs and dial are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.StoreFor = cmp.Or(cfg.StoreFor, 10*time.Minute)
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
		cfg: cfg, log: cfg.Logger, ships: make(chan struct{}, shipsAtOnce), grants: make(chan struct{}, grantsAtOnce), parts: make(chan struct{}, partsAtOnce),
		nodes: map[muster.NodeID]*nodeLink{}, dropped: map[muster.NodeID]*nodeLink{},
		unstored: map[muster.AllocID]unstored{},
	}, nil
}

// Run keeps every link until ctx ends. The caller must start it only after the leader's TermBegan
// is applied, because every set carries that term. It returns nil when ctx ends, and an error if
// the feed fails or another leader has begun.
func (l *Link) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.forgetNodes()

	snap := l.cfg.State.Latest()
	// The snapshot gives the term and the position together: a change after the position is seen by
	// step, and none is lost or seen as of another term.
	l.term, l.since = snap.Meta().Term, snap.Meta().Time
	pos := state.AfterIndex(snap.Index())
	now := l.cfg.Clock.Now()
	l.cfg.LeaveAllBut(func(id muster.NodeID) bool {
		n := snap.Node(id)
		return n != nil && linked(snap, n, now)
	})
	l.all(ctx, &wg, snap)
	for {
		// Wait only after a complete entry. In the middle of an entry more changes are there
		// already, and another entry may not come for a long time.
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

// stepLimit bounds how many changes one step reads.
const stepLimit = 4096

// step hands the changes after pos to the nodes that they concern, and returns the new position.
func (l *Link) step(ctx context.Context, wg *sync.WaitGroup, pos state.Position) (state.Position, error) {
	feed := l.cfg.State.Feed()
	changes, last, err := feed.After(pos, stepLimit)
	// The feed has dropped changes that this loop has not read. Start over from a snapshot, with
	// whole sets.
	if muster.IsKind(err, muster.FaultTooOld) {
		snap := l.cfg.State.Latest()
		l.all(ctx, wg, snap)
		return state.AfterIndex(snap.Index()), nil
	}
	if err != nil {
		return pos, fmt.Errorf("change feed: %w", err)
	}
	// Mailboxes are woken last, so what one fact places on a node goes there in one set.
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
			// Another leader's TermBegan is in the log. This link must send nothing more.
			return pos, fmt.Errorf("another leader has begun: term %d after %d", l.cfg.State.Latest().Meta().Term, l.term)
		}
	}
	if len(changes) == stepLimit {
		return changes[len(changes)-1].Position(), nil
	}
	return state.AfterIndex(last), nil
}

// linked reports whether the link keeps contact with the agent of a node. A terminating node keeps
// it for a while, as long as allocations run there or their output is not stored.
func linked(snap *state.Snapshot, n *state.Node, now muster.Time) bool {
	switch n.Stage {
	case muster.NodeBooting, muster.NodeAdopted, muster.NodeServing, muster.NodeDraining:
		return true
	case muster.NodeTerminating:
		return now < endingUntil(n) && (n.LiveAllocs > 0 || n.IdleSince > n.StageSince && hasOpenOutput(snap, n.ID))
	}
	return false
}

// all applies a whole snapshot: it updates every node, asks for a whole set for each, and forgets
// the nodes that the snapshot does not have.
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

// nodeChanged applies a node's new row: it starts a link, updates it, or ends it and settles the
// outputs that will not come any more. Only the goroutine of Run calls it, so no two calls race for
// the same node.
func (l *Link) nodeChanged(ctx context.Context, wg *sync.WaitGroup, n *state.Node) {
	nl := l.node(n.ID)
	isLinked := linked(l.cfg.State.Latest(), n, l.cfg.Clock.Now())
	switch {
	case nl != nil && (isLinked || n.Stage == muster.NodeTerminating && nl.terminating()):
		// A link to a terminating node ends by itself: it knows when its time is over.
		nl.changed(n)
	case nl != nil && n.Stage == muster.NodeStopped && l.drop(nl):
		// Its disk stays, and with it whatever output is not stored yet.
		nl.end()
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
	case l.isDropped(n.ID) && n.Stage != muster.NodeBooting:
		// Its outputs are settled as far as they can be. The rest follows once the node is gone.
	case isLinked:
		// The link of a machine that was switched off may still be ending, and its Leave must not come
		// after this one's Enter.
		before := l.takeDropped(n.ID)
		nl = newNodeLink(l, n)
		l.mu.Lock()
		l.nodes[n.ID] = nl
		l.mu.Unlock()
		wg.Go(func() {
			if before != nil {
				<-before.gone
			}
			l.cfg.Enter(n.ID)
			nl.run(ctx)
			if ctx.Err() == nil && l.drop(nl) {
				// The link has ended by itself.
				l.giveUpOutputs(ctx, nl.row.Load(), nl)
			}
		})
	case n.Stage == muster.NodeTerminating:
		// An earlier leader may have crashed before it settled the outputs of this node. Do it
		// once, and not for each change of the row: the entry in dropped prevents that.
		nl := newNodeLink(l, n)
		close(nl.gone) // it never runs
		l.mu.Lock()
		l.dropped[n.ID] = nl
		l.mu.Unlock()
		wg.Go(func() { l.giveUpOutputs(ctx, n, nl) })
	}
}

// drop moves a link from nodes to dropped, where it keeps what it has shipped until its node is
// gone. It reports false if another call did that before.
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

// takeDropped removes a node's link from dropped and returns it; nil if there is none.
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

// forget ends the link to a node that the state no longer has.
func (l *Link) forget(id muster.NodeID) {
	l.mu.Lock()
	nl := l.nodes[id]
	delete(l.nodes, id)
	l.mu.Unlock()
	if nl != nil {
		nl.end()
	}
}

// forgetNodes empties the map when Run ends, so that readers find no link that has stopped.
func (l *Link) forgetNodes() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.nodes)
}

// allocChanged puts a changed allocation into the mailbox of its node. It notes in mail which
// mailboxes step has to wake, and whether that is urgent.
func (l *Link) allocChanged(c *state.Change, mail map[*mailbox]bool) {
	a, urgent := c.Alloc, false
	if a == nil {
		a = c.AllocBefore // purged
	}
	switch c.Verb {
	case state.VerbAllocPlaced, state.VerbAllocStopping, state.VerbAllocClaimed:
		// A claimed runner is urgent: it may be frozen, and its user waits.
		urgent = true
	case state.VerbAllocStarting, state.VerbAllocRunning:
		// The change came from this node's own report.
		return
	}
	if nl := l.node(a.Node); nl != nil {
		nl.box.put(a.ID)
		mail[nl.box] = mail[nl.box] || urgent
	}
}

// fence returns the fence for a set. It reports false if another leader has begun: this link must
// not send with that leader's term.
func (l *Link) fence(snap *state.Snapshot) (wire.Fence, bool) {
	m := snap.Meta()
	return wire.Fence{Cluster: m.Cluster, Epoch: m.Epoch, Term: l.term, Index: m.Index}, m.Term == l.term
}

// Stats holds counts since Run began. Nodes and Up are current values: how many nodes are linked,
// and how many of them are in contact.
type Stats struct {
	Nodes, Up                        int
	Dials, AgentStarts               uint64
	Reports, Updates, Sets           uint64
	ShippedBytes, ShipFaults, Inputs uint64
	Grants                           uint64
	Probes                           uint64
	// Heard is when the agent of each linked node was last heard; 0 means not under this leader.
	Heard map[muster.NodeID]muster.Time
}

// Metrics calls gauge or counter with each figure that is a metric. A server that does not lead
// calls it on the zero value.
func (s *Stats) Metrics(gauge, counter func(name, help string, v float64)) {
	gauge("muster_links", "Nodes to which the server keeps a link.", float64(s.Nodes))
	gauge("muster_links_up", "Links that are up.", float64(s.Up))
	counter("muster_link_dials_total", "Connections opened to agents.", float64(s.Dials))
	counter("muster_agent_starts_total", "Agents restarted.", float64(s.AgentStarts))
	counter("muster_reports_total", "Reports received from agents.", float64(s.Reports))
	counter("muster_output_shipped_bytes_total", "Output copied from nodes to the blob store, in bytes.", float64(s.ShippedBytes))
	counter("muster_output_ship_faults_total", "Failed attempts to copy output.", float64(s.ShipFaults))
}

type stats struct {
	dials, starts, reports, updates, sets, shipped, shipFaults, inputs, grants, probes atomic.Uint64
}

// Stats returns the current figures. It does not hold Link.mu while it locks each node.
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
	s.Nodes, s.Heard = len(nodes), make(map[muster.NodeID]muster.Time, len(nodes))
	for _, nl := range nodes {
		c := nl.contactNow()
		s.Heard[nl.id] = c.Heard
		if c.Up {
			s.Up++
		}
	}
	return s
}

// Usage is the resource usage that a node's agent last reported for its sandboxes.
type Usage struct {
	wire.Usage
	FreeDisk int64
	// Heard is when the agent was last heard; 0 means not under this leader.
	Heard muster.Time
	// Problems are sentences from the agent: what its node cannot do.
	Problems []string
}

// Heard returns the time from which the silence of a node's agent counts: when it was last heard,
// or when the link to it began if it has not been heard since. Without a link it returns the
// current time: before Run nothing is known, and that is not silence.
func (l *Link) Heard(id muster.NodeID) muster.Time {
	nl := l.node(id)
	if nl == nil {
		return l.cfg.Clock.Now()
	}
	c := nl.contactNow()
	return max(c.Heard, c.Began)
}

// Usage returns what a node's agent last reported. It reports false if there is no link to the
// node. Config.Problems is called before the lock is taken, because it may block.
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
