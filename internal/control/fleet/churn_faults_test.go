package fleet_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// faultyCloud is the cloud of TestChurn.
const faultyCloud = `
create: quota max=10
create: fail 10%
create: rate gap=1ms tell
create: capacity type=c3
create: capacity type=c6 for=300ms
destroy: fail 10%
instance: dies n%7=0 after=100ms..10s
instance: noboot n%7=1
instance: broken n%7=2 after=0s..5s
instance: agent-dies 10% n%7=3 after=100ms..10s
instance: agent-dies 10% n%7=4 after=100ms..10s
instance: agent-dies 10% n%7=5 after=100ms..10s
instance: agent-dies 10% n%7=6 after=100ms..10s
instance: stuck 10% n%7=3
instance: stuck 10% n%7=4
instance: stuck 10% n%7=5
instance: stuck 10% n%7=6
`

// everyFault adds the faults that faultyCloud does not have.
const everyFault = faultyCloud + `
create: lost 10%
create: double 5%
create: slow 300ms 20%
list: fail transient 10%
list: cut 10%
list: stale 2s 20%
destroy: slow 3s 20%
destroy: lost 10%
instance: notice market=spot after=1s..20s in=10s
`

var (
	churnSeeds = flag.Int("fleet.seeds", 0, "how many seeds of the churn are played; 0: four, and one in a short run")
	churnBusy  = flag.Bool("fleet.busy", false, "play the churn a second time, with every core kept busy by something else")
)

func TestChurn(t *testing.T) { playChurn(t, faultyCloud, 5*time.Second) }

// TestChurnWithEveryFault is TestChurn with all that a fake cloud can do to a fleet at once. Destroys take
// three seconds and lists are two old, so that the last job of all may wait longer for a machine to be confirmed gone.
func TestChurnWithEveryFault(t *testing.T) { playChurn(t, everyFault, 20*time.Second) }

func playChurn(t *testing.T, script string, patience time.Duration) {
	seeds := *churnSeeds
	switch {
	case seeds > 0:
	case testing.Short():
		seeds = 1
	default:
		seeds = 4
	}
	for _, busy := range []bool{false, true} {
		if busy && !*churnBusy {
			continue
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("seed=%d,busy=%v", seed, busy), func(t *testing.T) {
				if busy {
					defer burn()()
				}
				inBubble(t, func(w *world) { churnJobs(w, uint64(seed), script, patience) })
			})
		}
	}
}

// burn keeps every core busy until it is called back.
func burn() (end func()) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for x := uint64(1); !stop.Load(); {
				for range 1 << 16 {
					x = x*6364136223846793005 + 1
				}
			}
		})
	}
	return func() { stop.Store(true); wg.Wait() }
}

func churnOfferings() []muster.Offering {
	var out []muster.Offering
	for _, n := range []int{1, 2, 3, 4, 6, 8, 16} {
		o := offering(fmt.Sprintf("c%d", n), n, 0.123*float64(n))
		o.Capacity.Memory = 4 * muster.GiB * muster.Bytes(n)
		out = append(out, o)
		o.Market, o.Price = muster.Spot, o.Price*9/10
		out = append(out, o)
	}
	return out
}

// play lives the fate that a script has in store for a new machine.
func (w *world) play(in cloud.Instance, m *linktest.Node) {
	fate := w.cloud.Fate(in.ID)
	if fate.Stuck {
		m.Stick()
	}
	if fate.NoBoot {
		w.mu.Lock()
		w.mute[in.Tags.Node] = true
		w.mu.Unlock()
	}
	if fate.AgentDies >= 0 {
		time.AfterFunc(fate.AgentDies, func() {
			w.mu.Lock()
			w.mute[in.Tags.Node] = true
			w.mu.Unlock()
			m.Kill()
		})
	}
	if fate.Broken >= 0 {
		time.AfterFunc(fate.Broken, func() {
			_, _, _ = w.log.Propose(w.t.Context(), &state.NodeHealthChanged{ID: in.Tags.Node, Health: muster.NodeBroken, Reason: "the disk is broken"})
		})
	}
}

func churnJobs(w *world, seed uint64, script string, patience time.Duration) {
	const jobs = 200
	w.offers = churnOfferings()
	w.pool.Max, w.pool.MaxLaunching, w.pool.BootTimeout, w.pool.Grace, w.pool.IdleTimeout = 100, 100, 2e6, 1e6, 1e6
	w.cloud = fake.New(fake.Config{Offerings: w.offers, Seed: seed, Delay: time.Millisecond, Jitter: 20 * time.Millisecond, Created: w.created, Destroyed: w.destroyed})
	if err := w.cloud.Play(script); err != nil {
		w.t.Fatal(err)
	}
	w.start()
	rnd := rand.New(rand.NewPCG(seed, 3))
	for i := range jobs {
		w.submit(fmt.Sprintf("j%d", i), 1, float64(i%8+1), fmt.Sprintf("sleep %dms ; true", 100+rnd.IntN(1900)), func(s *api.JobSpec) {
			p := i%20 + 1
			s.Priority = &p
			s.Resources.Memory = api.Size(int64(i%3+1) << 30)
			s.Timeout, s.KillGrace = api.Duration(2200*time.Millisecond), api.Duration(100*time.Millisecond)
		})
	}
	began, last, seen := time.Now(), time.Now(), uint64(0)
	longest := time.Duration(0)
	for {
		ended, moves := w.progress(jobs)
		if moves != seen {
			seen, last = moves, time.Now()
		}
		longest = max(longest, time.Since(last))
		if longest > patience {
			d, s := w.fleet.Decisions(), w.fleet.Stats()
			w.t.Fatalf("no progress for %s after %s, %d of %d jobs have ended\nwaits %+v\nblocks %+v\nlaunches %+v\n%s", longest, time.Since(began), ended, jobs, d.Waits, s.Blocks, d.Launch, w.dump())
		}
		if ended == jobs {
			break
		}
		time.Sleep(50 * time.Millisecond)
		w.resume()
	}
	took := time.Since(began)
	for i := range jobs {
		if j := w.log.Latest().JobByUID(muster.JobUID(fmt.Sprintf("uj%d", i))); j.Result != muster.JobSucceeded {
			w.t.Errorf("job %s %s: %s", j.Key, j.Result, j.Reason)
		}
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Second) {
		w.resume()
		if noNodes(w.log.Latest()) && len(w.cloud.Instances()) == 0 {
			break
		}
		if time.Now().After(end) {
			w.t.Fatalf("nodes or instances are left\n%s", w.dump())
		}
	}
	w.startedOnce()
	s, c := w.fleet.Stats(), w.cloud.Calls()
	w.t.Logf("%d jobs in %s, at longest %s without progress; %d instances of %d intents; boots %v, disappeared %v, %d spot notices", jobs, took, longest, s.Created, c.Intents, s.Boots, s.Disappeared, s.Notices)
	if s.Boots["success"] == 0 || s.Boots["failure"] == 0 {
		w.t.Errorf("boots %v: with every seventh that never gets its agent there are some of both", s.Boots)
	}
}

// progress is how many jobs have ended, and a number that grows with whatever happens to work and to nodes.
func (w *world) progress(jobs int) (ended int, moves uint64) {
	snap := w.log.Latest()
	for i := range jobs {
		j := snap.JobByUID(muster.JobUID(fmt.Sprintf("uj%d", i)))
		if j.Stage == muster.JobEnded {
			ended++
		}
		moves = max(moves, j.Modified)
	}
	snap.LiveAllocs(func(a *state.Alloc) bool { moves = max(moves, a.Modified); return true })
	snap.LiveNodes(func(n *state.Node) bool { moves = max(moves, n.Modified); return true })
	return ended, moves
}

// resume is the operator who has looked at a breaker that tripped.
func (w *world) resume() {
	if b := w.log.Latest().Breaker(w.pool.Name); b.IsTripped() {
		w.must(&state.PoolResumed{Pool: w.pool.Name, Who: "op"})
	}
}
