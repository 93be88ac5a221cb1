package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/control/reaper"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/state"
)

const (
	owner    = "c1"
	provider = "fake"
)

// Config of a cluster.
type Config struct {
	Seed      uint64
	Offerings []muster.Offering
	Pools     []state.Pool
	// Delay and Jitter of the cloud's answers.
	Delay, Jitter time.Duration
	// BlobDelay is the longest that a blob takes to be stored.
	BlobDelay time.Duration
	Workers   int // of the scheduler
	Logger    *slog.Logger
}

// Cluster is a server's loops, a cloud and its machines. Make it, and use it,
// inside a synctest bubble.
type Cluster struct {
	Log   *linktest.Ledger
	Blobs *linktest.Blobs
	Cloud *fake.Cloud
	cfg   Config

	cancel context.CancelFunc
	loops  sync.WaitGroup

	mu       sync.Mutex
	machines map[muster.NodeID]*linktest.Node
	past     []*linktest.Node
	now      Loops
	errs     []error
	trace    []string
	began    time.Time
}

// New makes a cluster whose loops do not run yet.
func New(cfg Config) (*Cluster, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := linktest.NewLedger(owner)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Log: l, Blobs: &linktest.Blobs{}, cfg: cfg, machines: map[muster.NodeID]*linktest.Node{}, began: time.Now()}
	l.After = c.committed
	c.Blobs.Slow(c.blobDelay)
	c.Cloud = fake.New(fake.Config{Offerings: cfg.Offerings, Seed: cfg.Seed, Delay: cfg.Delay, Jitter: cfg.Jitter, Created: c.created, Destroyed: c.destroyed})
	_, _, err = l.Propose(context.Background(), &state.PoolsSet{Pools: cfg.Pools})
	return c, err
}

// Start begins the loops, as a leader would.
func (c *Cluster) Start() error {
	run, err := c.leader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	for name, loop := range run {
		c.loops.Go(func() {
			if err := loop(ctx); err != nil {
				c.fail(fmt.Errorf("%s ended with: %w", name, err))
			}
		})
	}
	return nil
}

// Loops are those of one leadership.
type Loops struct {
	Broker   *broker.Broker
	Apply    *apply.Applier
	Schedule *schedule.Scheduler
	Fleet    *fleet.Fleet
	Link     *link.Link
}

// Loops are the newest ones, stopped or not; nil ones before the first start.
func (c *Cluster) Loops() Loops {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// leader makes the loops of one leadership.
func (c *Cluster) leader() (map[string]func(context.Context) error, error) {
	log := c.cfg.Logger
	b, err := broker.New(broker.Config{State: c.Log, Proposer: c.Log, Logger: log})
	if err != nil {
		return nil, err
	}
	a, err := apply.New(apply.Config{Snapshots: c.Log, Proposer: c.Log, Deliveries: b, Logger: log})
	if err != nil {
		return nil, err
	}
	s, err := schedule.New(schedule.Config{State: c.Log, Queue: b, Submit: a, Workers: c.cfg.Workers, Logger: log})
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(fleet.Config{State: c.Log, Proposer: c.Log, Logger: log, Providers: map[muster.ProviderName]cloud.Provider{provider: c.Cloud.Owner(owner)}})
	if err != nil {
		return nil, err
	}
	l, err := link.New(link.Config{State: c.Log, Proposer: c.Log, Blobs: c.Blobs, Logger: log, Dial: c.dial, StartAgent: c.startAgent, Seed: c.cfg.Seed})
	if err != nil {
		return nil, err
	}
	r, err := c.reaper()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.now = Loops{b, a, s, f, l}
	c.mu.Unlock()
	return map[string]func(context.Context) error{"broker": b.Run, "apply": a.Run, "schedule": s.Run, "fleet": f.Run, "link": l.Run, "reaper": r.Run}, nil
}

// retention is how long ended jobs and gone nodes are kept, outputFor their stored output.
const retention, outputFor = 24 * time.Hour, 5 * time.Minute

func (c *Cluster) reaper() (*reaper.Reaper, error) {
	return reaper.New(reaper.Config{State: c.Log, Proposer: c.Log, Blobs: c.Blobs, Logger: c.cfg.Logger, Jobs: retention, Nodes: retention, Output: outputFor})
}

// Reap lets retention pass for what has ended, with nothing but the reaper at work.
func (c *Cluster) Reap() error {
	c.Stop()
	r, err := c.reaper()
	if err != nil {
		return err
	}
	// Uploads are let go of in the first sweep in which no job refers to them.
	ctx, cancel := context.WithTimeout(context.Background(), retention+2*reaper.DefaultEvery)
	defer cancel()
	return r.Run(ctx)
}

// blobDelay is how long a blob takes to be stored: each its own time, whoever stores it and when.
func (c *Cluster) blobDelay(key string) time.Duration {
	if c.cfg.BlobDelay == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return time.Duration(rand.New(rand.NewPCG(c.cfg.Seed, h.Sum64())).Int64N(int64(c.cfg.BlobDelay)))
}

// Stop ends the loops and waits for them. Machines go on.
func (c *Cluster) Stop() {
	if c.cancel != nil {
		c.cancel()
		c.loops.Wait()
		c.cancel = nil
	}
}

// Restart is a new leader after the old one was killed.
func (c *Cluster) Restart() error {
	c.Stop()
	if err := c.Log.Lead(context.Background()); err != nil {
		return err
	}
	return c.Start()
}

// Close ends the loops and every machine.
func (c *Cluster) Close() {
	c.Stop()
	for _, m := range c.all() {
		m.Destroy()
	}
}

func (c *Cluster) dial(ctx context.Context, n *state.Node) (net.Conn, error) {
	if m := c.Machine(n.ID); m != nil {
		return m.Dial(ctx)
	}
	return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
}

func (c *Cluster) startAgent(_ context.Context, n *state.Node) error {
	if m := c.Machine(n.ID); m != nil {
		return m.Start()
	}
	return muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
}

// created is the machine behind a new instance.
func (c *Cluster) created(in cloud.Instance) {
	m := linktest.NewNode(linktest.Config{ID: in.Tags.Node, Capacity: c.capacity(in.Offering), Attributes: map[string]string{"os": "linux"}})
	c.mu.Lock()
	c.machines[in.Tags.Node] = m
	c.mu.Unlock()
	_ = m.Start() // it has just been made: there is nothing to refuse
}

func (c *Cluster) capacity(name muster.OfferingName) muster.Resources {
	i := slices.IndexFunc(c.cfg.Offerings, func(o muster.Offering) bool { return o.Name == name })
	return c.cfg.Offerings[i].Capacity
}

func (c *Cluster) destroyed(in cloud.Instance) {
	c.mu.Lock()
	m := c.machines[in.Tags.Node]
	delete(c.machines, in.Tags.Node)
	if m != nil {
		c.past = append(c.past, m)
	}
	c.mu.Unlock()
	if m != nil {
		m.Destroy()
	}
}

// Machine is what stands behind a node; nil if nothing does.
func (c *Cluster) Machine(id muster.NodeID) *linktest.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machines[id]
}

// Machines are the ids of the nodes that have one, sorted.
func (c *Cluster) Machines() []muster.NodeID {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]muster.NodeID, 0, len(c.machines))
	for id := range c.machines {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

func (c *Cluster) all() []*linktest.Node {
	ids := c.Machines()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Clone(c.past)
	for _, id := range ids {
		out = append(out, c.machines[id])
	}
	return out
}

// committed checks after each fact what must always be true.
func (c *Cluster) committed(f state.Fact, err error) {
	c.note("fact %s%s", describe(f), refusal(err))
	if err := c.Log.Latest().Check(); err != nil {
		c.fail(err)
	}
	type member struct {
		uid   muster.JobUID
		index int
	}
	live := map[member]muster.AllocID{}
	for _, m := range c.all() {
		for _, id := range m.Live() {
			uid, index, _, err := id.Parse()
			if err != nil {
				c.fail(err)
				continue
			}
			if other, twice := live[member{uid, index}]; twice && other != id && c.sameVersion(other, id) {
				c.fail(fmt.Errorf("two live sandboxes of one member: %s and %s", other, id))
			}
			live[member{uid, index}] = id
		}
		for id, times := range m.Ran() {
			if times > 1 {
				c.fail(fmt.Errorf("the command of allocation %s was started %d times", id, times))
			}
		}
	}
}

// sameVersion tells whether two allocations are of one version of their job:
// those of a replaced version may still be ending.
func (c *Cluster) sameVersion(a, b muster.AllocID) bool {
	snap := c.Log.Latest()
	x, y := snap.Alloc(a), snap.Alloc(b)
	return x != nil && y != nil && x.Version == y.Version
}

// note adds a line to the trace.
func (c *Cluster) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace = append(c.trace, fmt.Sprintf("%10s  ", time.Since(c.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (c *Cluster) fail(err error) {
	c.note("WRONG: %v", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

// Err is what was found wrong first.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs[0]
}

// Trace is what happened, a line each.
func (c *Cluster) Trace() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.trace, "\n")
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	return " REFUSED: " + err.Error()
}

// describe is a fact in a few words.
func describe(f state.Fact) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", f), "*state.")
	switch f := f.(type) {
	case *state.PlanCommitted:
		parts := make([]string, len(f.Placements))
		for i, p := range f.Placements {
			parts[i] = fmt.Sprintf("%s on %s", muster.NewAllocID(p.UID, p.Index, p.Attempt), p.Node)
		}
		return name + " " + strings.Join(parts, ", ")
	case *state.AllocsReported:
		parts := make([]string, len(f.Allocs))
		for i, a := range f.Allocs {
			parts[i] = strings.TrimSpace(fmt.Sprintf("%s %s %s", a.ID, a.Status, a.Outcome))
		}
		return fmt.Sprintf("%s %s: %s", name, f.Node, strings.Join(parts, ", "))
	case *state.NodeLaunching:
		return fmt.Sprintf("%s %s %s: %s", name, f.ID, f.Offering.Name, f.Reason)
	case *state.NodeHealthChanged:
		return fmt.Sprintf("%s %s %s: %s", name, f.ID, f.Health, f.Reason)
	case *state.NodeGone:
		return fmt.Sprintf("%s %s: %s", name, f.ID, f.Reason)
	case *state.NodeTerminating:
		return fmt.Sprintf("%s %s: %s", name, f.ID, f.Reason)
	case *state.JobSubmitted:
		return fmt.Sprintf("%s %s: %d × %v", name, f.Key, f.Spec.Count, f.Spec.Command)
	case *state.JobStopped:
		return fmt.Sprintf("%s %s", name, f.Key)
	}
	return name
}
