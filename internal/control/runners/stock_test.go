package runners

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/state"
)

// D16: an environment whose facts wait for the disk holds up no claim whose time is over.
func TestClaimsExpireWhileStockWaitsForTheLog(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		g.sleep(2 * time.Second)
		stuck := make(chan struct{})
		defer close(stuck)
		g.log.Before = func(ctx context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnersWanted); is {
				select {
				case <-stuck:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}
		c := g.claim(Request{TTL: time.Second})
		g.sleep(1100 * time.Millisecond)
		if row := g.log.Latest().Claim(c.ID); row.State != muster.ClaimExpired {
			t.Errorf("a claim of 1s is %s after 1.1s", row.State)
		}
	})
}

// Runners that are gone are kept for a while, no more than so many, the newest, also by the next leader and after the log refused.
func TestRunnersThatAreGoneAreForgotten(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		gone := func() (ids []muster.AllocID) {
			g.log.Latest().JobAllocs("u", 0, func(a *state.Alloc) bool {
				if !a.Live() {
					ids = append(ids, a.ID)
				}
				return true
			})
			return ids
		}
		use := func(n int) (last muster.AllocID) {
			for range n {
				c := g.claim(Request{Wait: time.Minute})
				g.log.Must(t, &state.ClaimReleased{Claim: c.ID})
				last = c.Runner
				g.sleep(time.Second)
			}
			return last
		}
		use(8)
		g.sleep(resync)
		if n := len(gone()); n != 8 {
			t.Fatalf("%d of 8 are kept", n)
		}
		g.stop()
		var away atomic.Bool
		g.log.Before = func(_ context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnersPurged); is && away.Load() {
				return muster.Faultf(muster.FaultUnavailable, "the log is away")
			}
			return nil
		}
		g.most = 5
		g.start()
		g.sleep(resync)
		if n := len(gone()); n != 5 {
			t.Fatalf("%d are kept by the next leader, at most 5", n)
		}
		away.Store(true)
		last := use(3)
		g.sleep(resync)
		if n := len(gone()); n != 8 {
			t.Fatalf("%d are there, and the log refused to forget any of 8", n)
		}
		away.Store(false)
		g.sleep(2 * resync)
		if ids := gone(); len(ids) != 5 || !slices.Contains(ids, last) {
			t.Fatalf("%v are kept, want the newest 5, %s among them", ids, last)
		}
		g.sleep(10*time.Minute + resync)
		if ids := gone(); len(ids) > 0 {
			t.Fatalf("%v are kept for more than ten minutes", ids)
		}
	})
}

// many makes so many environments beside that of a rig.
func (g *rig) many(n int) {
	for i := range n {
		spec := warmSpec(1, 1)
		spec.Name = fmt.Sprint("e", i)
		spec.Defaults()
		g.log.Must(g.t, &state.EnvironmentSet{Key: muster.EnvironmentKey("default", spec.Name), UID: muster.JobUID(fmt.Sprint("u", i)), Spec: &spec})
	}
}

// D16: what many environments want is written down together: the log commits at once what waits at once.
func TestManyEnvironmentsAreStockedTogether(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		var most, now atomic.Int64
		g.log.Before = func(ctx context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnersWanted); is {
				n := now.Add(1)
				defer now.Add(-1)
				most.Store(max(most.Load(), n))
				time.Sleep(2 * time.Millisecond) // a write of the disk
			}
			return nil
		}
		g.many(3000)
		g.sleep(500 * time.Millisecond)
		for i := range 3000 {
			if j := g.log.Latest().JobByUID(muster.JobUID(fmt.Sprint("u", i))); j.Env.Stock != 1 {
				t.Fatalf("environment %d is not decided about after half a second: %+v", i, j.Env)
			}
		}
		if n := most.Load(); n < 100 || n > together {
			t.Errorf("up to %d facts were on their way at once, want up to %d", n, together)
		}
	})
}

// A release that the log does not take is tried again: nobody else can release the claim.
func TestClaimOfClientThatLeftIsReleasedOnceTheLogTakesIt(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		ctx, cancel := context.WithCancel(context.Background())
		refused := 0
		g.log.Before = func(_ context.Context, f state.Fact) error {
			switch f.(type) {
			case *state.RunnerClaimed:
				cancel()
			case *state.ClaimReleased:
				if refused++; refused <= 3 {
					return muster.Faultf(muster.FaultUnavailable, "the log does not take it")
				}
			}
			return nil
		}
		if _, err := g.r.Claim(ctx, Request{UID: "u"}); !errors.Is(err, context.Canceled) {
			t.Fatalf("a client that left was answered: %v", err)
		}
		g.sleep(6 * time.Second)
		if refused < 4 {
			t.Fatalf("released %d times", refused)
		}
		g.want(1, 0)
		if n := len(g.r.left); n != 0 {
			t.Errorf("%d claims are still to be released", n)
		}
	})
}

// The leader ends before it could release the claim. The next one knows nothing of that; the claim ends by its own time-outs.
func TestClaimOfClientThatLeftExpiresUnderTheNextLeader(t *testing.T) {
	for name, q := range map[string]Request{"ttl": {TTL: time.Minute}, "idle": {Idle: time.Minute}, "both": {TTL: time.Hour, Idle: time.Minute}} {
		bubble(t, warmSpec(1, 1), func(g *rig) {
			g.sleep(2 * time.Second)
			ctx, cancel := context.WithCancel(context.Background())
			g.log.Before = func(_ context.Context, f state.Fact) error {
				switch f.(type) {
				case *state.RunnerClaimed:
					cancel()
				case *state.ClaimReleased:
					return muster.Faultf(muster.FaultUnavailable, "the log does not take it")
				}
				return nil
			}
			q.UID = "u"
			if _, err := g.r.Claim(ctx, q); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: a client that left was answered: %v", name, err)
			}
			g.stop()
			g.start()
			g.sleep(50 * time.Second)
			if c := g.counts(); c.Claimed != 1 {
				t.Errorf("%s: 50 s later runners are %+v, want it claimed", name, c)
			}
			g.sleep(11 * time.Second)
			if c := g.counts(); c.Claimed != 0 {
				t.Errorf("%s: 61 s later runners are %+v, want it ended", name, c)
			}
		})
	}
}

// The log's answer never came, and the claim is there: without a key no client can ask for it.
func TestClaimOfUnknownOutcomeIsReleased(t *testing.T) {
	for name, key := range map[string]string{"without a key": "", "with a key": "k"} {
		bubble(t, warmSpec(1, 1), func(g *rig) {
			g.sleep(2 * time.Second)
			g.log.After = func(_ context.Context, f state.Fact) error {
				if _, is := f.(*state.RunnerClaimed); is {
					return muster.Faultf(muster.FaultAmbiguous, "it is not known whether it was committed")
				}
				return nil
			}
			if _, err := g.r.Claim(context.Background(), Request{UID: "u", Key: key, Digest: key}); !muster.IsKind(err, muster.FaultAmbiguous) {
				t.Fatalf("%s: %v", name, err)
			}
			g.sleep(5 * time.Second)
			held := 0
			g.log.Latest().Claims("", func(c *state.Claim) bool {
				if c.State == muster.ClaimHeld {
					held++
				}
				return true
			})
			if want := len(key); held != want {
				t.Errorf("%s: %d claims are held, want %d", name, held, want)
			}
		})
	}
}

// One that never came into the log is not waited for for ever.
func TestClaimThatNeverCameIsForgotten(t *testing.T) {
	bubble(t, warmSpec(1, 1), func(g *rig) {
		g.sleep(2 * time.Second)
		g.log.Before = func(_ context.Context, f state.Fact) error {
			if _, is := f.(*state.RunnerClaimed); is {
				return muster.Faultf(muster.FaultAmbiguous, "it is not known whether it was committed")
			}
			return nil
		}
		if _, err := g.r.Claim(context.Background(), Request{UID: "u"}); err == nil {
			t.Fatal("it was answered")
		}
		if len(g.r.left) != 1 {
			t.Fatalf("%d claims are waited for", len(g.r.left))
		}
		g.sleep(leftTime + time.Minute)
		if len(g.r.left) != 0 {
			t.Error("it is waited for for ever")
		}
		g.want(1, 0)
	})
}

// Uses are of claims that are held: what ended, seen or missed in the feed, has none.
func TestUsesOfEndedClaimsAreForgotten(t *testing.T) {
	bubble(t, warmSpec(2, 2), func(g *rig) {
		g.sleep(2 * time.Second)
		c, other := g.claim(Request{}), g.claim(Request{})
		end := g.r.Use(other.ID)
		g.log.Must(t, &state.ClaimReleased{Claim: c.ID})
		synctest.Wait()
		g.r.Use(c.ID)() // a request that came late
		if _, is := g.r.uses[c.ID]; is || len(g.r.uses) != 1 {
			t.Errorf("uses of %d claims are kept; one is held", len(g.r.uses))
		}
		// Its end is not in the feed any more when the loop reads on.
		g.log.Must(t, &state.ClaimReleased{Claim: other.ID})
		g.r.mu.Lock()
		g.r.uses[other.ID] = &use{}
		g.r.allLocked(g.log.Latest())
		n := len(g.r.uses)
		g.r.mu.Unlock()
		end()
		if n != 0 {
			t.Errorf("uses of %d claims are kept; none is held", n)
		}
	})
}

// Facts have bounded lists, however many claims are used at once.
func TestTouchesAreWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 2*batch + 10
		l := stockedLog(t, n)
		for i := range n {
			l.Must(t, &state.RunnerClaimed{Claim: muster.ClaimID(fmt.Sprint("c", i)), UID: "u", Runner: muster.NewAllocID("u", i, 1), Idle: 10_000_000})
		}
		r, err := New(Config{State: l, Proposer: l})
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			r.Use(muster.ClaimID(fmt.Sprint("c", i)))
		}
		time.Sleep(11 * time.Second)
		r.expire(t.Context(), r.now())
		touched := 0
		for _, f := range l.Facts() {
			switch f := f.(type) {
			case *state.ClaimsTouched:
				if len(f.Claims) > batch {
					t.Errorf("a fact of %d uses; at most %d", len(f.Claims), batch)
				}
				touched += len(f.Claims)
			case *state.ClaimsExpired:
				t.Error("a claim in use expired")
			}
		}
		if touched != n {
			t.Errorf("%d of %d uses are written down", touched, n)
		}
	})
}

// stockedLog has an environment u with n warm runners, on one node.
func stockedLog(t testing.TB, n int) *memlog.Log {
	t.Helper()
	l := memlog.New(t, 16)
	room := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
	spec := warmSpec(api.MaxWarm, api.MaxWarm)
	spec.Name = "e"
	spec.Defaults()
	for _, f := range []state.Fact{
		&state.NodeLaunching{ID: "n", Token: "t", Offering: muster.Offering{Capacity: room}},
		&state.NodeLaunched{ID: "n", Instance: "i"}, &state.NodeJoined{ID: "n", Capacity: room},
		&state.NodeHealthChanged{ID: "n", Health: muster.NodeGood},
		&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "u", Spec: &spec},
	} {
		l.Must(t, f)
	}
	for at := 0; at < n; at += 1000 {
		most := min(at+1000, n)
		l.Must(t, &state.RunnersWanted{UID: "u", Count: most})
		plan, report := &state.PlanCommitted{}, &state.AllocsReported{Node: "n"}
		for i := at; i < most; i++ {
			plan.Placements = append(plan.Placements, state.Placement{UID: "u", Version: 1, Index: i, Attempt: 1, Node: "n"})
			report.Allocs = append(report.Allocs, state.AllocUpdate{ID: muster.NewAllocID("u", i, 1), Status: muster.AllocRunning})
		}
		l.Must(t, plan)
		l.Must(t, report)
	}
	return l
}

// D16: so many environments change at once; all are decided about and written down. The log takes 2 ms for each commit,
// whatever is in it. At two sizes, for the ratio.
func BenchmarkGrowthEnvironments(b *testing.B) {
	for _, n := range []int{1_000, 4_000} {
		b.Run(fmt.Sprint("environments=", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				l := memlog.New(b, 16)
				for i := range n {
					spec := warmSpec(1, 1)
					spec.Name = fmt.Sprint("e", i)
					spec.Defaults()
					l.Must(b, &state.EnvironmentSet{Key: muster.EnvironmentKey("default", spec.Name), UID: muster.JobUID(fmt.Sprint("u", i)), Spec: &spec})
				}
				r, err := New(Config{State: l, Proposer: slowDisk{l}})
				if err != nil {
					b.Fatal(err)
				}
				r.mu.Lock()
				r.allLocked(l.Latest())
				r.mu.Unlock()
				b.StartTimer()
				r.stock(b.Context(), r.now())
				b.StopTimer()
				if j := l.Latest().JobByUID(muster.JobUID(fmt.Sprint("u", n-1))); j.Env.Stock != 1 {
					b.Fatalf("the last one is not decided about: %+v", j.Env)
				}
				b.StartTimer()
			}
		})
	}
}

// slowDisk takes 2 ms for a commit, of any number at once.
type slowDisk struct{ *memlog.Log }

func (d slowDisk) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	time.Sleep(2 * time.Millisecond)
	return d.Log.Propose(ctx, f)
}
