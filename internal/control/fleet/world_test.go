package fleet_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a fleet and a link over a log in memory, a fake cloud whose
// instances are nodes in memory, and a scheduler that puts members on the first node with room.
type world struct {
	t     testing.TB
	log   *linktest.Ledger
	blobs *linktest.Blobs
	cloud *fake.Cloud
	pool  state.Pool
	owner string
	out   *slog.Logger

	mu sync.Mutex
	// machines by instance: two may bear the same node's tags.
	machines map[muster.InstanceID]*linktest.Node
	past     []*linktest.Node
	boots    bool       // agents of new instances start
	looking  sync.Mutex // held while invariants looks
	twice    map[string]bool
	// mute are those whose agent cannot be started; offers what is sold, if it is not the usual.
	mute map[muster.NodeID]bool
	// static: what is destroyed goes on, as a host does that cannot be reached. mayTwice: members may run twice meanwhile.
	static, mayTwice bool
	offers           []muster.Offering
	// said are attributes that agents of new instances have besides.
	said map[string]string

	// off are the machines that are switched off, switches what they were switched to in order. mu guards them.
	off      map[muster.InstanceID]bool
	switches []bool

	// wrap puts something between the fleet and the cloud. clock is the fleet's; nil: the system's.
	wrap  func(cloud.Provider) cloud.Provider
	clock clock.Clock
	// read is called before each snapshot that the fleet takes of the state.
	read func()
	// faults are those that wrap may add.
	faults faults

	// heard answers instead of the link when a node was last heard. dial is called before each connection to an agent.
	heard func(muster.NodeID) muster.Time
	dial  func(ctx context.Context)

	// bootOf makes user data; nil: none.
	bootOf func(muster.ProviderName, muster.Token) (cloud.Boot, error)

	paused bool // the scheduler is
	fleet  *fleet.Fleet
	link   *link.Link
	cancel context.CancelFunc
	loops  sync.WaitGroup
}

func offering(name string, cores int, price float64) muster.Offering {
	return muster.Offering{Provider: "fake", Name: muster.OfferingName(name), Market: muster.OnDemand, Price: muster.Price(price * 1e6),
		Capacity: muster.Resources{CPU: muster.MilliCPU(cores) * 1000, Memory: 64 * muster.GiB}, Available: true}
}

// inBubble runs a test in a bubble with a world that has not begun, and ends it after it.
func inBubble(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "c1")
		defer w.end()
		fn(w)
	})
}

// newWorld is one of an owner, with a cloud of its own.
func newWorld(t testing.TB, owner string) *world {
	t.Helper()
	w := &world{
		t: t, owner: owner, blobs: &linktest.Blobs{}, machines: map[muster.InstanceID]*linktest.Node{}, boots: true, twice: map[string]bool{}, mute: map[muster.NodeID]bool{}, off: map[muster.InstanceID]bool{},
		offers: []muster.Offering{offering("small", 2, 1), offering("large", 16, 12)},
		pool:   state.Pool{Name: "p", Provider: "fake", Max: 100, MaxLaunching: 100, IdleTimeout: 10e6, BootTimeout: 60e6, Grace: 60e6},
		out:    slog.New(slog.DiscardHandler),
	}
	if os.Getenv("MUSTER_TEST_LOG") != "" {
		w.out = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	if w.log, err = linktest.NewLedger(owner); err != nil {
		t.Fatal(err)
	}
	w.log.After = func(state.Fact, error) { w.invariants() }
	w.cloud = fake.New(fake.Config{Offerings: w.offers, Created: w.created, Destroyed: w.destroyed, Stopped: w.switched})
	return w
}

// end ends the loops and every machine.
func (w *world) end() {
	w.stop()
	for _, n := range w.all() {
		n.Destroy()
	}
}

func (w *world) all() []*linktest.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.past)
	for _, n := range w.machines {
		out = append(out, n)
	}
	return out
}

// created is the machine behind a new instance.
func (w *world) created(in cloud.Instance) {
	var room muster.Resources
	for _, o := range w.offers {
		if o.Name == in.Offering {
			room = o.Capacity
		}
	}
	w.mu.Lock()
	attributes := map[string]string{"os": "linux"}
	maps.Copy(attributes, w.said)
	n := linktest.NewNode(linktest.Config{ID: in.Tags.Node, Capacity: room, Attributes: attributes})
	w.machines[in.ID] = n
	boots := w.boots
	w.mu.Unlock()
	w.play(in, n)
	if boots && !w.muted(in.Tags.Node) {
		_ = n.Start()
	}
}

func (w *world) muted(id muster.NodeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mute[id]
}

func (w *world) destroyed(in cloud.Instance) {
	w.mu.Lock()
	n := w.machines[in.ID]
	delete(w.machines, in.ID)
	if n != nil {
		w.past = append(w.past, n)
	}
	ends := !w.static
	w.mu.Unlock()
	if n != nil && ends {
		n.Destroy()
	}
}

// switched is the machine of an instance that was switched off, or on: its agent is not there, or begins
// again with what is on the disk.
func (w *world) switched(in cloud.Instance, off bool) {
	w.mu.Lock()
	n := w.machines[in.ID]
	w.switches = append(w.switches, off)
	if off {
		w.off[in.ID] = true
	} else {
		delete(w.off, in.ID)
	}
	w.mu.Unlock()
	switch {
	case n == nil:
	case off:
		n.Kill()
		n.Reboot()
	case !w.muted(in.Tags.Node):
		_ = n.Start()
	}
}

// isOff reports whether a machine is switched off: then nobody starts an agent there.
func (w *world) isOff(id muster.InstanceID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.off[id]
}

// turned are the switches so far: true is off.
func (w *world) turned() []bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.switches)
}

func (w *world) node(id muster.NodeID) *linktest.Node {
	row := w.log.Latest().Node(id)
	if row == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machines[row.Instance]
}

// only is the one node there is.
func (w *world) only() (*linktest.Node, *state.Node) {
	w.t.Helper()
	var rows []*state.Node
	w.log.Latest().LiveNodes(func(n *state.Node) bool { rows = append(rows, n); return true })
	if len(rows) != 1 {
		w.t.Fatalf("%d live nodes, want one\n%s", len(rows), w.dump())
	}
	return w.node(rows[0].ID), rows[0]
}

// reader is a state that calls read before each snapshot, if there is one.
type reader struct {
	fleet.Source
	read func()
}

func (r reader) Latest() *state.Snapshot {
	if r.read != nil {
		r.read()
	}
	return r.Source.Latest()
}

// start begins the loops, as a leader would.
func (w *world) start() {
	w.t.Helper()
	if w.log.Latest().Pool(w.pool.Name) == nil {
		w.must(&state.PoolsSet{Pools: []state.Pool{w.pool}})
	}
	var err error
	provider := cloud.Provider(w.cloud.Owner(w.owner))
	if w.wrap != nil {
		provider = w.wrap(provider)
	}
	w.link, err = link.New(link.Config{State: w.log, Proposer: w.log, Blobs: w.blobs, Logger: w.out, Clock: w.clock,
		Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) {
			if w.dial != nil {
				w.dial(ctx)
			}
			if m := w.node(n.ID); m != nil {
				return m.Dial(ctx)
			}
			return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
		},
		Noticed: func(id muster.NodeID, n wire.Notice) {
			w.fleet.AgentNoticed(id, cloud.Notice{Kind: cloud.NoticeKind(n.Kind), At: n.At})
		},
		StartAgent: func(_ context.Context, n *state.Node) error {
			m := w.node(n.ID)
			if m == nil {
				return muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
			}
			w.mu.Lock()
			boots := w.boots
			w.mu.Unlock()
			if !boots || w.muted(n.ID) || w.isOff(n.Instance) {
				return muster.Faultf(muster.FaultTransient, "no agent there")
			}
			return m.Start()
		}})
	if err != nil {
		w.t.Fatal(err)
	}
	heard := w.heard
	if heard == nil {
		heard = w.link.Heard
	}
	w.fleet, err = fleet.New(fleet.Config{Paused: w.paused, State: reader{w.log, w.read}, Proposer: w.log, Logger: w.out, Clock: w.clock, Heard: heard, Boot: w.bootOf,
		Providers: map[muster.ProviderName]cloud.Provider{"fake": provider}})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.loops.Go(func() { w.ended("fleet", w.fleet.Run(ctx)) })
	w.loops.Go(func() { w.ended("link", w.link.Run(ctx)) })
	w.loops.Go(func() { w.schedule(ctx) })
}

func (w *world) ended(loop string, err error) {
	if err != nil {
		w.t.Errorf("%s ended with: %v", loop, err)
	}
}

func (w *world) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.cancel = nil
	w.loops.Wait()
}

// restart is a new leader after the old one was killed.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	if err := w.log.Lead(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

// schedule places what waits on the first node with room.
func (w *world) schedule(ctx context.Context) {
	for {
		snap := w.log.Latest()
		next := w.placeAll(ctx, snap)
		wait, cancel := ctx, context.CancelFunc(func() {})
		if next != 0 {
			wait, cancel = context.WithTimeout(ctx, max(next.Sub(muster.At(time.Now())), time.Millisecond))
		}
		_ = w.log.Feed().Wait(wait, snap.Index())
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

func (w *world) placeAll(ctx context.Context, snap *state.Snapshot) (next muster.Time) {
	if w.paused {
		return 0
	}
	var nodes []*state.Node
	free := map[muster.NodeID]muster.Resources{}
	snap.LiveNodes(func(n *state.Node) bool {
		if n.Schedulable() {
			nodes = append(nodes, n)
			free[n.ID] = n.Free()
		}
		return true
	})
	plan := map[muster.NodeID][]state.Placement{}
	put := func(j *state.Job, index, attempt int, avoid []muster.NodeID) {
		shape := fit.ShapeOf(j.Run)
		for _, n := range nodes {
			if !slices.Contains(avoid, n.ID) && fit.Feasible(shape, n) == "" && j.Run.Ask.Fits(free[n.ID]) {
				free[n.ID] = free[n.ID].Sub(j.Run.Ask)
				plan[n.ID] = append(plan[n.ID], state.Placement{UID: j.UID, Version: j.Version, Index: index, Attempt: attempt, Node: n.ID})
				return
			}
		}
	}
	var jobs []*state.Job
	snap.Unsettled(func(j *state.Job) bool { jobs = append(jobs, j); return true })
	slices.SortStableFunc(jobs, func(a, b *state.Job) int {
		return cmp.Or(cmp.Compare(b.Run.Priority(), a.Run.Priority()), cmp.Compare(a.Age, b.Age))
	})
	for _, j := range jobs {
		for i := j.NextIndex; i < j.Count(); i++ {
			put(j, i, j.AttemptBase+1, nil)
		}
	}
	now := muster.At(time.Now())
	snap.WakeAt(func(wake state.Wake) bool {
		if wake.At > now {
			if next == 0 || wake.At < next {
				next = wake.At
			}
			return false
		}
		snap.Retries(wake.UID).Due(now, func(m *state.Member) bool {
			put(snap.JobByUID(wake.UID), m.Index, m.Attempt+1, m.FailedNodes)
			return true
		})
		if later := snap.Retries(wake.UID).Next(now); later != nil && (next == 0 || later.RetryAt < next) {
			next = later.RetryAt
		}
		return true
	})
	p := &state.PlanCommitted{}
	for _, n := range nodes {
		p.Placements = append(p.Placements, plan[n.ID]...)
	}
	if len(p.Placements) > 0 {
		_, _, _ = w.log.Propose(ctx, p)
	}
	return next
}

func (w *world) must(f state.Fact) {
	w.t.Helper()
	if _, _, err := w.log.Propose(context.Background(), f); err != nil {
		w.t.Fatalf("%T: %v", f, err)
	}
}

// submit brings a job of count members of a script, each with so many cores.
func (w *world) submit(name string, count int, cores float64, script string, edit ...func(*api.JobSpec)) {
	w.t.Helper()
	p := 50
	s := &api.JobSpec{Name: name, Namespace: "default", Type: "batch", Count: count, Template: api.Template{Priority: &p, Command: strings.Fields(script),
		Resources: api.ResourcesSpec{CPU: cores, Memory: 1 << 20}, KillGrace: api.Duration(10 * time.Second)}, OutputLimit: 256 << 20,
		Restart: api.RestartSpec{Attempts: 1, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)}}
	for _, e := range edit {
		e(s)
	}
	w.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID("u" + name), Spec: s})
}

func (w *world) until(what string, within time.Duration, ok func(*state.Snapshot) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if !w.log.Until(ctx, ok) {
		w.t.Fatalf("after %s still not: %s\n%s", within, what, w.dump())
	}
}

func (w *world) dump() string {
	var b strings.Builder
	snap := w.log.Latest()
	snap.Nodes("", func(n *state.Node) bool {
		fmt.Fprintf(&b, "node %s %s (%s) %s (%s) %s instance %q live %d\n", n.ID, n.Stage, n.StageReason, n.Health, n.HealthReason, n.Intent, n.Instance, n.LiveAllocs)
		return true
	})
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		fmt.Fprintf(&b, "job %s %s %s (%s): %d waiting, %d placed, %d succeeded, %d failed\n", j.Key, j.Stage, j.Result, j.Reason, j.Waiting(), j.Placed, j.Succeeded, j.Failed)
		return true
	})
	snap.Allocs("", func(a *state.Alloc) bool {
		fmt.Fprintf(&b, "alloc %s %s %s %s %s output %q %s\n", a.ID, a.Node, a.Desired, a.Status, a.Outcome, a.Output.Stage, a.Output.Why)
		return true
	})
	for _, in := range w.cloud.Instances() {
		fmt.Fprintf(&b, "instance %s node %s\n", in.ID, in.Tags.Node)
	}
	return b.String()
}

// invariants: a member has one live sandbox at most, a command is started once.
func (w *world) invariants() {
	w.looking.Lock()
	defer w.looking.Unlock()
	live := map[string]muster.AllocID{}
	for _, n := range w.all() {
		for _, id := range n.Live() {
			uid, index, _, _ := id.Parse()
			member := fmt.Sprintf("%s/%d", uid, index)
			if other, ok := live[member]; ok && !w.twice[member] {
				if w.mayTwice {
					w.twice[member] = true
					continue
				}
				w.twice[member] = true
				w.t.Errorf("member %s runs twice: %s and %s", member, other, id)
			}
			live[member] = id
		}
	}
}

// ranTwice looks now: the last fact may have been before the second began.
func (w *world) ranTwice(member string) bool {
	w.invariants()
	w.looking.Lock()
	defer w.looking.Unlock()
	return w.twice[member]
}

func (w *world) startedOnce() {
	w.t.Helper()
	total := map[muster.AllocID]int{}
	for _, n := range w.all() {
		for id, k := range n.Ran() {
			total[id] += k
		}
	}
	for id, k := range total {
		if k != 1 {
			w.t.Errorf("%s was started %d times", id, k)
		}
	}
}

func ended(name string, outcome muster.JobOutcome) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool {
		j := s.JobByUID(muster.JobUID("u" + name))
		return j != nil && j.Stage == muster.JobEnded && j.Result == outcome
	}
}

func noNodes(s *state.Snapshot) bool { return s.LiveNodeCount() == 0 }

func running(name string, k int) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool { return s.JobByUID(muster.JobUID("u"+name)).Running == k }
}

// goneNodes are the nodes that ended, with their reasons.
func (w *world) goneNodes() (out []string) {
	w.log.Latest().GoneNodes(func(n *state.Node) bool { out = append(out, n.StageReason); return true })
	return out
}

func times(k int, err error) func(cloud.Intent) error {
	var mu sync.Mutex
	return func(cloud.Intent) error {
		mu.Lock()
		defer mu.Unlock()
		if k--; k >= 0 {
			return err
		}
		return nil
	}
}
