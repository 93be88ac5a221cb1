package link

import (
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// What a restored state does not know keeps its node: it gets no work, and is not idle, until that has ended.
func TestStraysKeepTheirNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.stop()
		image, err := linktest.NewLedger("c1")
		if err != nil {
			t.Fatal(err)
		}
		if err := image.RestoreFrom(r.log); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.submit("unknown", spec("sleep 1m ; true", count(2)))
		unknown := r.place("unknown", "n1")
		r.until("running", time.Second, allAre(unknown, muster.AllocRunning))
		r.stop()
		time.Sleep(time.Hour)
		// They did not end in that hour: the backup is restored while they run.
		r.start()
		r.submit("later", spec("sleep 1m ; true", count(3)))
		later := r.place("later", "n1")
		r.until("running", time.Second, allAre(later, muster.AllocRunning))
		r.stop()

		r.log, r.config.State, r.config.Proposer = image, image, image
		restored := muster.At(time.Now())
		r.must(&state.EpochBegan{})
		if since := r.log.Latest().Node("n1").IdleSince; since < restored {
			t.Errorf("idle for %s already", restored.Sub(since))
		}
		busy := func(s *state.Snapshot) bool {
			n := s.Node("n1")
			return n.Health == muster.NodeUnready && strings.HasPrefix(n.HealthReason, "it runs 3 allocations")
		}
		for range 2 { // and so it is under the next leader
			r.start()
			r.until("it has no room", 3*time.Second, busy)
			time.Sleep(10 * time.Second)
			if !busy(r.log.Latest()) {
				t.Errorf("%s", r.dump())
			}
			r.restart()
			r.until("it has no room", 3*time.Second, busy)
			r.stop()
		}
		r.start()
		r.until("free again", 2*time.Minute, serving("n1"))
		if live, since := n.Live(), r.log.Latest().Node("n1").IdleSince; len(live) > 0 || time.Since(since.Std()) > time.Second {
			t.Errorf("free with %v; idle since %s", live, since.Std())
		}
		r.check()
	})
}

// A member that was waiting when the backup was made runs on its node, which
// the restored state does not know. Nothing is placed before its agent has said what it runs; and once
// its member is placed elsewhere, under the same allocation id, it is a stray still.
func TestStrayWithTheIDOfAnotherNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		n1 := r.boot("n1", 8)
		r.boot("n2", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.until("serving", time.Second, serving("n2"))
		r.submit("a", spec("sleep 5m ; true"))
		r.stop()
		image, err := linktest.NewLedger("c1")
		if err != nil {
			t.Fatal(err)
		}
		if err := image.RestoreFrom(r.log); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.place("a", "n1")
		r.until("running", time.Second, allocIs("ua-0-1", muster.AllocRunning))
		r.stop()

		r.log, r.config.State, r.config.Proposer = image, image, image
		r.must(&state.EpochBegan{})
		for _, id := range []muster.NodeID{"n1", "n2"} {
			if n := r.log.Latest().Node(id); n.Schedulable() || !strings.Contains(n.HealthReason, "backup was restored") {
				t.Errorf("%s is %s before it was heard: %s", id, n.Health, n.HealthReason)
			}
		}
		n1.Hang(true)
		r.start()
		r.until("n2 was heard", time.Second, serving("n2"))
		r.place("a", "n2")
		r.until("running", time.Second, allocIs("ua-0-1", muster.AllocRunning))
		n1.Hang(false)
		busy := func(s *state.Snapshot) bool {
			n := s.Node("n1")
			return n.Health == muster.NodeUnready && strings.HasPrefix(n.HealthReason, "it runs 1 allocation that nothing is known of")
		}
		r.until("n1 has no room", time.Minute, busy)
		for range 20 {
			time.Sleep(time.Second)
			if !busy(r.log.Latest()) {
				t.Fatalf("%s", r.dump())
			}
		}
		r.until("n1 is free", 10*time.Minute, serving("n1"))
		r.until("the job's end", 10*time.Minute, jobEnded("a"))
		if live := n1.Live(); len(live) > 0 {
			t.Errorf("free with %v", live)
		}
	})
}

// By absence alone an agent stops no more than half of what it runs: such a
// node goes on with what is known, and gets nothing new until the rest has ended.
func TestTooManyUnknownToTheLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 32)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("purged", spec("sleep 2m ; true", count(6)))
		r.submit("known", spec("hang", count(2)))
		r.place("purged", "n1")
		r.place("known", "n1")
		// All of them: they start at once, and in no order.
		for _, id := range []muster.AllocID{"upurged-0-1", "upurged-1-1", "upurged-2-1", "upurged-3-1", "upurged-4-1", "upurged-5-1", "uknown-0-1", "uknown-1-1"} {
			r.until("running", time.Second, allocIs(id, muster.AllocRunning))
		}
		r.stop()
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "purged"}})
		var end []state.AllocUpdate
		for _, id := range n.Live() {
			if strings.HasPrefix(string(id), "upurged") {
				end = append(end, state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
			}
		}
		r.must(&state.AllocsReported{Node: "n1", Allocs: end})
		r.must(&state.JobsPurged{UIDs: []muster.JobUID{"upurged"}})
		r.start()
		busy := func(s *state.Snapshot) bool {
			return strings.HasPrefix(s.Node("n1").HealthReason, "it runs 6 allocations that nothing is known of")
		}
		r.until("it has no room", time.Second, busy)
		for range 30 {
			time.Sleep(time.Second)
			if live := n.Live(); len(live) != 8 || !busy(r.log.Latest()) {
				t.Fatalf("runs %v\n%s", live, r.dump())
			}
		}
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "known"}})
		r.until("what is known is stopped", time.Second, jobEnded("known"))
		for _, d := range n.Sets() {
			for _, id := range d.Named {
				if strings.HasPrefix(string(id), "upurged") {
					t.Errorf("%s was named, and nothing in the log says that it should stop", id)
				}
			}
		}
		r.until("free again", 3*time.Minute, serving("n1"))
		time.Sleep(5 * time.Second)
		if held := n.Held(); len(held) > 0 {
			t.Errorf("left on the node: %v", held)
		}
	})
}
