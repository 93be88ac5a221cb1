package sim

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/control/reaper"
	"github.com/musterhq/muster/internal/control/roll"
	"github.com/musterhq/muster/internal/control/runners"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

const (
	owner    = "c1"
	provider = "fake"
	second   = "second" // another account in the same cloud
)

// Config of a cluster.
type Config struct {
	Seed      uint64
	Offerings []muster.Offering
	Pools     []state.Pool
	// Delay and Jitter of the cloud's answers; Page is how many instances a page of its lists has, 0: all.
	Delay, Jitter time.Duration
	Page          int
	// BlobDelay is the longest that a blob takes to be stored.
	BlobDelay time.Duration
	// PassFor is how long others may pass a job that fits nowhere before room is reserved for it; 0: the broker's default.
	PassFor time.Duration
	Workers int // of the scheduler
	// Paused: nothing is placed.
	Paused bool
	// Second: a second provider is configured.
	Second bool
	// Configured: configurations are applied, by servers with different files that take turns to lead.
	Configured bool
	// SlowProbe is how long one in SlowProbes new instances takes to answer each of its probes; 0: none does.
	SlowProbe  time.Duration
	SlowProbes int
	Logger     *slog.Logger
}

// Cluster is a server's loops, a cloud and its machines. Make it, and use it,
// inside a synctest bubble.
type Cluster struct {
	Log   *linktest.Ledger
	Blobs *linktest.Blobs
	Cloud *fake.Cloud
	cfg   Config

	// clients claim runners.
	clients *clients
	// servers have files, if the scenario applies configurations; else nil.
	servers *servers
	// life ends with the cluster.
	life    context.Context
	endLife context.CancelFunc
	cancel  context.CancelFunc
	loops   sync.WaitGroup
	// leadership ends with the loops.
	leadership context.Context
	watch      *watch

	mu       sync.Mutex
	machines map[muster.InstanceID]*machine
	past     []*linktest.Node
	now      Loops
	errs     []error
	trace    []line
	began    time.Time
	drawn    uint64
	// ledSince is when the loops last began; zero while none run. refused is what providers had refused
	// by then until a time that a new leader keeps to.
	ledSince time.Time
	refused  []size.Block
	dialled  map[muster.NodeID]bool // by this leader
	// offset is how far the system's clock of the server is off; stepped that it ever was, jumped when the log's time last went ahead with it.
	offset  time.Duration
	stepped bool
	jumped  time.Time
	// late is by how much in all the log's time began again earlier than it would be, as the system's clock was behind it.
	late time.Duration
	// prevented is when something last kept the loops from what is due, as a log that takes nothing.
	prevented time.Time
	// lacked are the offerings that the provider's answers lack, since when.
	lacked map[muster.OfferingName]time.Time
	// closed: nothing is checked any more. releasing: operators hold nothing any more.
	closed, releasing bool
}

// machine is what stands behind an instance.
type machine struct {
	*linktest.Node
	instance cloud.Instance
	id       muster.NodeID // whose machine it is
	mute     atomic.Bool   // no agent can be started
	halted   atomic.Bool   // an operator has stopped it
}

// New makes a cluster whose loops do not run yet.
func New(cfg Config) (*Cluster, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l, err := linktest.NewLedger(owner)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Log: l, Blobs: &linktest.Blobs{}, cfg: cfg, machines: map[muster.InstanceID]*machine{}, began: time.Now(), clients: newClients(), lacked: map[muster.OfferingName]time.Time{}}
	c.life, c.endLife = context.WithCancel(context.Background())
	c.bootClock()
	c.watch = newWatch(c)
	l.After = c.committed
	c.Blobs.Slow(c.blobDelay)
	c.Cloud = fake.New(fake.Config{Offerings: cfg.Offerings, Seed: cfg.Seed, Delay: cfg.Delay, Jitter: cfg.Jitter, Page: cfg.Page, Told: func(answer string) { c.note("cloud: %s", answer) }, Created: c.created, Destroyed: c.destroyed, Stopped: c.switched})
	if err := l.Keep(); err != nil {
		return nil, err
	}
	if cfg.Configured {
		if c.servers, err = c.newServers(); err != nil {
			return nil, err
		}
	}
	if err := c.propose(&state.FormatRaised{Format: state.FormatNewest, By: "sim"}); err != nil {
		return nil, err
	}
	return c, c.propose(&state.PoolsSet{Pools: cfg.Pools})
}

// propose is what an operator or a user does.
func (c *Cluster) propose(f state.Fact) error {
	_, _, err := c.Log.Propose(context.Background(), f)
	return err
}

// Start begins the loops, as a leader would.
func (c *Cluster) Start() error {
	if c.servers != nil {
		if err := c.servers.lead(); err != nil {
			return err
		}
	}
	run, err := c.leader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.leadership = cancel, ctx
	c.mu.Lock()
	c.ledSince, c.dialled = time.Now(), map[muster.NodeID]bool{}
	c.refused = lastingBlocks(c.Log.Latest())
	c.watch.stocked = stocks(c.Log.Latest())
	c.mu.Unlock()
	for name, loop := range run {
		c.loops.Go(func() {
			if err := loop(ctx); err != nil {
				c.fail(fmt.Errorf("%s ended with: %w", name, err))
			}
		})
	}
	return nil
}

// lastingBlocks are the blocks that a new leader keeps to: all but those that operators correct.
func lastingBlocks(snap *state.Snapshot) (out []size.Block) {
	all := size.BlocksOf(snap)
	state.ProvidersOf(snap).Blocks(func(b *state.Block) bool {
		if b.Call == state.CallCreate && b.Times > 0 && b.Kind != muster.FaultAuth && b.Kind != muster.FaultInvalid {
			i := slices.IndexFunc(all, func(x size.Block) bool { return x.Scope == b.Scope && x.Until == b.Until })
			out = append(out, all[i])
		}
		return true
	})
	return out
}

// inherited are the blocks that the leader which began at a time has begun with.
func (c *Cluster) inherited(began time.Time) []size.Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ledSince.Equal(began) {
		return nil
	}
	return c.refused
}

// Loops are those of one leadership.
type Loops struct {
	Broker   *broker.Broker
	Apply    *apply.Applier
	Schedule *schedule.Scheduler
	Fleet    *fleet.Fleet
	Link     *link.Link
	Runners  *runners.Runners
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
	b, err := broker.New(broker.Config{State: c.Log, Proposer: c.actor("broker"), Clock: c.Log.Now, PassFor: c.cfg.PassFor, Logger: log})
	if err != nil {
		return nil, err
	}
	a, err := apply.New(apply.Config{Snapshots: c.Log, Proposer: c.actor("apply"), Deliveries: b, Logger: log})
	if err != nil {
		return nil, err
	}
	s, err := schedule.New(schedule.Config{State: c.Log, Clock: c.Log.Now, Queue: &queue{c, b}, Submit: &submitter{c, a}, Workers: c.cfg.Workers, Paused: c.cfg.Paused, Logger: log})
	if err != nil {
		return nil, err
	}
	l, err := link.New(link.Config{State: c.Log, Proposer: c.actor("link"), Clock: c.Log.Now, Blobs: c.Blobs, Logger: log, Dial: c.dial, StartAgent: c.startAgent, Seed: c.cfg.Seed})
	if err != nil {
		return nil, err
	}
	f, err := fleet.New(fleet.Config{State: c.Log, Proposer: c.actor("fleet"), Clock: c.Log.Now, Paused: c.cfg.Paused, Heard: l.Heard, Logger: log, Draw: c.draw, Providers: c.providers()})
	if err != nil {
		return nil, err
	}
	r, err := c.reaper()
	if err != nil {
		return nil, err
	}
	ru, err := runners.New(runners.Config{State: c.Log, Proposer: c.actor("runners"), Clock: c.Log.Now, Draw: c.draw, Logger: log, Reached: func(id muster.NodeID) bool {
		u, ok := l.Usage(id)
		return ok && c.Log.Now().Sub(u.Heard) < 2*wire.HeartbeatMillis*time.Millisecond
	}})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.now = Loops{b, a, s, f, l, ru}
	c.mu.Unlock()
	ro, err := roll.New(roll.Config{State: c.Log, Proposer: c.actor("roll"), Clock: c.Log.Now, Paused: c.cfg.Paused, Logger: log})
	if err != nil {
		return nil, err
	}
	return map[string]func(context.Context) error{"broker": b.Run, "apply": a.Run, "schedule": s.Run, "fleet": f.Run, "link": l.Run, "reaper": r.Run, "roll": ro.Run, "runners": ru.Run}, nil
}

// providers are those of the configuration.
func (c *Cluster) providers() map[muster.ProviderName]cloud.Provider {
	out := map[muster.ProviderName]cloud.Provider{provider: &watched{c.Cloud.Owner(owner), c, true}}
	if c.cfg.Second {
		out[second] = &watched{&account{c.Cloud.Owner("of " + second)}, c, false}
	}
	return out
}

// retention is how long ended jobs and gone nodes are kept, outputFor their stored output.
const retention, outputFor = 24 * time.Hour, 5 * time.Minute

func (c *Cluster) reaper() (*reaper.Reaper, error) {
	return reaper.New(reaper.Config{State: c.Log, Proposer: c.actor("reaper"), Clock: c.Log.Now, Blobs: c.Blobs, Logger: c.cfg.Logger, Jobs: retention, Nodes: retention, Output: outputFor})
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

// blobDelay is how long a blob takes to be stored.
func (c *Cluster) blobDelay(key string) time.Duration {
	d := c.delay(c.cfg.BlobDelay, "blob", key)
	c.note("blob %s is there in %s", key, d)
	return d
}

// Stop ends the loops and waits for them. Machines go on.
func (c *Cluster) Stop() {
	if c.cancel != nil {
		c.cancel()
		c.loops.Wait()
		c.cancel = nil
		if c.servers != nil {
			c.servers.resign()
		}
		c.mu.Lock()
		c.ledSince = time.Time{}
		c.mu.Unlock()
	}
}

// Restart is a new leader after the old one was killed. Replay: it begins by
// making its state of the log, as a server that starts; else it had followed.
func (c *Cluster) Restart(replay bool) error {
	c.Stop()
	if replay {
		if err := c.Log.Replay(); err != nil {
			return err
		}
		c.bootClock()
		if err := c.watch.restored(c.Log.Latest()); err != nil {
			return err
		}
		if err := c.watch.acknowledged(c.Log.Latest()); err != nil {
			return err
		}
		if err := c.claimsKept(c.Log.Latest()); err != nil {
			return err
		}
	}
	for {
		err := c.Log.Lead(context.Background())
		if err == nil {
			return c.Start()
		}
		if !muster.IsKind(err, muster.FaultDiskLow) {
			return err
		}
		time.Sleep(time.Second)
	}
}

// bootClock gives the log the clock of a server that starts: where the system's clock is ahead, so is the log's time.
func (c *Cluster) bootClock() {
	before := c.Log.Latest().Meta().Time
	if c.Log.Clock != nil {
		before = c.Log.Now()
	}
	k := &clock.Steady{Wall: func() int64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return time.Now().Add(c.offset).UnixMicro()
	}, Away: func() time.Duration { return 0 }}
	k.Heard(int64(c.Log.Latest().Meta().Time))
	c.Log.Clock = k
	d := c.Log.Now().Sub(before)
	c.mu.Lock()
	defer c.mu.Unlock()
	if d > slack {
		c.jumped = time.Now()
	}
	c.late += max(-d, 0)
}

// jumpedSince reports whether a server has started since then whose system's clock was ahead of the log's time.
func (c *Cluster) jumpedSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.jumped.IsZero() && !c.jumped.Before(t)
}

// step moves the system's clock of the server.
func (c *Cluster) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
	c.stepped = true
}

// Reload begins the loops again under the same leadership, as a server does whose configuration has changed.
func (c *Cluster) Reload(change func(cfg *Config)) error {
	c.Stop()
	c.mu.Lock()
	change(&c.cfg)
	c.mu.Unlock()
	return c.Start()
}

// lacksSecond reports whether there are nodes of the second provider, and it is not configured.
func (c *Cluster) lacksSecond() bool {
	has := false
	c.Log.Latest().LiveNodes(func(n *state.Node) bool {
		has = n.Offering.Provider == second
		return !has
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	return has && !c.cfg.Second
}

// paused reports whether nothing is placed.
func (c *Cluster) paused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.Paused
}

// slowProbes sets how slow the probes of instances are, those that are there included.
func (c *Cluster) slowProbes(d time.Duration, oneIn int) {
	c.mu.Lock()
	c.cfg.SlowProbe, c.cfg.SlowProbes = d, oneIn
	c.mu.Unlock()
	if d == 0 {
		for _, m := range c.running() {
			m.ProbeTakes(0)
		}
	}
}

// halt stops the machine of a node, or starts it again.
func (c *Cluster) halt(m *machine, on bool) {
	m.halted.Store(on)
	m.mute.Store(on)
	c.Cloud.Halt(m.instance.ID, on)
	if on {
		m.Kill()
		m.Reboot()
	} else {
		_ = m.Start() // if it is gone by now, it is gone
	}
}

func (c *Cluster) haltedLocked(id muster.InstanceID) bool {
	m := c.machines[id]
	return m != nil && m.halted.Load()
}

// Close ends the loops and every machine.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.endLife()
	c.Stop()
	c.clients.wg.Wait()
	for _, m := range c.all() {
		m.Destroy()
	}
}

func (c *Cluster) dial(ctx context.Context, n *state.Node) (net.Conn, error) {
	// A new leader reaches its nodes one after the other. Later connections take no time: which of
	// two calls of one moment finds an idle one is chance.
	c.mu.Lock()
	first := !c.dialled[n.ID]
	c.dialled[n.ID] = true
	c.mu.Unlock()
	if first && !wait.For(ctx, c.delay(steps, "dial", n.ID)) {
		return nil, ctx.Err()
	}
	switch m := c.behind(n.Instance); {
	case m == nil:
	case m.id != n.ID:
		return nil, muster.Faultf(muster.FaultUnavailable, "instance %s: no agent of node %s runs there", n.Instance, n.ID)
	default:
		return m.Dial(ctx)
	}
	return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
}

func (c *Cluster) startAgent(ctx context.Context, n *state.Node) error {
	if !wait.For(ctx, c.delay(steps, "start", n.ID)) {
		return ctx.Err()
	}
	switch m := c.behind(n.Instance); {
	case m == nil:
		return muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
	case m.mute.Load():
		return muster.Faultf(muster.FaultUnavailable, "instance %s: its agent does not start", n.Instance)
	default:
		if m.id != n.ID {
			m = c.rehome(m, n.ID)
		}
		return m.Start()
	}
}
