package runners

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the loop over a log in memory, with a node that starts what is wanted after a while.
type rig struct {
	t    *testing.T
	log  *memlog.Log
	r    *Runners
	took atomic.Int64 // of a start, a time.Duration
	most int          // of the runners that are gone and kept; 0: as usual

	cancel context.CancelFunc
	done   sync.WaitGroup
}

func bubble(t *testing.T, spec api.EnvironmentSpec, fn func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &rig{t: t, log: memlog.New(t, 4096)}
		g.took.Store(int64(time.Second))
		room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
		for _, f := range []state.Fact{
			&state.NodeLaunching{ID: "n", Token: "t", Offering: muster.Offering{Capacity: room}},
			&state.NodeLaunched{ID: "n", Instance: "i"}, &state.NodeJoined{ID: "n", Capacity: room},
		} {
			g.log.Must(t, f)
		}
		spec.Name = "e"
		spec.Defaults()
		g.log.Must(t, &state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: &spec})
		g.start()
		fn(g)
		g.stop()
		if err := g.log.Latest().Check(); err != nil {
			t.Error(err)
		}
	})
}

// start begins a leadership, with the node beside it.
func (g *rig) start() {
	r, err := New(Config{State: g.log, Proposer: g.log, KeepMost: g.most})
	if err != nil {
		g.t.Fatal(err)
	}
	g.r = r
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.done.Go(func() {
		if err := r.Run(ctx); err != nil {
			g.t.Error(err)
		}
	})
	g.done.Go(func() { g.node(ctx) })
	synctest.Wait()
}

func (g *rig) stop() {
	g.cancel()
	g.done.Wait()
}

// node places what is wanted at once, runs it after a while, and ends what is told to stop.
func (g *rig) node(ctx context.Context) {
	for seen := uint64(0); ctx.Err() == nil; {
		snap := g.log.Latest()
		seen = snap.Index()
		snap.Environments(func(j *state.Job) bool {
			f := &state.PlanCommitted{}
			for i := j.NextIndex; i < j.Count(); i++ {
				f.Placements = append(f.Placements, state.Placement{UID: j.UID, Version: j.Version, Index: i, Attempt: 1, Node: "n"})
			}
			if len(f.Placements) > 0 {
				_, _, _ = g.log.Propose(ctx, f)
				for _, p := range f.Placements {
					g.done.Go(func() { g.run(ctx, muster.NewAllocID(p.UID, p.Index, 1)) })
				}
			}
			return true
		})
		var ends []state.AllocUpdate
		snap.NodeAllocs("n", func(a *state.Alloc) bool {
			if a.Desired == muster.AllocStop {
				ends = append(ends, state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Output: &state.Output{Stage: state.OutputComplete}})
			}
			return true
		})
		if len(ends) > 0 {
			_, _, _ = g.log.Propose(ctx, &state.AllocsReported{Node: "n", Allocs: ends})
		}
		_ = g.log.Feed().Wait(ctx, seen)
	}
}

func (g *rig) run(ctx context.Context, id muster.AllocID) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(g.took.Load())):
		_, _, _ = g.log.Propose(ctx, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: id, Status: muster.AllocRunning}}})
	}
}

func (g *rig) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (g *rig) counts() api.RunnerCounts { return g.log.Latest().JobByUID("u").Runners() }

func (g *rig) want(warm, claimed int) {
	g.t.Helper()
	if c := g.counts(); c.Warm != warm || c.Claimed != claimed {
		g.t.Fatalf("runners are %+v, want %d warm and %d claimed", c, warm, claimed)
	}
}

func (g *rig) claim(q Request) *state.Claim {
	g.t.Helper()
	q.UID = "u"
	c, err := g.r.Claim(context.Background(), q)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *rig) held(c *state.Claim) bool {
	now := g.log.Latest().Claim(c.ID)
	return now != nil && now.State == muster.ClaimHeld
}

func warmSpec(least, most int) api.EnvironmentSpec {
	return api.EnvironmentSpec{Warm: api.WarmSpec{Min: &least, Max: most}}
}

func TestNoneIsWarm(t *testing.T) {
	bubble(t, warmSpec(0, 5), func(g *rig) {
		began := time.Now()
		if _, err := g.r.Claim(context.Background(), Request{UID: "u"}); !muster.IsKind(err, muster.FaultCapacity) {
			t.Fatalf("without a warm runner: %v", err)
		}
		if _, err := g.r.Claim(context.Background(), Request{UID: "unknown"}); !muster.IsKind(err, muster.FaultNotFound) {
			t.Fatalf("of an unknown environment: %v", err)
		}
		if took := time.Since(began); took > time.Millisecond {
			t.Fatalf("refused after %s", took)
		}
		g.took.Store(int64(time.Hour))
		if _, err := g.r.Claim(context.Background(), Request{UID: "u", Wait: 3 * time.Second}); !muster.IsKind(err, muster.FaultCapacity) || time.Since(began) != 3*time.Second {
			t.Fatalf("after %s: %v", time.Since(began), err)
		}
	})
	bubble(t, warmSpec(0, 5), func(g *rig) {
		// Scaled to zero, a claim that waits has one started.
		g.claim(Request{Wait: time.Minute})
	})
}

func TestClaimedRunnerIsReplaced(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		g.sleep(2 * time.Second)
		g.want(2, 0)
		g.claim(Request{})
		g.sleep(2 * time.Second)
		g.want(2, 1)
	})
}

func TestASuccessorWaitsForThoseWhoWereJustServed(t *testing.T) {
	bubble(t, warmSpec(10, 10), func(g *rig) {
		g.sleep(2 * time.Second)
		g.want(10, 0)
		wanted := func() (n int) {
			for _, f := range g.log.Facts() {
				if _, is := f.(*state.RunnersWanted); is {
					n++
				}
			}
			return n
		}
		before := wanted()
		starting := func(want int, when string) {
			t.Helper()
			if c := g.counts(); c.Starting != want {
				t.Fatalf("%s: %+v, want %d starting", when, c, want)
			}
		}
		for range 3 {
			g.claim(Request{})
			g.sleep(10 * time.Millisecond)
		}
		starting(0, "while most are warm")
		g.sleep(linger)
		starting(3, "after a moment")
		if n := wanted() - before; n != 1 {
			t.Fatalf("%d decisions for claims of one moment", n)
		}
		// Four of ten are left.
		for range 3 {
			g.claim(Request{})
		}
		g.sleep(debounce + time.Millisecond)
		starting(6, "when fewer than half are warm")
	})
}

func TestInactivityIsCountedFromTheLastUse(t *testing.T) {
	bubble(t, warmSpec(3, 3), func(g *rig) {
		g.sleep(2 * time.Second)
		nothing, never, used := g.claim(Request{Idle: time.Second}), g.claim(Request{}), g.claim(Request{Idle: time.Second})
		facts := len(g.log.Facts())
		for range 20 {
			g.sleep(500 * time.Millisecond)
			g.r.Use(used.ID)()
		}
		if g.held(nothing) || !g.held(never) || !g.held(used) {
			t.Fatalf("held: with nothing done %v, without a time-out %v, with a use each 0.5 s %v", g.held(nothing), g.held(never), g.held(used))
		}
		gone := g.log.Latest().Claim(nothing.ID)
		if after := gone.Ended.Sub(gone.Made); after < time.Second || after > 2*time.Second {
			t.Fatalf("gone after %s", after)
		}
		// A use is written down every five seconds at most.
		touched := 0
		for _, f := range g.log.Facts()[facts:] {
			if _, is := f.(*state.ClaimsTouched); is {
				touched++
			}
		}
		if touched > 2 {
			t.Errorf("20 uses in 10 s were written down %d times", touched)
		}
		end := g.r.Use(used.ID) // something that goes on
		g.sleep(10 * time.Second)
		if !g.held(used) {
			t.Fatal("expired while it was used")
		}
		end()
		g.sleep(2 * time.Second)
		if g.held(used) {
			t.Fatal("still held after its last use")
		}
	})
}

func TestANewLeaderStartsIdleTimesAfresh(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		c := g.claim(Request{Idle: 10 * time.Second})
		g.sleep(9 * time.Second)
		g.stop()
		time.Sleep(5 * time.Second)
		g.start()
		g.sleep(9 * time.Second)
		if !g.held(c) {
			t.Fatal("the idle time of before counted")
		}
		g.sleep(2 * time.Second)
		if g.held(c) {
			t.Fatal("it never expired")
		}
	})
}

func TestClaimWithoutAnAnswerExpires(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		// The server dies between the commit and the answer.
		g.log.After = func(_ context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnerClaimed); is {
				return muster.Faultf(muster.FaultUnavailable, "killed")
			}
			return nil
		}
		if _, err := g.r.Claim(context.Background(), Request{UID: "u", TTL: time.Minute}); err == nil {
			t.Fatal("the claim was answered")
		}
		g.log.After = nil
		g.stop()
		g.start()
		g.want(0, 1)
		g.sleep(2 * time.Second)
		other := g.claim(Request{})
		g.sleep(time.Minute)
		var lost *state.Claim
		g.log.Latest().Claims("", func(c *state.Claim) bool {
			if c.ID != other.ID {
				lost = c
			}
			return true
		})
		if lost == nil || lost.State != muster.ClaimExpired || lost.Runner == other.Runner {
			t.Fatalf("the claim that nobody heard of: %+v", lost)
		}
	})
}

func TestAClaimIsTheSameByItsKey(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		g.sleep(2 * time.Second)
		var wg sync.WaitGroup
		ids := make([]muster.ClaimID, 4)
		for i := range ids {
			wg.Go(func() { ids[i] = g.claim(Request{Key: "k", Digest: "d", Wait: time.Minute}).ID })
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("one key, claims %v", ids)
			}
		}
		g.sleep(2 * time.Second)
		g.want(2, 1)
	})
}

// An idempotency key is the environment's: a request of another namespace with the same key and body gets a runner and a claim
// of its own. The claim's secret is derived from its id.
func TestKeysOfOtherNamespaces(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		spec := warmSpec(2, 2)
		spec.Name, spec.Namespace = "e", "other"
		spec.Defaults()
		g.log.Must(t, &state.EnvironmentSet{Key: muster.EnvironmentKey("other", "e"), UID: "u2", Spec: &spec})
		g.sleep(4 * time.Second)
		first := g.claim(Request{Key: "k", Digest: "d", Wait: time.Minute})
		other, err := g.r.Claim(context.Background(), Request{UID: "u2", Key: "k", Digest: "d", Wait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if other.ID == first.ID || other.Runner == first.Runner || other.UID != "u2" {
			t.Errorf("claim %s of %s on %s, and %s of %s on %s", first.ID, first.UID, first.Runner, other.ID, other.UID, other.Runner)
		}
	})
}

func TestAClientThatLeftHoldsNothing(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		g.log.Before = func(_ context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnerClaimed); is {
				cancel()
			}
			return nil
		}
		if _, err := g.r.Claim(ctx, Request{UID: "u"}); err == nil {
			t.Fatal("a client that left was answered")
		}
		g.sleep(2 * time.Second)
		g.want(1, 0)
	})
}

func TestStartingRunnersAreNotClaimed(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		if c := g.counts(); c.Starting != 1 {
			t.Fatalf("runners are %+v", c)
		}
		g.stop()
		g.start()
		if _, err := g.r.Claim(context.Background(), Request{UID: "u"}); !muster.IsKind(err, muster.FaultCapacity) {
			t.Fatalf("a runner that starts was claimed: %v", err)
		}
		// The node that started it in this test is gone with the leadership.
		g.log.Must(t, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: "u-0-1", Status: muster.AllocRunning}}})
		synctest.Wait()
		g.claim(Request{})
	})
}

func TestStockRefillsAfterANodeIsLost(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		g.sleep(2 * time.Second)
		c := g.claim(Request{})
		g.sleep(2 * time.Second)
		room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
		g.log.Must(t, &state.NodeTerminating{ID: "n"})
		g.log.Must(t, &state.NodeGone{ID: "n", Reason: "pulled"})
		g.log.Must(t, &state.NodesPurged{IDs: []muster.NodeID{"n"}})
		for _, f := range []state.Fact{
			&state.NodeLaunching{ID: "n", Token: "t2", Offering: muster.Offering{Capacity: room}},
			&state.NodeLaunched{ID: "n", Instance: "i2"}, &state.NodeJoined{ID: "n", Capacity: room},
		} {
			g.log.Must(t, f)
		}
		g.sleep(5 * time.Second)
		g.want(2, 0)
		if now := g.log.Latest().Claim(c.ID); now.State != muster.ClaimLost || now.Reason == "" {
			t.Fatalf("the claim is %s because %q", now.State, now.Reason)
		}
	})
}

func TestRunnersOutOfContactAreClaimedLast(t *testing.T) {
	p := newPool("u")
	for i, node := range []muster.NodeID{"away", "here"} {
		p.add(&state.Alloc{ID: muster.NewAllocID("u", i, 1), Node: node, Version: 1})
	}
	here := func(id muster.NodeID) standing {
		return standingOf(&state.Node{ID: id, Stage: muster.NodeServing}, func(id muster.NodeID) bool { return id == "here" })
	}
	if id := p.pop(here); id != "u-1-1" {
		t.Fatalf("the first was %s", id)
	}
	if id := p.pop(here); id != "u-0-1" {
		t.Fatalf("then came %q: claims go on while no node is in contact", id)
	}
	if id := p.pop(here); id != "" {
		t.Fatalf("then came %q", id)
	}
}

// One that nobody is given, at the head of the stock, does not have all that came and went after it kept.
func TestWhatIsGoneFromTheStockIsForgotten(t *testing.T) {
	p := newPool("u")
	runner := func(id muster.AllocID, node muster.NodeID) *state.Alloc {
		return &state.Alloc{ID: id, Node: node, Version: 1, Runner: muster.RunnerWarm}
	}
	p.add(runner("far", "n1"))
	reached := func(id muster.NodeID) standing {
		return standingOf(&state.Node{ID: id, Stage: muster.NodeServing}, func(id muster.NodeID) bool { return id == "n2" })
	}
	for i := range 1000 {
		id := muster.AllocID(fmt.Sprint("r", i))
		p.add(runner(id, "n2"))
		if got := p.pop(reached); got != id {
			t.Fatalf("%s instead of %s", got, id)
		}
		gone := *p.warm[id]
		gone.Runner = muster.RunnerGone
		p.see(runner(id, "n2"), &gone, 0, &Stats{})
	}
	if len(p.order) > 20 || len(p.warm) != 1 || p.pop(reached) != "far" {
		t.Errorf("%d are kept of %d", len(p.order), len(p.warm))
	}
}

// D2: nobody is given a runner on a broken node, and one on a node that drains only where there is no other.
func TestRunnersOnBadNodes(t *testing.T) {
	p := newPool("u")
	nodes := map[muster.NodeID]*state.Node{
		"broken": {ID: "broken", Stage: muster.NodeServing, Health: muster.NodeBroken},
		"drains": {ID: "drains", Stage: muster.NodeDraining}, "to drain": {ID: "to drain", Stage: muster.NodeServing, Intent: muster.NodeDrain},
		"silent": {ID: "silent", Stage: muster.NodeServing, Health: muster.NodeLost}, "good": {ID: "good", Stage: muster.NodeServing},
	}
	for i, id := range []muster.NodeID{"gone", "broken", "drains", "to drain", "silent", "good"} {
		p.add(&state.Alloc{ID: muster.NewAllocID("u", i, 1), Node: id, Version: 1})
	}
	at := func(id muster.NodeID) standing {
		return standingOf(nodes[id], func(id muster.NodeID) bool { return id != "silent" })
	}
	for _, want := range []muster.AllocID{"u-5-1", "u-4-1", "u-2-1", "u-3-1", "", ""} {
		if id := p.pop(at); id != want {
			t.Errorf("%q was handed out, want %q", id, want)
		}
	}
}

// A runner whose agent never says that it is ready, nor that it is not, does not stay starting.
func TestReadinessThatNobodyHearsOf(t *testing.T) {
	s := warmSpec(2, 2)
	s.Ready = &api.ReadySpec{Command: []string{"true"}, GiveUp: api.Duration(time.Minute)}
	bubble(t, s, func(g *rig) {
		g.sleep(5 * time.Second)
		env := func() *state.Environment { return g.log.Latest().JobByUID("u").Env }
		ready := func(index int) {
			at := muster.At(time.Now())
			g.log.Must(t, &state.AllocsReported{Node: "n", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID("u", index, 1), Status: muster.AllocRunning, Ready: at}}})
		}
		if c := g.counts(); c.Starting != 2 || c.Warm != 0 {
			t.Fatalf("runners are %+v", c)
		}
		g.sleep(50 * time.Second)
		ready(0) // in time
		// Its own limits, and what an agent may take besides, are over after more than a minute and a half.
		g.sleep(35 * time.Second)
		if c := g.counts(); c.Starting != 1 || c.Warm != 1 || c.Gone != 0 || env().Failures != 0 {
			t.Fatalf("ended before its time: %+v, %+v", c, env())
		}
		g.sleep(10 * time.Second)
		if e := env(); e.Failures != 1 || !strings.Contains(e.Failure, "not ready within 1m3") || !strings.Contains(e.Failure, "node n") {
			t.Fatalf("%+v", e)
		}
		var gone *state.Alloc
		g.log.Latest().JobAllocs("u", 0, func(a *state.Alloc) bool {
			if a.Index == 1 {
				gone = a
			}
			return true
		})
		if gone == nil || gone.Runner != muster.RunnerGone || gone.StopReason != muster.StopUnready || !strings.Contains(gone.StopCause, "not ready within") {
			t.Fatalf("%+v", gone)
		}
		// Another one is tried after the back-off.
		g.sleep(5 * time.Second)
		if c := g.counts(); c.Created != 3 || c.Starting != 1 || c.Warm != 1 || c.Gone != 1 {
			t.Fatalf("runners are %+v", c)
		}
		ready(2)
		g.sleep(10 * time.Minute)
		g.want(2, 0)
	})
}

// While its node is out of contact a runner may be ready, and nobody hears of it.
func TestReadinessOfANodeOutOfContact(t *testing.T) {
	s := warmSpec(1, 1)
	s.Ready = &api.ReadySpec{Command: []string{"true"}, GiveUp: api.Duration(time.Minute)}
	bubble(t, s, func(g *rig) {
		g.sleep(5 * time.Second)
		g.log.Must(t, &state.NodeHealthChanged{ID: "n", Health: muster.NodeLost, Reason: "a test"})
		g.sleep(30 * time.Minute)
		if c := g.counts(); c.Starting != 1 || g.log.Latest().JobByUID("u").Env.Failures != 0 {
			t.Fatalf("runners are %+v", c)
		}
		g.log.Must(t, &state.NodeHealthChanged{ID: "n", Health: muster.NodeGood})
		g.sleep(time.Minute)
		if c := g.counts(); c.Starting != 1 {
			t.Fatalf("as soon as the node was back runners were %+v", c)
		}
		g.sleep(time.Minute)
		if e := g.log.Latest().JobByUID("u").Env; e.Failures == 0 {
			t.Fatalf("%+v", e)
		}
	})
}

func TestTooFewWarmForTooLongIsAnAlert(t *testing.T) {
	s := warmSpec(4, 4)
	s.Alert = api.AlertSpec{Below: 0.5, For: api.Duration(30 * time.Second)}
	bubble(t, s, func(g *rig) {
		g.sleep(5 * time.Second)
		g.took.Store(int64(time.Minute))
		for range 4 {
			g.claim(Request{})
		}
		g.sleep(20 * time.Second)
		if at := g.log.Latest().JobByUID("u").Env.Alert; at != 0 {
			t.Fatal("alerted before its time")
		}
		g.sleep(15 * time.Second)
		if at := g.log.Latest().JobByUID("u").Env.Alert; at == 0 {
			t.Fatal("none of four is warm for 35 s, and there is no alert")
		}
		g.sleep(time.Minute)
		if e := g.log.Latest().JobByUID("u").Env; e.Alert != 0 || e.Warm < 4 {
			t.Fatalf("%d are warm, alert %d", e.Warm, e.Alert)
		}
	})
}

func TestAlertUnderSteadyChurn(t *testing.T) {
	s := warmSpec(4, 4)
	s.Alert = api.AlertSpec{Below: 0.5, For: api.Duration(30 * time.Second)}
	bubble(t, s, func(g *rig) {
		g.sleep(5 * time.Second)
		g.want(4, 0)
		// One is claimed each second, if there is one, and given back after three: starts are too slow for that.
		g.took.Store(int64(20 * time.Second))
		var churn sync.WaitGroup
		stop, got := make(chan struct{}), 0
		churn.Go(func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				c, err := g.r.Claim(context.Background(), Request{UID: "u"})
				if err != nil {
					continue
				}
				got++
				churn.Go(func() {
					time.Sleep(3 * time.Second)
					if _, _, err := g.log.Propose(context.Background(), &state.ClaimReleased{Claim: c.ID}); err != nil {
						t.Error(err)
					}
				})
			}
		})
		g.sleep(25 * time.Second)
		if at := g.log.Latest().JobByUID("u").Env.Alert; at != 0 {
			t.Error("alerted before its time")
		}
		g.sleep(20 * time.Second)
		slow := got
		if e := g.log.Latest().JobByUID("u").Env; e.Alert == 0 || e.Warm >= 2 {
			t.Errorf("under churn for 45 s %d are warm, alert %d", e.Warm, e.Alert)
		}
		if slow < 8 {
			t.Errorf("only %d could be claimed: it did not refill meanwhile", slow)
		}
		// It refills in spite of the churn as soon as starts allow.
		g.took.Store(int64(500 * time.Millisecond))
		g.sleep(40 * time.Second)
		if e := g.log.Latest().JobByUID("u").Env; e.Alert != 0 || e.Warm < 3 {
			t.Errorf("with quick starts %d are warm, alert %d", e.Warm, e.Alert)
		}
		if got < slow+15 {
			t.Errorf("%d were claimed, %d before", got, slow)
		}
		close(stop)
		churn.Wait()
	})
}

func TestBurstIsServedInOrder(t *testing.T) {
	bubble(t, warmSpec(50, 50), func(g *rig) {
		g.sleep(3 * time.Second)
		g.want(50, 0)
		began := time.Now()
		var mu sync.Mutex
		at := make([]time.Duration, 200)
		runners := map[muster.AllocID]bool{}
		var wg sync.WaitGroup
		for i := range at {
			wg.Go(func() {
				c := g.claim(Request{Wait: time.Minute})
				mu.Lock()
				defer mu.Unlock()
				if runners[c.Runner] {
					t.Errorf("runner %s was given to two", c.Runner)
				}
				runners[c.Runner], at[i] = true, time.Since(began)
			})
			synctest.Wait() // so that their order is known
		}
		wg.Wait()
		atOnce := 0
		for i, d := range at {
			if d == 0 {
				atOnce++
			}
			if i > 0 && d < at[i-1] {
				t.Fatalf("claim %d was served after %s, the one before after %s", i, d, at[i-1])
			}
		}
		if atOnce != 50 {
			t.Errorf("%d of 200 were served at once, 50 were warm", atOnce)
		}
	})
}

// TestClaimsUnderCrashes: many clients, servers that die at any moment, answers that are lost. No runner is ever given to two.
func TestClaimsUnderCrashes(t *testing.T) {
	bubble(t, warmSpec(5, 20), func(g *rig) {
		rng := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		g.log.After = func(_ context.Context, f state.Fact) error {
			mu.Lock()
			defer mu.Unlock()
			if _, is := f.(*state.RunnerClaimed); is && rng.IntN(5) == 0 {
				return muster.Faultf(muster.FaultAmbiguous, "the answer was lost")
			}
			return nil
		}
		owner := map[muster.AllocID]string{}
		for round := range 20 {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					who := fmt.Sprintf("%d/%d", round, i)
					c, err := g.r.Claim(context.Background(), Request{UID: "u", TTL: time.Minute, Wait: time.Second, Key: who, Digest: who})
					if err != nil {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					if other := owner[c.Runner]; other != "" && other != who {
						t.Errorf("runner %s was given to %s and to %s", c.Runner, other, who)
					}
					owner[c.Runner] = who
				})
			}
			if round%4 == 3 {
				g.stop()
				wg.Wait()
				g.start()
				continue
			}
			wg.Wait()
			g.sleep(time.Duration(round) * 100 * time.Millisecond)
		}
		if len(owner) < 20 {
			t.Fatalf("only %d claims were answered", len(owner))
		}
	})
}
