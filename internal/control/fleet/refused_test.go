package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/state"
)

// TestFailedAfterItWasAccepted: what fails after the cloud said yes blocks its offering as a refused
// create does, is destroyed, and the work goes elsewhere.
func TestFailedAfterItWasAccepted(t *testing.T) {
	inBubble(t, func(w *world) {
		w.sell("instance: refused after=1s..3s type=small", of("", "small", 2, 1, 4*muster.GiB), of("", "large", 16, 12, 64*muster.GiB))
		w.pool.BootTimeout = 3600e6
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", 2*time.Minute, ended("a", muster.JobSucceeded))
		if n := w.log.Latest().Node(w.nodeOf("a", 0)); n.Offering.Name != "large" {
			t.Errorf("it ran on %s", n.Offering.Name)
		}
		small := 0
		for _, n := range w.goneNodes() {
			if strings.Contains(n, "could not make it run") {
				small++
			}
		}
		// The block lasts for 30 s at least, and the job is done by then.
		if small != 1 {
			t.Errorf("%d failed instances, want one: %q", small, w.goneNodes())
		}
		if s := w.fleet.Stats(); s.CreateFaults != 1 {
			t.Errorf("%d create faults; the instance was listed as failed many times, and failed once", s.CreateFaults)
		}
	})
}

// TestWeighedQuota: a refused large instance does not keep a small one of the same family from being
// tried that the quota still holds.
func TestWeighedQuota(t *testing.T) {
	inBubble(t, func(w *world) {
		weighs := func(o muster.Offering, vcpus int) muster.Offering { o.Weight = vcpus; return o }
		w.sell("create: quota max=12 family=c",
			weighs(of("c", "c8", 8, 3.9, 4*muster.GiB), 8), weighs(of("c", "c2", 2, 1, 4*muster.GiB), 2))
		w.pool.IdleTimeout = 3600e6
		w.start()
		w.submit("a", 1, 8, "sleep 1h ; true")
		w.until("the first is placed", 5*time.Second, func(s *state.Snapshot) bool { return s.Alloc("ua-0-1") != nil })
		w.submit("b", 1, 8, "sleep 1s ; true")
		time.Sleep(5 * time.Second)
		asked := w.cloud.Calls().Intents
		w.submit("c", 1, 2, "sleep 1s ; true")
		w.until("the small one runs beside", 10*time.Second, ended("c", muster.JobSucceeded))
		if more := w.cloud.Calls().Intents - asked; more != 1 {
			t.Errorf("%d intents for one small instance", more)
		}
	})
}

// TestBootIsPinned: an instance of a bootable provider gets user data that follows from its token,
// and the log has its host key before the provider is asked.
func TestBootIsPinned(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud = fake.New(fake.Config{Offerings: w.offers, Created: w.created, Destroyed: w.destroyed, UserDataLimit: 100})
		w.bootOf = func(_ muster.ProviderName, token muster.Token) (cloud.Boot, error) {
			return cloud.Boot{UserData: muster.NewSecret("data of " + string(token)), HostKey: "key of " + string(token)}, nil
		}
		w.script("create: lost once")
		w.must(&state.FormatRaised{Format: state.FormatNewest})
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", time.Minute, ended("a", muster.JobSucceeded))
		n := w.log.Latest().Node(w.nodeOf("a", 0))
		if n.HostKey != "key of "+string(n.Token) {
			t.Errorf("the row has host key %q", n.HostKey)
		}
		if b := w.cloud.Boot(n.Instance); b.HostKey != n.HostKey || b.UserData.Reveal() != "data of "+string(n.Token) {
			t.Errorf("the instance got %q, %q", b.HostKey, b.UserData.Reveal())
		}
	})
}

// TestNothingWithoutUserData: nothing is launched that nobody could log in to, and what waits says why.
func TestNothingWithoutUserData(t *testing.T) {
	inBubble(t, func(w *world) {
		w.cloud = fake.New(fake.Config{Offerings: w.offers, Created: w.created, Destroyed: w.destroyed, UserDataLimit: 100})
		w.bootOf = func(muster.ProviderName, muster.Token) (cloud.Boot, error) {
			return cloud.Boot{}, muster.Faultf(muster.FaultInvalid, "user_data_file: no such file")
		}
		w.must(&state.FormatRaised{Format: state.FormatNewest})
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		time.Sleep(20 * time.Second)
		if c := w.cloud.Calls(); c.Intents != 0 {
			t.Errorf("%d intents", c.Intents)
		}
		if d := w.fleet.Decisions(); len(d.Waits) != 1 || !strings.Contains(d.Waits[0].Reason, "user_data_file") {
			t.Errorf("what waits does not say why: %+v", d.Waits)
		}
	})
}

// TestLeftoversAreRemoved: what an instance leaves is removed once it is old enough to be no part of a
// create, and nothing of another owner is.
func TestLeftoversAreRemoved(t *testing.T) {
	inBubble(t, func(w *world) {
		w.script("instance: leaves")
		w.start()
		w.submit("a", 1, 2, "sleep 1s ; true")
		w.until("a's end", time.Minute, ended("a", muster.JobSucceeded))
		other := w.cloud.Add(cloud.Tags{Owner: "another", Token: "t", Node: "n"}, "small")
		w.cloud.Vanish(other.ID)
		w.until("no node", time.Minute, noNodes)
		if left := w.cloud.Leftovers(); len(left) != 2 {
			t.Fatalf("the cloud has %v", left)
		}
		time.Sleep(8 * time.Minute)
		if left := w.cloud.Leftovers(); len(left) != 2 {
			t.Errorf("after eight minutes the cloud has %v", left)
		}
		time.Sleep(8 * time.Minute)
		if left := w.cloud.Leftovers(); len(left) != 1 || left[0].ID != "d-"+string(other.ID) {
			t.Errorf("after sixteen minutes the cloud has %v", left)
		}
		if s := w.fleet.Stats(); s.LeftoversRemoved != 1 {
			t.Errorf("%d removed", s.LeftoversRemoved)
		}
	})
}
