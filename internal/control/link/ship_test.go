package link

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/clock"
	"github.com/musterhq/muster/internal/state"
)

// slowly makes every Put take its time.
func slowly(d time.Duration) func(string) time.Duration {
	return func(string) time.Duration { return d }
}

// Its end comes while a chunk is on its way: the rest is shipped right after.
func TestEndDuringShipping(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.blobs.Slow(slowly(5 * time.Second))
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 5000 ; sleep 10s ; flood 5000 ; true"))
		r.place("a", "n1")
		r.until("the end", 20*time.Second, jobEnded("a"))
		r.until("stored", 10*time.Second, outputIs("ua-0-1", state.OutputComplete))
		if out := r.log.Latest().Alloc("ua-0-1").Output; out.Stdout.Size != 10_000 || out.BlobBytes != 10_000 || len(r.stored("ua-0-1", "stdout")) != 10_000 {
			t.Errorf("output %+v, %d bytes stored", out, len(r.stored("ua-0-1", "stdout")))
		}
	})
}

// Small output that ends while its first chunk is on its way: the chunk is not left for ever.
func TestSmallOutputEndsDuringShipping(t *testing.T) {
	for _, sleep := range []string{"8s", "9s", "10s", "11s"} {
		inBubble(t, func(r *rig) {
			r.blobs.Slow(slowly(5 * time.Second))
			r.boot("n1", 8)
			r.start()
			r.until("serving", time.Second, serving("n1"))
			r.submit("a", spec("print one ; sleep "+sleep+" ; print two ; true"))
			r.place("a", "n1")
			r.until("the end", 20*time.Second, jobEnded("a"))
			r.until("stored", 20*time.Second, outputIs("ua-0-1", state.OutputComplete))
			time.Sleep(time.Minute)
			out := r.log.Latest().Alloc("ua-0-1").Output
			if string(out.Stdout.Inline) != "one\ntwo\n" || out.BlobBytes != 0 || r.blobs.Usage() != 0 {
				t.Errorf("sleep %s: output %+v, %d bytes in blobs", sleep, out, r.blobs.Usage())
			}
		})
	}
}

// The same if the chunk is of the leader before.
func TestSmallOutputShippedByAnEarlierLeader(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 20s ; print two ; true"))
		r.place("a", "n1")
		time.Sleep(15 * time.Second)
		if got := r.stored("ua-0-1", "stdout"); got != "one\n" {
			t.Fatalf("stored after 15 s: %q", got)
		}
		r.stop()
		time.Sleep(10 * time.Second) // it ends, and nobody hears it
		r.restart()
		r.until("stored", 30*time.Second, outputIs("ua-0-1", state.OutputComplete))
		if out := r.log.Latest().Alloc("ua-0-1").Output; string(out.Stdout.Inline) != "one\ntwo\n" || out.BlobBytes != 0 || r.blobs.Usage() != 0 {
			t.Errorf("output %+v, %d bytes in blobs", out, r.blobs.Usage())
		}
	})
}

// The same if no time has passed for the log meanwhile, because the next leader's system clock is behind.
func TestSmallOutputShippedBeforeTheClockWentBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		behind := func(d time.Duration) *clock.Steady {
			return &clock.Steady{Wall: func() int64 { return time.Now().Add(-d).UnixMicro() }, Away: func() time.Duration { return 0 }}
		}
		r.log.Clock = behind(0)
		r.config.Clock = r.log.Now
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; sleep 20s ; print two ; true"))
		r.place("a", "n1")
		time.Sleep(15 * time.Second)
		if got := r.stored("ua-0-1", "stdout"); got != "one\n" {
			t.Fatalf("stored after 15 s: %q", got)
		}
		r.stop()
		time.Sleep(10 * time.Second)
		last := r.log.Latest().Meta().Time
		r.log.Clock = behind(time.Hour)
		r.log.Clock.Heard(int64(last))
		r.restart()
		r.until("stored", 30*time.Second, outputIs("ua-0-1", state.OutputComplete))
		if out := r.log.Latest().Alloc("ua-0-1").Output; string(out.Stdout.Inline) != "one\ntwo\n" || r.blobs.Usage() != 0 {
			t.Errorf("output %+v, %d bytes in blobs", out, r.blobs.Usage())
		}
	})
}

// A reload begins another link in the same term. What the link before had stored is found, counted, and deleted when the
// output limit does not need it.
func TestOutputShippedBeforeAReload(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 70000 ; sleep 12s ; flood 20000 ; sleep 6s ; flood 70000", func(s *api.JobSpec) { s.OutputLimit = 64 << 10 }))
		r.submit("b", spec("print one ; sleep 18s ; print two ; true"))
		r.place("a", "n1")
		r.place("b", "n1")
		time.Sleep(15 * time.Second)
		if a, b := len(r.stored("ua-0-1", "stdout")), len(r.stored("ub-0-1", "stdout")); a == 0 || b == 0 {
			t.Fatalf("%d and %d bytes stored before the reload", a, b)
		}
		r.stop()
		time.Sleep(5 * time.Second)
		r.start()
		r.until("stored", time.Minute, outputIs("ua-0-1", state.OutputComplete))
		r.until("stored", time.Minute, outputIs("ub-0-1", state.OutputComplete))
		out := r.log.Latest().Alloc("ua-0-1").Output
		if got := len(r.stored("ua-0-1", "stdout")); int64(got) != out.BlobBytes || int64(got) != out.Stdout.Size-out.Stdout.Start {
			t.Errorf("%d bytes stored, output %+v", got, out)
		}
		out = r.log.Latest().Alloc("ub-0-1").Output
		if got := r.stored("ub-0-1", "stdout"); got != "" || string(out.Stdout.Inline) != "one\ntwo\n" {
			t.Errorf("%q stored, output %+v", got, out)
		}
	})
}

// A node whose clock agrees with the log's is not refused because the server's own clock was set.
func TestNodesAreNotJudgedByAClockThatWasSet(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		inBubble(t, func(r *rig) {
			// The bubble's clock is the system's. The log's, from before it was set, is off it.
			r.log.Clock = &clock.Steady{Wall: func() int64 { return time.Now().Add(off).UnixMicro() }, Away: func() time.Duration { return 0 }}
			r.config.Clock = r.log.Now
			r.boot("n1", 8)
			r.start()
			r.until("serving", time.Second, serving("n1"))
		})
	}
}

// The log's time runs on ahead of the system's clock after that was set back.
func TestOutputIsShippedWhenTheLogIsAhead(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Clock = &clock.Steady{Wall: func() int64 { return time.Now().Add(time.Hour).UnixMicro() }, Away: func() time.Duration { return 0 }}
		r.config.Clock = r.log.Now
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("print one ; hang"))
		r.place("a", "n1")
		time.Sleep(15 * time.Second)
		if got := r.stored("ua-0-1", "stdout"); got != "one\n" {
			t.Errorf("stored after 15 s: %q", got)
		}
	})
}

// An agent that is ended while it answers may end its answer as if that were all.
func TestAgentEndsWhileItAnswers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.blobs.Slow(slowly(time.Second))
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 5000 ; true", count(8)))
		r.place("a", "n1")
		r.until("the end", time.Second, jobEnded("a"))
		n.Hang(true)
		time.Sleep(2 * time.Second)
		n.Kill()
		n.Hang(false)
		for i := range 8 {
			id := muster.NewAllocID("ua", i, 1)
			r.until("stored", time.Minute, outputIs(id, state.OutputComplete))
			if out := r.log.Latest().Alloc(id).Output; out.Stdout.Size != 5000 || out.BlobBytes != 5000 || len(r.stored(id, "stdout")) != 5000 {
				t.Errorf("output of %s %+v, %d bytes stored", id, out, len(r.stored(id, "stdout")))
			}
		}
	})
}

// What the node's disk did not take of an output is said, however little there is.
func TestOutputThatTheNodeLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		for name, command := range map[string]string{"a": "print one ; lose 7 ; true", "b": "flood 5000 ; lose 7 ; true"} {
			r.submit(name, spec(command))
			r.place(name, "n1")
			id := muster.NewAllocID(muster.JobUID("u"+name), 0, 1)
			r.until("told", 10*time.Second, outputIs(id, state.OutputIncomplete))
			if out := r.log.Latest().Alloc(id).Output; !strings.Contains(out.Why, "did not take 7 bytes") || out.Stdout.Size < 4 {
				t.Errorf("output %+v", out)
			}
		}
	})
}

// What ran on a machine that vanished: what is stored of its output is said, and counted once.
func TestOutputOfALostNode(t *testing.T) {
	for _, facts := range [][]state.Fact{
		{&state.NodeGone{ID: "n1"}},
		{&state.NodeTerminating{ID: "n1"}, &state.NodeGone{ID: "n1"}},
	} {
		inBubble(t, func(r *rig) {
			n := r.boot("n1", 8)
			r.start()
			r.until("serving", time.Second, serving("n1"))
			r.submit("a", spec("flood 5000 ; hang"))
			r.submit("b", spec("flood 6000 ; sleep 10s ; flood 6000 ; true"))
			r.place("a", "n1")
			r.place("b", "n1")
			time.Sleep(9 * time.Second)
			r.blobs.Slow(slowly(time.Hour)) // nothing more of them is stored
			time.Sleep(6 * time.Second)
			n.Destroy()
			for _, f := range facts {
				r.must(f)
				time.Sleep(time.Second)
			}
			for id, size := range map[muster.AllocID]int64{"ua-0-1": 5000, "ub-0-1": 6000} {
				r.until("incomplete", time.Minute, outputIs(id, state.OutputIncomplete))
				a := r.log.Latest().Alloc(id)
				if a.Output.Stdout.Size != size || a.Output.BlobBytes != size || a.Output.Why == "" {
					t.Errorf("output of %s: %+v", id, a.Output)
				}
				if j := r.log.Latest().JobByUID(a.UID); j.OutputBytes != size {
					t.Errorf("job of %s: %d bytes", id, j.OutputBytes)
				}
			}
			r.check()
		})
	}
}

// The next leader tells it of what the one before had shipped.
func TestOutputGivenUpByTheNextLeader(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("flood 5000 ; sleep 10s ; flood 5000 ; true"))
		r.place("a", "n1")
		time.Sleep(9 * time.Second)
		r.blobs.Slow(slowly(time.Hour))
		r.until("the end", 10*time.Second, jobEnded("a"))
		r.stop()
		r.must(&state.NodeTerminating{ID: "n1", Reason: "destroyed by an operator"})
		r.restart()
		r.until("given up", time.Second, outputIs("ua-0-1", state.OutputIncomplete))
		if out := r.log.Latest().Alloc("ua-0-1").Output; out.Stdout.Size != 5000 || out.BlobBytes != 5000 || !strings.Contains(out.Why, "destroyed by an operator") {
			t.Errorf("output %+v", out)
		}
	})
}

// The disk runs low while a declared output is stored: not to the last byte.
func TestDiskTightDuringDeclaredOutput(t *testing.T) {
	inBubble(t, func(r *rig) {
		var looks atomic.Int32
		var low atomic.Bool
		low.Store(true)
		r.config.DiskTight = fullWhile(func() bool { return looks.Add(1) > 1 && low.Load() })
		r.boot("n1", 8)
		r.start()
		r.until("serving", time.Second, serving("n1"))
		r.submit("a", spec("fill x 20000000 ; true", outputs("x")))
		r.place("a", "n1")
		time.Sleep(10 * time.Second)
		if a := r.log.Latest().Alloc("ua-0-1"); !a.Live() || r.blobs.Usage() > 0 {
			t.Fatalf("it is %s %s with %d bytes stored on a disk that is nearly full", a.Status, a.Outcome, r.blobs.Usage())
		}
		low.Store(false)
		r.until("the end", time.Minute, jobEnded("a"))
		if a := r.log.Latest().Alloc("ua-0-1"); a.Outcome != muster.OutcomeSucceeded || r.blobs.Usage() != 20000000 {
			t.Errorf("%s with %d bytes", a.Outcome, r.blobs.Usage())
		}
		// It stays so: given up as a fault from outside.
		low.Store(true)
		looks.Store(0)
		r.submit("b", spec("make y one ; fill x 20000000 ; true", outputs("y", "x")))
		r.place("b", "n1")
		r.until("given up", 11*time.Minute, func(s *state.Snapshot) bool { return !s.Alloc("ub-0-1").Live() })
		a := r.log.Latest().Alloc("ub-0-1")
		if a.Failure == nil || a.Failure.Class != muster.FailureOutside || a.Failure.Reason != muster.ReasonOutputNotStored {
			t.Errorf("failure %v", a.Failure)
		}
		if got := len(r.blobs.Whole(blob.OutputKey("default", "ub", "ub-0-1", 0))); got != 3 || a.Output.BlobBytes != 3 {
			t.Errorf("%d bytes of its first output are stored, %d are counted", got, a.Output.BlobBytes)
		}
	})
}
