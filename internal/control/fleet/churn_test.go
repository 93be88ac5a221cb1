package fleet_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// TestChurnOfTenJobs is the simple form of TestChurn: a hundred members of ten jobs, a cloud
// that refuses, forgets its answers and lies in its lists, machines that die, lose their agent or
// their network, and leaders that come and go. Every member succeeds, none runs twice at
// once, and nothing is left.
func TestChurnOfTenJobs(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			inBubble(t, func(w *world) { churn(w, uint64(seed)) })
		})
	}
}

func churn(w *world, seed uint64) {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 99))
	chance := func(percent int) bool {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(100) < percent
	}
	w.pool.Max, w.pool.MaxLaunching, w.pool.BootTimeout, w.pool.Grace = 10, 5, 20e6, 15e6
	w.cloud = fake.New(fake.Config{
		Offerings: []muster.Offering{offering("small", 2, 1), offering("large", 16, 12)}, Seed: seed, Delay: 5 * time.Millisecond, Jitter: 300 * time.Millisecond, Page: 3,
		Created: w.created, Destroyed: w.destroyed,
	})
	w.cloud.SetFaults(fake.Faults{
		Create: func(in cloud.Intent) error {
			switch {
			case chance(10):
				return errors.New("something went wrong")
			case in.Offering == "small" && chance(10):
				return &muster.Fault{Kind: muster.FaultCapacity, Message: "out of capacity", After: 2 * time.Second}
			case chance(5):
				return &muster.Fault{Kind: muster.FaultRateLimited, Message: "slow down", After: time.Second}
			}
			return nil
		},
		Lost: func(cloud.Intent) error {
			if chance(10) {
				return muster.Faultf(muster.FaultAmbiguous, "the answer was lost")
			}
			return nil
		},
		Destroy: func(muster.InstanceID) error {
			if chance(10) {
				return errors.New("not now")
			}
			return nil
		},
		List: func() error {
			if chance(10) {
				return muster.Faultf(muster.FaultTransient, "list failed")
			}
			return nil
		},
		Cut: func(in []cloud.Instance) ([]cloud.Instance, bool) { return in, !chance(10) },
	})
	w.start()
	for i := range 10 {
		w.submit(fmt.Sprintf("j%d", i), 10, float64(1+i%2), "print out ; sleep 3s ; print more ; true")
	}
	done := func(s *state.Snapshot) bool {
		for i := range 10 {
			if j := s.JobByUID(muster.JobUID(fmt.Sprintf("uj%d", i))); j == nil || j.Stage != muster.JobEnded {
				return false
			}
		}
		return true
	}
	for began := time.Now(); !done(w.log.Latest()); {
		time.Sleep(700 * time.Millisecond)
		w.misfortune(chance)
		w.resume()
		if time.Since(began) > 30*time.Minute {
			w.t.Fatalf("not done after %s\n%s", time.Since(began), w.dump())
		}
	}
	w.cloud.SetFaults(fake.Faults{})
	for end := time.Now().Add(5 * time.Minute); !noNodes(w.log.Latest()); time.Sleep(time.Second) {
		if w.resume(); time.Now().After(end) {
			w.t.Fatalf("nodes are left\n%s", w.dump())
		}
	}
	time.Sleep(2 * time.Minute)
	if left := w.cloud.Instances(); len(left) > 0 {
		w.t.Errorf("instances left: %v", left)
	}
	w.startedOnce()
	w.succeeded()
	lost := 0
	w.log.Latest().Allocs("", func(a *state.Alloc) bool {
		if a.Outcome != muster.OutcomeSucceeded || string(a.Output.Stdout.Inline) == "out\nmore\n" {
			return true
		}
		// A new leader stores what a command printed a moment after it has committed its success. In that
		// moment the machine may vanish; then it is said that the output is lost.
		n := w.log.Latest().Node(a.Node)
		if n != nil && n.Health == muster.NodeLost && a.Output.Stage == state.OutputIncomplete && a.Output.Why != "" {
			lost++
			return true
		}
		w.t.Errorf("%s: output %q (%s %s)", a.ID, a.Output.Stdout.Inline, a.Output.Stage, a.Output.Why)
		return true
	})
	if lost > 20 {
		w.t.Errorf("the output of %d members is lost", lost)
	}
}

// succeeded checks that every member has succeeded, but for those that have lost five nodes: such a
// member is not tried again. A machine vanishes so often here that one in some hundred runs has one.
func (w *world) succeeded() {
	snap := w.log.Latest()
	losses, done := map[string]int{}, map[string]bool{}
	snap.Allocs("", func(a *state.Alloc) bool {
		member := fmt.Sprintf("%s-%d", a.Run.UID, a.Index)
		switch a.Outcome {
		case muster.OutcomeLost:
			losses[member]++
		case muster.OutcomeSucceeded:
			done[member] = true
		}
		return true
	})
	for i := range 10 {
		for index := range 10 {
			if member := fmt.Sprintf("uj%d-%d", i, index); !done[member] && losses[member] != 5 {
				w.t.Errorf("member %s has not succeeded and was lost %d times", member, losses[member])
			}
		}
	}
}

// misfortune strikes, or not.
func (w *world) misfortune(chance func(int) bool) {
	var live []cloud.Instance
	for _, in := range w.cloud.Instances() {
		if w.node(in.Tags.Node) != nil {
			live = append(live, in)
		}
	}
	for _, in := range live {
		n := w.node(in.Tags.Node)
		switch {
		case n == nil:
		case chance(2):
			w.cloud.Vanish(in.ID)
		case chance(5):
			n.Kill()
		case chance(3):
			n.Cut(true)
		case chance(30):
			n.Cut(false)
		}
	}
	if chance(5) {
		w.restart()
	}
}
