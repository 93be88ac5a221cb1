package link

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// F-M6: while the provider does not destroy a node, what runs there may finish, and its output is stored.
func TestMemberFinishesOnTerminatingNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 1m ; flood 5000 ; true"))
		r.submit("b", spec("sleep 1m ; exit 3"))
		r.submit("c", spec("hang"))
		r.place("a", "n1")
		b := r.place("b", "n1")[0]
		c := r.place("c", "n1")[0]
		r.until("running", time.Second, allocIs(c, muster.AllocRunning))
		r.must(&state.NodeTerminating{ID: "n1", Reason: "destroyed by an operator"})
		r.until("it succeeds", 70*time.Second, jobEnded("a"))
		r.until("its output is stored", 10*time.Second, outputIs("ua-0-1", state.OutputComplete))
		// A failure may come of the shutdown of the machine.
		if got := r.log.Latest().Alloc(b); !got.Live() {
			t.Errorf("a failure on a terminating node counts: %s %v", got.Outcome, got.Failure)
		}
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "c"}})
		r.until("stopped", 20*time.Second, jobEnded("c"))
		r.must(&state.NodeGone{ID: "n1"})
		if got := r.log.Latest().Alloc(b); got.Outcome != muster.OutcomeLost {
			t.Errorf("%s is %s", b, got.Outcome)
		}
	})
}

// finishedWhileTerminating has a member succeed a second ago on a node that is being destroyed.
func finishedWhileTerminating(r *rig) (n *linktest.Node, id muster.AllocID) {
	r.t.Helper()
	n = r.boot("n1", 8)
	r.start()
	r.until("serving", time.Second, serving("n1"))
	r.submit("a", spec("sleep 20s ; true"))
	id = r.place("a", "n1")[0]
	r.until("running", time.Second, allocIs(id, muster.AllocRunning))
	r.must(&state.NodeTerminating{ID: "n1", Reason: "idle"})
	time.Sleep(21 * time.Second)
	return n, id
}

// A program that the shutdown of its machine ends may exit with 0: that is no success.
func TestSuccessDuringShutdownDoesNotCount(t *testing.T) {
	inBubble(t, func(r *rig) {
		n, id := finishedWhileTerminating(r)
		n.Destroy()
		time.Sleep(time.Minute)
		if got := r.log.Latest().Alloc(id); !got.Live() {
			t.Errorf("it is %s", got.Outcome)
		}
		r.must(&state.NodeGone{ID: "n1"})
		if got := r.log.Latest().Alloc(id); got.Outcome != muster.OutcomeLost {
			t.Errorf("it is %s", got.Outcome)
		}
	})
}

// A machine that loses its power or network closes no connection, and its silence is noticed only later than aliveFor.
func TestSuccessBeforeSilenceDoesNotCount(t *testing.T) {
	inBubble(t, func(r *rig) {
		n, id := finishedWhileTerminating(r)
		n.Silence()
		time.Sleep(time.Minute)
		if got := r.log.Latest().Alloc(id); !got.Live() {
			t.Errorf("it is %s", got.Outcome)
		}
		r.must(&state.NodeGone{ID: "n1"})
		if got := r.log.Latest().Alloc(id); got.Outcome != muster.OutcomeLost {
			t.Errorf("it is %s", got.Outcome)
		}
	})
}

// An agent that is only slow to answer is asked again: it reports the end of an allocation once.
func TestSuccessCountsOnceAgentAnswers(t *testing.T) {
	inBubble(t, func(r *rig) {
		n, id := finishedWhileTerminating(r)
		n.Hang(true)
		time.Sleep(12 * time.Second)
		if got := r.log.Latest().Alloc(id); !got.Live() {
			t.Errorf("it is %s, and its agent has not answered", got.Outcome)
		}
		n.Hang(false)
		r.until("it succeeds", 2*aliveFor, jobEnded("a"))
	})
}

// Nothing is started on a node that is terminating: not what was placed there before, and no agent.
func TestNothingStartsOnTerminatingNode(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("hang"))
		id := r.place("a", "n1")[0]
		r.until("running", time.Second, allocIs(id, muster.AllocRunning))
		n.Cut(true)
		r.submit("b", spec("hang"))
		late := r.place("b", "n1")[0]
		time.Sleep(100 * time.Millisecond)
		r.must(&state.NodeTerminating{ID: "n1", Reason: "destroyed by an operator"})
		n.Cut(false)
		time.Sleep(time.Minute)
		if n.Ran()[late] != 0 {
			t.Errorf("%s was started", late)
		}
		if !r.link.node("n1").contactNow().Up {
			t.Error("no contact")
		}
		boots := n.Boots()
		n.Kill()
		time.Sleep(time.Minute)
		if n.Boots() != boots {
			t.Errorf("its agent was started %d times", n.Boots()-boots)
		}
	})
}

// Contact renews the lease, by which a machine ends itself that nobody destroys: it ends some time after the last
// allocation, and after a while in any case. The next leader goes on like this one.
func TestContactToTerminatingNodeIsBounded(t *testing.T) {
	inBubble(t, func(r *rig) {
		var tight atomic.Bool
		tight.Store(true)
		r.config.DiskTight = fullWhile(tight.Load)
		r.boot("n1", 8)
		r.boot("n2", 8)
		r.start()
		r.until("serving", time.Second, func(s *state.Snapshot) bool { return serving("n1")(s) && serving("n2")(s) })
		r.submit("a", spec("hang"))
		r.submit("b", spec("sleep 1m ; flood 5000 ; true"))
		r.place("a", "n1")
		r.place("b", "n2")
		time.Sleep(time.Second)
		r.must(&state.NodeTerminating{ID: "n1"})
		r.must(&state.NodeTerminating{ID: "n2"})
		r.restart()
		r.until("the short one ends", 70*time.Second, jobEnded("b"))
		up := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := r.link.Stats().Up; got != want {
				t.Errorf("contact to %d nodes, want %d", got, want)
			}
		}
		up(2)
		// The leader changes while the output of the short one is not stored.
		r.restart()
		time.Sleep(endingOutput / 6)
		up(2)
		tight.Store(false)
		r.until("its output is stored", endingOutput/2, outputIs("ub-0-1", state.OutputComplete))
		time.Sleep(endingOutput)
		up(1)
		time.Sleep(endingFor)
		up(0)
		r.must(&state.NodeGone{ID: "n1"})
		r.must(&state.NodeGone{ID: "n2"})
		synctest.Wait()
		if got := r.link.Stats().Nodes; got != 0 {
			t.Errorf("links to %d nodes", got)
		}
	})
}

// What has not been stored when contact to a terminating node ends will not come: readers do not wait for the destruction.
func TestOutputIsGivenUpWhenContactEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.config.DiskTight = fullWhile(func() bool { return true })
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("sleep 1m ; flood 5000 ; true"))
		id := r.place("a", "n1")[0]
		r.until("running", time.Second, allocIs(id, muster.AllocRunning))
		r.must(&state.NodeTerminating{ID: "n1"})
		r.until("it succeeds", 70*time.Second, jobEnded("a"))
		time.Sleep(endingOutput - time.Second)
		if got := r.log.Latest().Alloc(id).Output.Stage; got != state.OutputOpen {
			t.Errorf("its output is %s before contact has ended", got)
		}
		r.until("its output is given up", 2*time.Second, outputIs(id, state.OutputIncomplete))
		synctest.Wait()
		if got := r.link.Stats().Nodes; got != 0 {
			t.Errorf("links to %d nodes", got)
		}
		r.must(&state.NodeGone{ID: "n1"})
	})
}

// listing counts how often a store is asked what it has, which takes a while.
type listing struct {
	Blobs
	asked atomic.Int32
}

func (l *listing) List(ctx context.Context, prefix string) ([]blob.Info, error) {
	l.asked.Add(1)
	time.Sleep(time.Second)
	return l.Blobs.List(ctx, prefix)
}

// A leader that finds a terminating node without contact gives up its output once, however often its row changes meanwhile.
func TestOutputIsGivenUpOnceByTheNextLeader(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.config.DiskTight = fullWhile(func() bool { return true })
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("sleep 1m ; flood 5000 ; true", count(4)))
		r.submit("b", spec("hang"))
		ids := r.place("a", "n1")
		live := r.place("b", "n1")[0]
		r.until("running", time.Second, allocIs(live, muster.AllocRunning))
		r.must(&state.NodeTerminating{ID: "n1"})
		r.until("they succeed", 70*time.Second, jobEnded("a"))
		r.stop()
		time.Sleep(endingFor)
		asked := &listing{Blobs: r.blobs}
		r.config.Blobs = asked
		r.restart()
		const changes = 100
		for i := range changes {
			r.must(&state.NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Reason: strconv.Itoa(i)})
			synctest.Wait()
		}
		for _, id := range ids {
			r.until("its output is given up", time.Minute, outputIs(id, state.OutputIncomplete))
		}
		if got, most := asked.asked.Load(), int32(2*len(ids)); got > most {
			t.Errorf("the store was asked %d times for %d outputs of 2 streams each", got, len(ids))
		}
		r.must(&state.NodeGone{ID: "n1"})
		synctest.Wait()
		if len(r.link.dropped) != 0 {
			t.Error("the node is gone, and not forgotten")
		}
	})
}
