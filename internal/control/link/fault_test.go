package link

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/decide/health"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func TestAgentKilledAndRestarted(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 10s ; print two ; exit 7", count(2)))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allocIs(ids[1], muster.AllocRunning))
		for range 3 {
			time.Sleep(2 * time.Second)
			n.Kill()
		}
		r.until("the job's end", 10*time.Second, jobEnded("a"))
		for _, id := range ids {
			r.until("stored", time.Minute, outputIs(id, state.OutputComplete))
			a := r.log.Latest().Alloc(id)
			if a.ExitCode != 7 || string(a.Output.Stdout.Inline) != "one\ntwo\n" {
				t.Errorf("%s: exit %d, output %q", id, a.ExitCode, a.Output.Stdout.Inline)
			}
		}
		if n.Boots() < 3 {
			t.Errorf("the agent was started %d times", n.Boots())
		}
		r.check()
		r.log.Latest().Nodes("", func(row *state.Node) bool {
			if row.Health != muster.NodeGood {
				t.Errorf("node is %s: %s", row.Health, row.HealthReason)
			}
			return true
		})
	})
}

func TestServerRestarted(t *testing.T) {
	inBubble(t, func(r *rig) {
		nodes := []muster.NodeID{"n1", "n2", "n3", "n4", "n5"}
		for _, id := range nodes {
			r.boot(id, 8)
		}
		r.start()
		for i, id := range nodes {
			r.until("serving", time.Second, serving(id))
			script := "sleep 20s ; print done ; true"
			if i == 0 {
				script = "print done ; true"
			}
			name := "j" + string(id)
			r.submit(name, spec(script, count(8)))
			r.place(name, id)
		}
		r.until("the first are done", time.Second, jobEnded("jn1"))
		time.Sleep(time.Second)
		for range 3 {
			r.restart()
			time.Sleep(3 * time.Second)
		}
		r.stop()
		time.Sleep(time.Hour) // they end meanwhile, and nobody hears it
		r.restart()
		for _, id := range nodes {
			r.until("the end of all", 2*time.Second, jobEnded("j"+string(id)))
			if n := r.log.Latest().Node(id); n.Health != muster.NodeGood {
				t.Errorf("%s is %s", id, n.Health)
			}
		}
		r.check()
		if got := r.log.Latest().JobByUID("ujn5"); got.Succeeded != 8 {
			t.Errorf("succeeded: %d", got.Succeeded)
		}
	})
}

func TestStop(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		// Running.
		r.submit("a", spec("hang", count(6)))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allocIs(ids[5], muster.AllocRunning))
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "a"}})
		r.until("stopped", time.Second, jobEnded("a"))
		if a := r.log.Latest().Alloc(ids[0]); a.Outcome != muster.OutcomeStopped {
			t.Errorf("outcome %s", a.Outcome)
		}
		// Placed, and stopped before its agent knew: it never runs.
		n.Cut(true)
		r.submit("b", spec("hang", count(2)))
		ids = r.place("b", "n1")
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "b"}})
		n.Cut(false)
		r.until("stopped", 3*time.Second, jobEnded("b"))
		for _, id := range ids {
			if n.Ran()[id] > 0 {
				t.Errorf("%s ran", id)
			}
			if a := r.log.Latest().Alloc(id); a.Outcome != muster.OutcomeStopped || a.Output.Stage != state.OutputComplete {
				t.Errorf("%s: %s, output %+v", id, a.Outcome, a.Output)
			}
		}
	})
}

func TestNodeWithoutARuntimeIsNotReady(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		n.Sick("runtime process does not work here: no /proc")
		r.start()
		time.Sleep(3 * time.Second)
		if row := r.log.Latest().Node("n1"); row.Schedulable() || row.Stage != muster.NodeBooting {
			t.Errorf("a node without a runtime is %s, %s", row.Stage, row.Health)
		}
		n.Sick()
		r.until("serving", 5*time.Second, serving("n1"))

		// One that served and falls sick: N13, it comes back when it is well.
		n.Sick("the disk is full")
		n.Kill()
		r.until("unready", 3*time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeUnready })
		if why := r.log.Latest().Node("n1").HealthReason; !strings.Contains(why, "the disk is full") {
			t.Errorf("reason: %s", why)
		}
		n.Sick()
		r.until("serving again", time.Minute, serving("n1"))
	})
}

func TestNodeJoinsAgainWhileBusy(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("sleep 5s"))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allocIs(ids[0], muster.AllocRunning))
		before := r.log.Latest().Node("n1")
		n.Kill()
		r.until("joined again", time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Boot != before.Boot })
		after := r.log.Latest().Node("n1")
		if after.LiveAllocs != 1 || after.Used != before.Used || after.Joined != before.Joined {
			t.Errorf("before %+v\nafter %+v", before, after)
		}
	})
}

func TestAgentHangs(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		other := r.boot("n2", 8)
		_ = other
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.until("serving", time.Second, serving("n2"))
		n.Hang(true)
		n.Cut(true) // the stream breaks, and what is dialled anew hangs
		n.Cut(false)
		r.until("lost", 3*time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeLost })
		r.submit("a", spec("true"))
		r.place("a", "n2")
		r.until("the other node goes on", 100*time.Millisecond, jobEnded("a"))
		n.Hang(false)
		r.until("back", 15*time.Second, serving("n1"))
		// Gone while it hangs: nothing of the link is left, which goleak sees.
		n.Hang(true)
		n.Cut(true)
		n.Cut(false)
		time.Sleep(time.Second)
		r.must(&state.NodeTerminating{ID: "n1"})
		synctest.Wait()
		if r.link.Stats().Nodes != 1 {
			t.Errorf("links: %+v", r.link.Stats())
		}
	})
}

// A stream that stays open and says nothing is not contact.
func TestSilentStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.link.node("n1").touch(func(c *health.Contact) { c.Heard = muster.At(time.Now().Add(-time.Hour)) })
		if u, ok := r.link.Usage("n1"); !ok || u.Heard == 0 {
			t.Error("no usage")
		}
		time.Sleep(6 * time.Second)
		if u, _ := r.link.Usage("n1"); time.Since(u.Heard.Std()) > wire.HeartbeatMillis*time.Millisecond || u.FreeDisk == 0 {
			t.Errorf("usage %+v", u)
		}
	})
}

func TestAnotherCluster(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("sleep 1m"))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allocIs(ids[0], muster.AllocRunning))
		n.Obeyed(wire.Fence{Cluster: "c9", Epoch: 1, Term: 1, Index: 1})
		n.Cut(true)
		n.Cut(false)
		r.until("unready", 3*time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeUnready })
		if why := r.log.Latest().Node("n1").HealthReason; !strings.Contains(why, "obeys cluster c9") {
			t.Errorf("reason: %s", why)
		}
		time.Sleep(30 * time.Second)
		if live := n.Live(); len(live) != 1 {
			t.Errorf("what ran there was touched: %v", live)
		}
		n.Obeyed(wire.Fence{})
		r.until("serving again", time.Minute, serving("n1"))
	})
}

// An old backup without a new epoch is refused; with one it takes over, and
// what it does not know is not stopped.
func TestRestoredBackup(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("known", spec("sleep 40s ; true"))
		r.place("known", "n1")
		r.until("running", time.Second, allocIs("uknown-0-1", muster.AllocRunning))
		r.stop()
		old := r.log
		image, err := linktest.NewLedger("c1")
		if err != nil {
			t.Fatal(err)
		}
		if err := image.RestoreFrom(old); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.submit("unknown", spec("sleep 1m ; true", count(2)))
		ids := r.place("unknown", "n1")
		r.until("running", time.Second, allAre(ids, muster.AllocRunning))
		r.stop()

		r.log, r.config.State, r.config.Proposer = image, image, image
		r.start()
		r.until("refused", 3*time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeUnready })
		if why := r.log.Latest().Node("n1").HealthReason; !strings.Contains(why, "has obeyed log entries that this server does not have") {
			t.Errorf("reason: %s", why)
		}
		r.stop()
		r.must(&state.EpochBegan{})
		r.start()
		r.until("taken over", 3*time.Second, func(s *state.Snapshot) bool {
			return strings.HasPrefix(s.Node("n1").HealthReason, "it runs 2 allocations that nothing is known of")
		})
		time.Sleep(time.Second)
		if live := n.Live(); len(live) != 3 {
			t.Errorf("running after the restore: %v", live)
		}
		r.until("what it knows ends", time.Minute, jobEnded("known"))
		time.Sleep(time.Minute)
		if held := n.Held(); len(held) != 0 {
			t.Errorf("left on the node: %v", held)
		}
		r.check()
	})
}

// A job that was purged while its node was away: what is left of it is stopped and deleted.
func TestUnknownToTheLog(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("hang", count(3)))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allAre(ids, muster.AllocRunning))
		r.stop()
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "a"}})
		var end []state.AllocUpdate
		for _, id := range n.Live() {
			end = append(end, state.AllocUpdate{ID: id, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
		}
		r.must(&state.AllocsReported{Node: "n1", Allocs: end})
		r.must(&state.JobsPurged{UIDs: []muster.JobUID{"ua"}})
		r.start()
		time.Sleep(2 * time.Second)
		if held := n.Held(); len(held) != 0 {
			t.Errorf("left on the node: %v", held)
		}
	})
}

// What the log has ended (its node was thought lost) and still runs is stopped.
func TestEndedInTheLogAndRunning(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("hang"))
		r.place("a", "n1")
		r.until("running", time.Second, allocIs("ua-0-1", muster.AllocRunning))
		n.Cut(true)
		r.must(&state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: "ua-0-1", Status: muster.AllocEnded, Outcome: muster.OutcomeLost,
			Failure: &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonNodeGone, Message: "gone"}, Output: &state.Output{Stage: state.OutputIncomplete}}}})
		n.Cut(false)
		time.Sleep(3 * time.Second)
		if held := n.Held(); len(held) != 0 {
			t.Errorf("left on the node: %v", held)
		}
	})
}

// An agent whose disk was emptied says so by its silence: what it had is lost, not run again.
func TestAgentLostItsDisk(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("hang", count(2)))
		ids := r.place("a", "n1")
		// All of them: what the log has as placed is sent again.
		r.until("running", time.Second, allAre(ids, muster.AllocRunning))
		n.Kill()
		n.Wipe()
		r.until("lost", 3*time.Second, allAre(ids, muster.AllocEnded))
		for _, id := range ids {
			if a := r.log.Latest().Alloc(id); a.Outcome != muster.OutcomeLost || a.Failure.Class != muster.FailureNode {
				t.Errorf("%s is %s: %v", id, a.Outcome, a.Failure)
			}
		}
		time.Sleep(5 * time.Second)
		r.check()
	})
}

// Another leader's term ends the loop: its fence may not be borrowed.
func TestAnotherLeaderBegan(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		if err := r.log.Lead(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "another leader") {
			t.Errorf("ended with %v", err)
		}
		r.cancel()
		r.cancel = nil
	})
}

func TestSpecIsSentOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("sleep 20s ; true", count(4)))
		ids := r.place("a", "n1")
		r.until("running", time.Second, allAre(ids, muster.AllocRunning))
		n.Kill()
		time.Sleep(time.Second)
		r.restart()
		r.until("the end", time.Minute, jobEnded("a"))
		time.Sleep(time.Second)
		specs, wholes := 0, 0
		var last wire.Fence
		for _, d := range n.Sets() {
			if d.Fence.Compare(last) < 0 {
				t.Errorf("fence %s after %s", d.Fence, last)
			}
			last = d.Fence
			runs := 0
			for _, a := range d.Allocs {
				if a.Spec != nil {
					specs++
				} else if a.Desired == muster.AllocRun {
					runs++
				}
			}
			if runs == 4 {
				wholes++
			}
		}
		if specs != 4 || wholes != 2 {
			t.Errorf("%d specs and %d whole sets for 4 allocations and 2 new contacts", specs, wholes)
		}
	})
}

// An instance that the state did not know and that obeys somebody newer is
// held: it is not destroyed after the boot time-out.
func TestAdoptedAndRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := linktest.NewNode(linktest.Config{ID: "n1", Capacity: muster.Resources{CPU: 1000, Memory: muster.GiB}})
		r.mu.Lock()
		r.nodes["n1"] = n
		r.mu.Unlock()
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		n.Obeyed(wire.Fence{Cluster: "c1", Epoch: 1, Term: 9, Index: 1})
		r.start()
		r.must(&state.NodeAdopted{ID: "n1", Token: "t", Pool: "p", Instance: "i", Offering: muster.Offering{Provider: "fake", Name: "o"}})
		r.until("held", time.Second, func(s *state.Snapshot) bool { return s.Node("n1").Intent == muster.NodeHold })
		if why := r.log.Latest().Node("n1").IntentReason; !strings.Contains(why, "obeyed a newer server") {
			t.Errorf("reason: %s", why)
		}
	})
}

// A backup was restored elsewhere, and the agent obeys that server: here its node is held, so that
// nothing is run again when the other server ends its instance.
func TestNodeOfARestoredServerIsHeld(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("j", spec("sleep 1h"))
		id := r.place("j", "n1")[0]
		r.until("it runs", time.Minute, func(s *state.Snapshot) bool { return s.Alloc(id).Status == muster.AllocRunning })
		newer := wire.Fence{Cluster: "c1", Epoch: 2, Term: 1, Index: 1}
		n.Obeyed(newer)
		n.Cut(true)
		n.Cut(false)
		r.until("held", 2*time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Intent == muster.NodeHold })
		if row := r.log.Latest().Node("n1"); !strings.Contains(row.IntentReason, "epoch 2") || row.IntentWho != state.WhoLink {
			t.Errorf("%q by %q", row.IntentReason, row.IntentWho)
		}
		if a := r.log.Latest().Alloc(id); !a.Live() {
			t.Errorf("%s", a.Status)
		}
		// Another term of the same epoch is only a leader that this server has not heard of.
		n.Obeyed(wire.Fence{})
		r.until("released", 2*time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Intent == muster.NodeRun })
		n.Obeyed(wire.Fence{Cluster: "c1", Epoch: 1, Term: 99, Index: 1})
		n.Cut(true)
		n.Cut(false)
		time.Sleep(2 * time.Minute)
		if row := r.log.Latest().Node("n1"); row.Intent == muster.NodeHold {
			t.Errorf("%q", row.IntentReason)
		}
	})
}

// A new instance is given time to start its agent by itself.
func TestBootIsNotHurried(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		n.Kill()
		r.start()
		time.Sleep(900 * time.Millisecond)
		if s := r.link.Stats(); s.AgentStarts > 0 {
			t.Errorf("%d starts", s.AgentStarts)
		}
		r.until("serving", time.Second, serving("n1"))
	})
}
