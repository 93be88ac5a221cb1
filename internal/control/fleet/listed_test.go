package fleet_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// slowCreate is a provider whose create makes all instances at once and answers late; refuse: with this error.
type slowCreate struct {
	cloud.Provider
	after  time.Duration
	refuse error
}

func (s *slowCreate) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := s.Provider.Create(ctx, intents)
	select {
	case <-ctx.Done():
	case <-time.After(s.after):
	}
	for i := range out {
		if s.refuse != nil {
			out[i] = cloud.Created{Err: s.refuse}
		}
	}
	return out
}

// TestInstanceListedBeforeCreateAnswers: D19, F-M5. An instance that a list shows is used although its create call goes on.
func TestInstanceListedBeforeCreateAnswers(t *testing.T) {
	for name, refuse := range map[string]error{
		"answered late":           nil,
		"refused late":            muster.Faultf(muster.FaultCapacity, "no room after all"),
		"late answer without use": muster.Faultf(muster.FaultAmbiguous, "something happened"),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.wrap = func(p cloud.Provider) cloud.Provider { return &slowCreate{p, 40 * time.Second, refuse} }
				w.start()
				w.submit("a", 3, 2, "sleep 60s ; true")
				began := time.Now()
				w.until("all members run", 30*time.Second, running("a", 3))
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the members run after %s, with instances that were listed at once", took)
				}
				w.until("the job's end", 2*time.Minute, ended("a", muster.JobSucceeded))
				w.log.Latest().Members("ua", 0, func(m *state.Member) bool {
					if m.Attempt != 1 {
						t.Errorf("member %d used %d attempts", m.Index, m.Attempt)
					}
					return true
				})
				if c := w.cloud.Calls(); c.Intents != 3 {
					t.Errorf("%d intents for three nodes", c.Intents)
				}
				w.until("no node", time.Minute, noNodes)
			})
		})
	}
}

// TestIncompleteListsAreBackedOff: F-M3.
func TestIncompleteListsAreBackedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		w.start()
		w.submit("a", 1, 2, "true")
		w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
		if b := w.fleet.Blind("fake"); b.Err != nil {
			t.Fatal(b.Err)
		}
		w.cloud.SetFaults(fake.Faults{Cut: func(in []cloud.Instance) ([]cloud.Instance, bool) { return in, false }})
		before := w.cloud.Calls().List
		time.Sleep(2 * time.Minute) // its node is destroyed after ten seconds, and nothing confirms it
		if lists := w.cloud.Calls().List - before; lists > 12 {
			t.Errorf("%d lists in two minutes, none of them complete", lists)
		}
		if n := w.log.Latest().LiveNodeCount(); n != 1 {
			t.Errorf("%d nodes, want the one whose end no list confirms", n)
		}
		if b := w.fleet.Blind("fake"); b.Err == nil || !strings.Contains(b.Err.Error(), "not complete") {
			t.Errorf("told is %+v", b)
		}
		w.cloud.SetFaults(fake.Faults{})
		w.until("no node", 2*time.Minute, noNodes)
		if b := w.fleet.Blind("fake"); b.Err != nil {
			t.Errorf("told is %+v after a complete list", b)
		}
	})
}

// TestListsGoByTheLogsClock: D4. The clock of this machine and the log's need not agree.
func TestListsGoByTheLogsClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"the log is ahead": time.Hour, "this machine is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var err error
				if w.log, err = linktest.NewSkewedLedger(w.owner, ahead); err != nil {
					t.Fatal(err)
				}
				w.clock = func() muster.Time { return muster.At(time.Now()).Add(ahead) }
				w.start()
				w.submit("a", 1, 2, "true")
				w.until("the job's end", time.Minute, ended("a", muster.JobSucceeded))
				w.until("no node", 20*time.Second, noNodes)
				before := w.cloud.Calls().List
				time.Sleep(10 * time.Minute)
				if lists := w.cloud.Calls().List - before; lists < 9 || lists > 11 {
					t.Errorf("%d lists in ten minutes without a node, want one a minute", lists)
				}
			})
		})
	}
}

// TestProviderFaultsAreTold: F-U2, F-U3, F-U4, F-L4. What the provider answers is known per node until the same call succeeds.
func TestProviderFaultsAreTold(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wrap = func(p cloud.Provider) cloud.Provider { return &faulty{p, &w.faults} }
		w.faults.set("offers", errors.New("no price list"))
		w.cloud.SetFaults(fake.Faults{
			Create:  func(cloud.Intent) error { return errors.New("traceback") },
			Destroy: func(muster.InstanceID) error { return errors.New("role lacks the right") },
		})
		w.start()
		time.Sleep(10 * time.Second)
		if b := w.fleet.Unsold("fake"); b.Err == nil || b.Err.Error() != "no price list" {
			t.Errorf("of offers is told %+v", b)
		}
		w.faults.set("offers", nil)
		w.submit("a", 1, 2, "true")
		time.Sleep(70 * time.Second)
		if b := w.fleet.Unsold("fake"); b.Err != nil {
			t.Errorf("of offers that were read is told %+v", b)
		}
		_, row := w.only()
		if tr := w.fleet.Troubles()[row.ID]; tr.Call != "create" || tr.Err == nil || tr.Err.Error() != "traceback" || tr.Times < 2 {
			t.Errorf("of the create is told %+v", tr)
		}
		w.cloud.SetFaults(fake.Faults{Destroy: func(muster.InstanceID) error { return errors.New("role lacks the right") }})
		w.faults.set("tags", errors.New("no tags here"))
		w.until("serving", 2*time.Minute, func(s *state.Snapshot) bool { return s.Node(row.ID).Stage == muster.NodeServing })
		if tr := w.fleet.Troubles()[row.ID]; tr.Err != nil {
			t.Errorf("of a node that serves is told %+v", tr)
		}
		w.must(&state.NodeIntentSet{ID: row.ID, Intent: muster.NodeHold})
		time.Sleep(70 * time.Second)
		if tr := w.fleet.Troubles()[row.ID]; tr.Call != "tags" || tr.Err == nil {
			t.Errorf("of the tags is told %+v", tr)
		}
		w.must(&state.NodeIntentSet{ID: row.ID, Intent: muster.NodeDrain})
		time.Sleep(70 * time.Second)
		if tr := w.fleet.Troubles()[row.ID]; tr.Call != "destroy" || tr.Err == nil || tr.Times < 3 {
			t.Errorf("of the destroy is told %+v", tr)
		}
		w.cloud.SetFaults(fake.Faults{})
		w.until("no node", 3*time.Minute, noNodes)
		if tr := w.fleet.Troubles()[row.ID]; tr.Err != nil {
			t.Errorf("of a node that is gone is told %+v", tr)
		}
	})
}

// faults are those of calls that the fake cloud has none for.
type faults struct {
	mu sync.Mutex
	of map[string]error
}

func (f *faults) set(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]error{}
	}
	f.of[call] = err
}

func (f *faults) get(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[call]
}

// faulty is a provider whose offers and tags may fail.
type faulty struct {
	cloud.Provider
	f *faults
}

func (p *faulty) Offers(ctx context.Context) ([]muster.Offering, error) {
	if err := p.f.get("offers"); err != nil {
		return nil, err
	}
	return p.Provider.Offers(ctx)
}

func (p *faulty) SetTags(ctx context.Context, id muster.InstanceID, tags cloud.Tags) error {
	if err := p.f.get("tags"); err != nil {
		return err
	}
	return p.Provider.SetTags(ctx, id, tags)
}
