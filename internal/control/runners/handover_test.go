package runners

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// handOver is another leader that takes over at once.
func (g *rig) handOver() {
	g.t.Helper()
	g.stop()
	g.start()
}

// stateOf is the state of a claim in the log.
func (g *rig) stateOf(id muster.ClaimID) muster.ClaimState { return g.log.Latest().Claim(id).State }

// A claim in use does not expire however often the leader changes, with the last use unrecorded each
// time; it expires once nobody uses it.
func TestClaimInUseOutlivesTheLeader(t *testing.T) {
	bubble(t, warmSpec(1, 10), func(g *rig) {
		g.sleep(5 * time.Second)
		idle := time.Minute
		c := g.claim(Request{Idle: idle})
		for range 40 {
			g.r.Use(c.ID)() // a short request
			g.sleep(time.Second)
			g.handOver()
			g.sleep(20 * time.Second)
			g.r.Use(c.ID)()
			g.sleep(30 * time.Second)
			if s := g.stateOf(c.ID); s != muster.ClaimHeld {
				t.Fatalf("the claim is %s", s)
			}
		}
		g.sleep(idle + 30*time.Second)
		if s := g.stateOf(c.ID); s != muster.ClaimExpired {
			t.Errorf("the claim that nobody uses is %s", s)
		}
	})
}

// A claim with a request under way is recorded as used now and then, and so is alive for the next
// leader, for which the request has ended.
func TestLongRequestIsRecorded(t *testing.T) {
	bubble(t, warmSpec(1, 10), func(g *rig) {
		g.sleep(5 * time.Second)
		c := g.claim(Request{Idle: time.Minute})
		g.r.Use(c.ID) // it never ends
		g.sleep(10 * time.Minute)
		if behind := time.Since(g.log.Latest().Claim(c.ID).Used.Std()); behind > 30*time.Second {
			t.Errorf("the log is %s behind", behind)
		}
		g.handOver()
		g.sleep(30 * time.Second)
		if s := g.stateOf(c.ID); s != muster.ClaimHeld {
			t.Fatalf("the claim is %s", s)
		}
		g.sleep(2 * time.Minute)
		if s := g.stateOf(c.ID); s != muster.ClaimExpired {
			t.Errorf("nobody has used it since the hand-over, and it is %s", s)
		}
	})
}

// An idle claim expires although no leader leads for as long as its idle time.
func TestIdleClaimExpiresOverHandOvers(t *testing.T) {
	bubble(t, warmSpec(1, 10), func(g *rig) {
		g.sleep(5 * time.Second)
		idle := 10 * time.Minute
		c := g.claim(Request{Idle: idle})
		began := time.Now()
		for g.stateOf(c.ID) == muster.ClaimHeld && time.Since(began) < time.Hour {
			g.sleep(2 * time.Minute)
			g.handOver()
		}
		if took := time.Since(began); g.stateOf(c.ID) != muster.ClaimExpired || took < idle || took > 20*time.Minute {
			t.Errorf("after %s the claim is %s", took, g.stateOf(c.ID))
		}
	})
}

// When nobody led at the time at which a claim was due, its holder could not use it: it gets its idle
// time again, and no more than that over further hand-overs.
func TestClaimThatWasDueWithoutALeader(t *testing.T) {
	bubble(t, warmSpec(1, 10), func(g *rig) {
		g.sleep(5 * time.Second)
		idle := 10 * time.Minute
		c := g.claim(Request{Idle: idle})
		g.stop()
		time.Sleep(time.Hour)
		g.start()
		g.sleep(9 * time.Minute)
		if s := g.stateOf(c.ID); s != muster.ClaimHeld {
			t.Fatalf("9 minutes after the server came back the claim is %s", s)
		}
		for range 6 {
			g.handOver()
			g.sleep(time.Minute)
		}
		if s := g.stateOf(c.ID); s != muster.ClaimExpired {
			t.Errorf("15 minutes after the server came back the claim is %s", s)
		}
	})
}

// Thousands of claims in use cost few facts.
func TestUsesAreRecordedTogether(t *testing.T) {
	bubble(t, warmSpec(100, 100), func(g *rig) {
		g.sleep(20 * time.Second)
		for range 100 {
			g.r.Use(g.claim(Request{Idle: time.Minute}).ID)
		}
		g.sleep(10 * time.Second)
		before := g.log.Latest().Index()
		g.sleep(time.Minute)
		if facts := g.log.Latest().Index() - before; facts > 20 {
			t.Errorf("%d facts in a minute", facts)
		}
	})
}

// A claim that waits when the leader goes is told to come again, and why.
func TestWaitingClaimIsToldToRepeat(t *testing.T) {
	bubble(t, warmSpec(0, 10), func(g *rig) {
		g.took.Store(int64(time.Hour))
		got := make(chan error, 1)
		go func() {
			_, err := g.r.Claim(context.Background(), Request{UID: "u", Wait: time.Hour})
			got <- err
		}()
		g.sleep(time.Second)
		g.stop()
		var fault *muster.Fault
		if err := <-got; !errors.As(err, &fault) || fault.Kind != muster.FaultUnavailable || fault.After <= 0 {
			t.Errorf("it is told %v", err)
		}
		g.start()
	})
	bubble(t, warmSpec(0, 10), func(g *rig) { // with its environment it is over for good
		g.took.Store(int64(time.Hour))
		got := make(chan error, 1)
		go func() {
			_, err := g.r.Claim(context.Background(), Request{UID: "u", Wait: time.Hour})
			got <- err
		}()
		g.sleep(time.Second)
		g.log.Must(t, &state.EnvironmentDeleted{Key: muster.EnvironmentKey("default", "e")})
		if err := <-got; !muster.IsKind(err, muster.FaultNotFound) {
			t.Errorf("it is told %v", err)
		}
	})
}

// The stock that bursts of claims have raised survives changes of the leader, and falls when the
// bursts are long over, although none of the leaders has seen them.
func TestStockSurvivesHandOvers(t *testing.T) {
	spec := warmSpec(1, 10)
	spec.Warm.Max = 50
	spec.Warm.Quiet = api.Duration(time.Hour)
	bubble(t, spec, func(g *rig) {
		g.log.Must(t, &state.FormatRaised{Format: state.FormatNewest})
		g.sleep(5 * time.Second)
		for range 3 {
			for range 8 {
				g.claim(Request{Wait: time.Minute, TTL: time.Hour})
			}
			g.sleep(10 * time.Second)
		}
		stock := func() int { return g.log.Latest().JobByUID("u").Env.Stock }
		was := stock()
		if was < 4 {
			t.Fatalf("the stock is %d after bursts of 8", was)
		}
		for i := range 8 {
			g.handOver()
			g.sleep(time.Minute)
			if n := stock(); n != was {
				t.Fatalf("after %d hand-overs the stock is %d, was %d", i+1, n, was)
			}
		}
		for range 6 {
			g.handOver()
			g.sleep(time.Minute)
		}
		if n := stock(); n != 1 {
			t.Errorf("14 minutes after the last burst the stock is %d", n)
		}
	})
}

// BenchmarkUses has requests of many clients note their uses.
func BenchmarkUses(b *testing.B) {
	r, err := New(Config{State: benchState{}, Proposer: nobody{}})
	if err != nil {
		b.Fatal(err)
	}
	r.uses["c"] = &use{}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Use("c")()
		}
	})
}

type benchState struct{}

func (benchState) Latest() *state.Snapshot { return nil }
func (benchState) Feed() *state.Feed       { return nil }

type nobody struct{}

func (nobody) Propose(context.Context, state.Fact) (uint64, any, error) { return 0, nil, nil }
