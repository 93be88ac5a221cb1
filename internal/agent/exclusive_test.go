package agent

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/fencing"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func exclusive(id muster.AllocID) wire.DesiredAlloc {
	d := run(id, "wait")
	d.Spec.Exclusive = true
	return d
}

// word is what a server says to go on: the tick of the answer before, and for how long that counts.
func (r *rig) word(tick int64, lasts time.Duration, allocs ...wire.DesiredAlloc) int64 {
	r.t.Helper()
	return r.must(wire.Desired{Allocs: allocs, Tick: tick, GuardMillis: lasts.Milliseconds()}).Tick
}

// What is exclusive begins only while the server's word holds, goes on for as long as it is renewed, and is killed, without
// grace, when it lapses; what is not goes on.
func TestExclusiveWorkEndsWithTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newPlayed()
		r := newRig(t, rt, "", func(c *Config) { c.Listener = newPipes() })
		const lasts = 10 * time.Second
		tick := r.word(0, lasts, exclusive("u-0-1"), run("u-1-1", "wait"))
		time.Sleep(time.Hour)
		if rt.started("u-0-1") != 0 || rt.started("u-1-1") != 1 {
			t.Fatal("it began without the word that it may")
		}
		// An old word is no use, however late it comes.
		r.word(tick, lasts)
		time.Sleep(time.Second)
		if rt.started("u-0-1") != 0 {
			t.Fatal("it began on a word of an hour ago")
		}
		tick = r.word(0, lasts)
		for range 20 {
			time.Sleep(4 * time.Second)
			tick = r.word(tick, lasts)
		}
		if got := r.report("u-0-1"); got.Status != muster.AllocRunning || rt.started("u-0-1") != 1 {
			t.Fatalf("%+v", got)
		}
		began := time.Now()
		<-rt.box("u-0-1").Done()
		// The last word counts from the answer before it, four seconds ago.
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("ended %s after the last word", took)
		}
		got := r.until("u-0-1", muster.AllocEnded)
		if got.Outcome != muster.OutcomeFailed || got.Failure.Class != muster.FailureOutside || got.Failure.Reason != muster.ReasonUnguarded {
			t.Errorf("%+v %+v", got, got.Failure)
		}
		if g := rt.box("u-0-1").stopGraces(); len(g) != 1 || g[0] != 0 {
			t.Errorf("graces: %v", g)
		}
		time.Sleep(time.Hour)
		if got := r.report("u-1-1"); got.Status != muster.AllocRunning {
			t.Errorf("%+v", got)
		}
		r.stop()
	})
}

// One that was asked to stop and takes its time is killed when the word lapses.
func TestStoppingExclusiveWorkIsKilledAtTheFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newPlayed()
		r := newRig(t, rt, "", func(c *Config) { c.Listener = newPipes() })
		d := exclusive("u-0-1")
		d.Spec.Command, d.Spec.KillGraceMillis = []string{"hold"}, time.Hour.Milliseconds()
		r.word(r.word(0, 10*time.Second, d), 10*time.Second)
		r.until("u-0-1", muster.AllocRunning)
		r.must(set(stop("u-0-1")...))
		time.Sleep(11 * time.Second)
		if g := rt.box("u-0-1").stopGraces(); len(g) != 2 || g[0] != time.Hour || g[1] != 0 {
			t.Errorf("graces: %v", g)
		}
		rt.box("u-0-1").end(contract.Result{Signal: "SIGKILL", Stopped: true})
		r.until("u-0-1", muster.AllocEnded)
		r.stop()
	})
}

// Another agent goes on with the word that the one before had, and not with one that has lapsed meanwhile.
func TestRestartedAgentKeepsTheFence(t *testing.T) {
	for _, c := range []struct {
		name   string
		forget bool
	}{{"the word holds", false}, {"no word is left", true}} {
		t.Run(c.name, func(t *testing.T) {
			rt := newPlayed()
			r := newRig(t, rt, "")
			r.word(r.word(0, time.Minute, exclusive("u-0-1"), run("u-1-1", "wait")), time.Minute)
			r.until("u-0-1", muster.AllocRunning)
			r.until("u-1-1", muster.AllocRunning)
			r.stop()
			if c.forget {
				if err := os.Remove(filepath.Join(r.dir, fencing.GuardName)); err != nil {
					t.Fatal(err)
				}
			}
			next := newRig(t, rt, r.dir)
			if c.forget {
				if got := next.until("u-0-1", muster.AllocEnded); got.Failure == nil || got.Failure.Reason != muster.ReasonUnguarded {
					t.Errorf("%+v", got)
				}
			} else {
				left, _ := next.agent.node.guard.Left()
				if left < 30*time.Second || left > time.Minute {
					t.Errorf("left: %s", left)
				}
				if got := next.report("u-0-1"); got.Status != muster.AllocRunning {
					t.Errorf("%+v", got)
				}
			}
			if got := next.report("u-1-1"); got.Status != muster.AllocRunning {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A shorter word counts from when it comes, as whoever shortened it counts on that, also for an agent that is started again.
func TestShorterFenceAppliesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newPlayed()
		r := newRig(t, rt, "", func(c *Config) { c.Listener = newPipes() })
		tick := r.word(0, time.Hour, exclusive("u-0-1"))
		tick = r.word(tick, time.Hour)
		time.Sleep(time.Minute)
		if rt.started("u-0-1") != 1 {
			t.Fatal("it has not begun")
		}
		tick = r.word(tick, time.Hour)
		r.word(tick, 30*time.Second)
		time.Sleep(20 * time.Second)
		if got := r.report("u-0-1"); got.Status != muster.AllocRunning {
			t.Fatalf("%+v", got)
		}
		time.Sleep(20 * time.Second)
		if got := r.until("u-0-1", muster.AllocEnded); got.Failure == nil || got.Failure.Reason != muster.ReasonUnguarded {
			t.Fatalf("%+v", got)
		}
		r.stop()
	})
}
