package link

import (
	"context"
	"fmt"
	"log/slog"
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
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a link over a log in memory, with nodes in memory.
type rig struct {
	t      *testing.T
	log    *linktest.Ledger
	blobs  *linktest.Blobs
	link   *Link
	config Config

	mu    sync.Mutex
	nodes map[muster.NodeID]*linktest.Node

	cancel context.CancelFunc
	done   chan error
}

// inBubble runs a test with a rig in a bubble and takes everything down after it.
func inBubble(t *testing.T, fn func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log, err := linktest.NewLedger("c1")
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{t: t, log: log, blobs: &linktest.Blobs{}, nodes: map[muster.NodeID]*linktest.Node{}}
		logger := slog.New(slog.DiscardHandler)
		if os.Getenv("MUSTER_TEST_LOG") != "" {
			logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		r.config = Config{
			State: log, Proposer: log, Blobs: r.blobs, Logger: logger,
			Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) { return r.node(n.ID).Dial(ctx) },
			StartAgent: func(_ context.Context, n *state.Node) error {
				return r.node(n.ID).Start()
			},
		}
		r.must(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: "fake", Max: 10, MaxLaunching: 10, IdleTimeout: 60e6, BootTimeout: 300e6, Grace: 60e6}}})
		defer func() {
			r.stop()
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, n := range r.nodes {
				n.Destroy()
			}
		}()
		fn(r)
	})
}

func (r *rig) node(id muster.NodeID) *linktest.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[id]
}

func (r *rig) must(f state.Fact) any {
	r.t.Helper()
	_, v, err := r.log.Propose(context.Background(), f)
	if err != nil {
		r.t.Fatalf("%T: %v", f, err)
	}
	return v
}

// start begins a link, as a leader would.
func (r *rig) start() {
	r.t.Helper()
	l, err := New(r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.link, r.cancel, r.done = l, cancel, make(chan error, 1)
	go func() { r.done <- l.Run(ctx) }()
}

// stop ends it, as at the end of a leadership.
func (r *rig) stop() {
	r.t.Helper()
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.cancel = nil
	if err := <-r.done; err != nil {
		r.t.Errorf("link ended with: %v", err)
	}
}

// restart is another leader.
func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	if err := r.log.Lead(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.start()
}

// boot makes a node with a launched instance whose agent runs.
func (r *rig) boot(id muster.NodeID, cores int, change ...func(*linktest.Config)) *linktest.Node {
	r.t.Helper()
	room := muster.Resources{CPU: muster.MilliCPU(cores) * 1000, Memory: 64 * muster.GiB}
	c := linktest.Config{ID: id, Capacity: room, Attributes: map[string]string{"os": "linux"}}
	for _, fn := range change {
		fn(&c)
	}
	n := linktest.NewNode(c)
	r.mu.Lock()
	r.nodes[id] = n
	r.mu.Unlock()
	if err := n.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.must(&state.NodeLaunching{ID: id, Token: muster.Token("t-" + id), Pool: "p",
		Offering: muster.Offering{Provider: "fake", Name: "o", Market: muster.OnDemand, Capacity: room, Available: true}})
	r.must(&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)})
	return n
}

func spec(command string, edit ...func(*api.JobSpec)) *api.JobSpec {
	p := 50
	s := &api.JobSpec{
		Name: "j", Namespace: "default", Type: "batch", Count: 1, Template: api.Template{Priority: &p, Command: strings.Fields(command),
			Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}, KillGrace: api.Duration(10 * time.Second)}, OutputLimit: 256 << 20,
		Restart: api.RestartSpec{Attempts: 1, Backoff: api.Duration(time.Second), BackoffMax: api.Duration(time.Minute), GiveUp: api.Duration(time.Hour)},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

func count(n int) func(*api.JobSpec) { return func(s *api.JobSpec) { s.Count = n } }

// submit brings a job; its uid is "u" and its name.
func (r *rig) submit(name string, s *api.JobSpec) {
	r.t.Helper()
	s.Name = name
	r.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID("u" + name), Spec: s})
}

// place puts the next attempt of a job's members 0..count-1 on a node.
func (r *rig) place(name string, node muster.NodeID) []muster.AllocID {
	r.t.Helper()
	uid := muster.JobUID("u" + name)
	snap := r.log.Latest()
	j := snap.JobByUID(uid)
	plan := &state.PlanCommitted{}
	var ids []muster.AllocID
	for i := range j.Count() {
		attempt := j.AttemptBase + 1
		if m := snap.Member(uid, i); m != nil {
			if m.Status != muster.MemberWaiting {
				continue
			}
			attempt = m.Attempt + 1
		}
		plan.Placements = append(plan.Placements, state.Placement{UID: uid, Version: j.Version, Index: i, Attempt: attempt, Node: node})
		ids = append(ids, muster.NewAllocID(uid, i, attempt))
	}
	if res := r.must(plan).(*state.PlanResult); len(res.Refused) > 0 {
		r.t.Fatalf("placement refused: %v", res.Refused)
	}
	return ids
}

// until waits for the state, or fails with what was waited for.
func (r *rig) until(what string, within time.Duration, ok func(*state.Snapshot) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if !r.log.Until(ctx, ok) {
		r.t.Fatalf("after %s still not: %s\n%s", within, what, r.dump())
	}
}

func (r *rig) dump() string {
	var b strings.Builder
	snap := r.log.Latest()
	snap.Nodes("", func(n *state.Node) bool {
		fmt.Fprintf(&b, "node %s %s %s (%s) %s instance %s live %d\n", n.ID, n.Stage, n.Health, n.HealthReason, n.Intent, n.Instance, n.LiveAllocs)
		return true
	})
	snap.Allocs("", func(a *state.Alloc) bool {
		fmt.Fprintf(&b, "alloc %s %s %s %s %s output %q %s", a.ID, a.Node, a.Desired, a.Status, a.Outcome, a.Output.Stage, a.Output.Why)
		if a.Failure != nil {
			fmt.Fprintf(&b, " (%s: %s)", a.Failure.Reason, a.Failure.Message)
		}
		fmt.Fprintln(&b)
		return true
	})
	return b.String()
}

func serving(id muster.NodeID) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool { n := s.Node(id); return n != nil && n.Schedulable() }
}

func jobEnded(name string) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool {
		j := s.JobByUID(muster.JobUID("u" + name))
		return j != nil && j.Stage == muster.JobEnded
	}
}

func allocIs(id muster.AllocID, status muster.AllocStatus) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool { a := s.Alloc(id); return a != nil && a.Status == status }
}

func allAre(ids []muster.AllocID, status muster.AllocStatus) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool {
		return !slices.ContainsFunc(ids, func(id muster.AllocID) bool { return !allocIs(id, status)(s) })
	}
}

func outputIs(id muster.AllocID, stage state.OutputStage) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool {
		a := s.Alloc(id)
		return a != nil && !a.Live() && a.Output.Stage == stage
	}
}

// stored is what the blob store has of a stream.
func (r *rig) stored(id muster.AllocID, stream string) string {
	a := r.log.Latest().Alloc(id)
	return string(r.blobs.Whole(blob.StreamPrefix("default", a.UID, id, stream)))
}

// check fails if a command was started twice or runs where the log has ended it.
func (r *rig) check() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	total := map[muster.AllocID]int{}
	for _, n := range r.nodes {
		for id, k := range n.Ran() {
			total[id] += k
		}
	}
	for id, k := range total {
		if k > 1 {
			r.t.Errorf("%s was started %d times", id, k)
		}
	}
}
