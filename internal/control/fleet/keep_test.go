package fleet_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/state"
)

// strict is a provider that refuses its calls with a fault of its own for each kind, and notes when
// it was called.
type strict struct {
	cloud.Provider
	mu     sync.Mutex
	faults map[string]*muster.Fault
	called map[string][]time.Time
}

func (p *strict) say(call string, fault *muster.Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults[call] = fault
}

func (p *strict) ask(call string) *muster.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.called[call] = append(p.called[call], time.Now())
	return p.faults[call]
}

// callsSince counts the calls of a kind since a time.
func (p *strict) callsSince(call string, since time.Time) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.called[call] {
		if !at.Before(since) {
			n++
		}
	}
	return n
}

func (p *strict) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	if fault := p.ask("create"); fault != nil {
		return refusals(intents, fault)
	}
	return p.Provider.Create(ctx, intents)
}

func (p *strict) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	if fault := p.ask("destroy"); fault != nil {
		return slices.Repeat([]error{fault}, len(ids))
	}
	return p.Provider.Destroy(ctx, ids)
}

func (p *strict) List(ctx context.Context, cursor string) (cloud.Listing, error) {
	if fault := p.ask("list"); fault != nil {
		return cloud.Listing{}, fault
	}
	return p.Provider.List(ctx, cursor)
}

func (p *strict) Offers(ctx context.Context) ([]muster.Offering, error) {
	if fault := p.ask("offers"); fault != nil {
		return nil, fault
	}
	return p.Provider.Offers(ctx)
}

// strictly runs a test with a strict provider and a log that keeps blocks.
func strictly(t *testing.T, fn func(w *world, p *strict)) {
	t.Helper()
	inBubble(t, func(w *world) {
		p := &strict{faults: map[string]*muster.Fault{}, called: map[string][]time.Time{}}
		w.wrap = func(inner cloud.Provider) cloud.Provider { p.Provider = inner; return p }
		w.must(&state.FormatRaised{Format: state.FormatNewest})
		fn(w, p)
	})
}

// A new leader does not ask at once for what a provider has refused until a time, and asks then.
func TestBlocksOutliveTheLeader(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		p.say("create", &muster.Fault{Kind: muster.FaultRateLimited, After: 10 * time.Minute, Message: "too many requests"})
		w.start()
		w.submit("a", 1, 2, "true")
		time.Sleep(time.Minute)
		began := time.Now()
		if p.callsSince("create", began.Add(-time.Minute)) == 0 {
			t.Fatal("nothing was asked for")
		}
		for range 5 { // hand-overs
			w.restart()
			time.Sleep(time.Minute)
		}
		if n := p.callsSince("create", began); n > 0 {
			t.Errorf("%d creates were asked for before the time that the provider named", n)
		}
		if b := size.BlocksOf(w.log.Latest()); len(b) != 1 || b[0].Why == "" || b[0].Until < muster.At(time.Now()) {
			t.Errorf("the state has blocks %+v", b)
		}
		p.say("create", nil)
		w.until("the job's end", 10*time.Minute, ended("a", muster.JobSucceeded))
		// A success ends the block, in the log as well.
		w.until("no block", time.Minute, func(s *state.Snapshot) bool { return len(size.BlocksOf(s)) == 0 })
	})
}

// The block of a capacity that is short grows from leader to leader as it does under one.
func TestBlocksGrowOverHandOvers(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		p.say("create", &muster.Fault{Kind: muster.FaultCapacity, Message: "no capacity"})
		w.start()
		w.submit("a", 1, 2, "true")
		for range 60 {
			time.Sleep(time.Minute)
			w.restart()
		}
		began := time.Now()
		time.Sleep(20 * time.Minute)
		// Two offerings, each blocked for 10 minutes by now.
		if n := p.callsSince("create", began); n > 6 {
			t.Errorf("asked %d times in 20 minutes", n)
		}
		if n := p.callsSince("create", began.Add(-time.Hour)); n > 30 {
			t.Errorf("asked %d times in 80 minutes", n)
		}
	})
}

// What an operator corrects in the configuration is tried at once by the loops that start with it.
func TestRefusedCredentialsAreTriedByANewLeader(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		p.say("create", muster.Faultf(muster.FaultAuth, "the key is not known"))
		w.start()
		w.submit("a", 1, 2, "true")
		time.Sleep(20 * time.Minute) // the block has grown to ten minutes
		p.say("create", nil)
		w.restart()
		w.until("the job's end", 20*time.Second, ended("a", muster.JobSucceeded))
	})
}

// Lists and offerings that a provider has forbidden for a time are not asked for by the next leader.
func TestForbiddenListsOutliveTheLeader(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		limited := &muster.Fault{Kind: muster.FaultRateLimited, After: 10 * time.Minute, Message: "too many requests"}
		w.start()
		time.Sleep(time.Minute)
		p.say("list", limited)
		p.say("offers", limited)
		time.Sleep(2 * time.Minute)
		began := time.Now()
		for range 3 {
			w.restart()
			time.Sleep(time.Minute)
		}
		if n, k := p.callsSince("list", began), p.callsSince("offers", began); n+k > 0 {
			t.Errorf("%d lists and %d reads of offerings before the time that the provider named", n, k)
		}
		p.say("list", nil)
		p.say("offers", nil)
		w.submit("a", 1, 2, "true")
		w.until("the job's end", 15*time.Minute, ended("a", muster.JobSucceeded))
	})
}

// Destroys that a provider has forbidden for a time wait for it under the next leader, too.
func TestForbiddenDestroysOutliveTheLeader(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		w.start()
		w.submit("a", 1, 2, "true")
		p.say("destroy", &muster.Fault{Kind: muster.FaultRateLimited, After: 10 * time.Minute, Message: "too many requests"})
		w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		w.until("its node terminates", 2*time.Minute, func(s *state.Snapshot) bool {
			ends := 0
			s.LiveNodes(func(n *state.Node) bool {
				if n.Stage == muster.NodeTerminating {
					ends++
				}
				return true
			})
			return ends == 1
		})
		time.Sleep(10 * time.Second)
		began := time.Now()
		for range 3 {
			w.restart()
			time.Sleep(time.Minute)
		}
		if n := p.callsSince("destroy", began); n > 0 {
			t.Errorf("%d destroys before the time that the provider named", n)
		}
		p.say("destroy", nil)
		w.until("no node", 10*time.Minute, noNodes)
	})
}

// An instance whose destroy was answered before the hand-over is looked for before it is destroyed
// again.
func TestNewLeaderLooksBeforeItDestroysAgain(t *testing.T) {
	strictly(t, func(w *world, p *strict) {
		w.start()
		w.submit("a", 4, 16, "true")
		w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		// Without lists nothing confirms the destroy.
		p.say("list", muster.Faultf(muster.FaultTransient, "not now"))
		time.Sleep(time.Minute)
		w.stop()
		synctest.Wait()
		if left := w.cloud.Instances(); len(left) > 0 || w.log.Latest().LiveNodeCount() == 0 {
			t.Fatalf("left: %v\n%s", left, w.dump())
		}
		p.say("list", nil)
		began := time.Now()
		w.restart()
		w.until("no node", 5*time.Minute, noNodes)
		if n := p.callsSince("destroy", began); n > 0 {
			t.Errorf("%d calls to destroy what was destroyed", n)
		}
	})
}

// The instance under trial is left alone by the next leader, and ended after its time when nobody
// has ended it.
func TestShelterOutlivesTheLeader(t *testing.T) {
	strictly(t, func(w *world, _ *strict) {
		w.start()
		if _, err := w.fleet.Shelter(context.Background(), "tcheck", 10*time.Minute); err != nil {
			t.Fatal(err)
		}
		w.cloud.Add(cloud.Tags{Owner: "c1", Token: "tcheck", Node: "check-1"}, "small")
		for range 3 {
			time.Sleep(3 * time.Minute)
			w.restart()
			if n := w.log.Latest().LiveNodeCount(); n != 0 || len(w.cloud.Instances()) != 1 {
				t.Fatalf("%d nodes, instances %v", n, w.cloud.Instances())
			}
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if left := w.cloud.Instances(); len(left) > 0 {
			t.Errorf("left: %v\n%s", left, w.dump())
		}
	})
}

// A shelter that has ended in time hides nothing from the next leader; one that the check has
// destroyed is hidden from lists that began before.
func TestEndedShelterIsForgotten(t *testing.T) {
	strictly(t, func(w *world, _ *strict) {
		w.start()
		end, err := w.fleet.Shelter(context.Background(), "tcheck", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		end(true)
		is := func() bool {
			return state.ProvidersOf(w.log.Latest()).IsSheltered("tcheck", muster.At(time.Now()))
		}
		if !is() {
			t.Error("a list that began before the destroy would show it")
		}
		time.Sleep(3 * time.Minute)
		if is() {
			t.Error("it is still sheltered")
		}
	})
}
