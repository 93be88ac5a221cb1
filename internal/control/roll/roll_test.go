package roll

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

// world is a state with a scheduler and agents that do as they are told within a second.
type world struct {
	t   *testing.T
	mu  sync.Mutex
	c   *fittest.Cluster
	bad string // affinity whose members end as soon as they run
}

func (w *world) Latest() *state.Snapshot { return w.c.State.Latest() }
func (w *world) Feed() *state.Feed       { return w.c.State.Feed() }

func (w *world) Propose(_ context.Context, f state.Fact) (uint64, any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.proposeLocked(f)
}

func (w *world) proposeLocked(f state.Fact) (uint64, any, error) {
	if behind := muster.At(time.Now()).Sub(w.c.Now()); behind > 0 {
		w.c.Do(fmt.Sprintf("wait %s", behind))
	}
	v := w.c.Apply(f)
	if err, ok := v.(error); ok {
		return w.Latest().Index(), nil, err
	}
	return w.Latest().Index(), v, nil
}

func (w *world) do(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if behind := muster.At(time.Now()).Sub(w.c.Now()); behind > 0 {
		w.c.Do(fmt.Sprintf("wait %s", behind))
	}
	w.c.Do(text)
}

// serve plays the scheduler and the agents until ctx ends.
func (w *world) serve(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(500 * time.Millisecond)
		w.mu.Lock()
		var lines []string
		w.Latest().LiveAllocs(func(a *state.Alloc) bool {
			switch {
			case a.Desired == muster.AllocStop:
				lines = append(lines, fmt.Sprintf("end %s %d stopped", a.Run.Key.Name, a.Index))
			case a.Status == muster.AllocPlaced:
				lines = append(lines, fmt.Sprintf("run %s %d", a.Run.Key.Name, a.Index))
			case a.Run.Spec.Affinity == w.bad && w.bad != "":
				lines = append(lines, fmt.Sprintf("end %s %d failed", a.Run.Key.Name, a.Index))
			}
			return true
		})
		for _, l := range lines {
			w.c.Do(l)
		}
		var jobs []muster.JobUID
		w.Latest().StandingJobs(func(j *state.Job) bool { jobs = append(jobs, j.UID); return true })
		d := place.Plan(w.Latest(), jobs, max(w.c.Now(), muster.At(time.Now())), place.Limits{Placements: 100, Looks: 1 << 20})
		if len(d.Placements) > 0 {
			_, _, _ = w.proposeLocked(&state.PlanCommitted{Placements: d.Placements})
		}
		w.mu.Unlock()
	}
}

func run(t *testing.T, test func(w *world)) { runWith(t, Config{}, test) }

func runWith(t *testing.T, cfg Config, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, c: fittest.New(t, muster.At(time.Now()))}
		cfg.State, cfg.Proposer = w, w
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { w.serve(ctx) })
		test(w)
		cancel()
		wg.Wait()
	})
}

func (w *world) job(name string) *state.Job { return w.Latest().JobByUID(fittest.UID(name)) }

// until waits for a condition, for ten minutes at most.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for range 1200 {
		if ok() {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	j := w.job("web")
	w.t.Fatalf("not in time: %s; job %+v standing %+v", what, j, j.Standing)
}

func (w *world) rollout(name string, stage muster.RolloutStage, version uint64) func() bool {
	return func() bool {
		j := w.job(name)
		return j.Standing.Rollout == stage && j.Version == version
	}
}

// The whole of it, with time: a version is rolled out two at a time; one that does not run is taken back by itself.
func TestRollsAndReverts(t *testing.T) {
	run(t, func(w *world) {
		w.do("node n1 cpu=8 memory=16GiB\nnode n2 cpu=8 memory=16GiB")
		const like = " type=service count=10 max_parallel=2 min_healthy=10s deadline=1m auto_revert"
		w.do("job web affinity=a" + like)
		w.until("the first version is stable", w.rollout("web", muster.RolloutDone, 1))
		least := 10
		began := time.Now()
		w.do("job web affinity=b" + like)
		w.until("the second is", func() bool {
			least = min(least, w.job("web").Running)
			return w.rollout("web", muster.RolloutDone, 2)()
		})
		if least < 8 {
			t.Errorf("as few as %d of 10 ran, and two may be missing", least)
		}
		if took := time.Since(began); took < 50*time.Second || took > 80*time.Second {
			t.Errorf("five turns of 10s took %s", took)
		}
		w.mu.Lock()
		w.bad = "c"
		w.mu.Unlock()
		w.do("job web affinity=c" + like)
		w.until("the third is taken back", w.rollout("web", muster.RolloutDone, 4))
		j := w.job("web")
		last := j.Standing.Past[len(j.Standing.Past)-1]
		if j.Run.Spec.Affinity != "b" || j.Standing.Reverts != 2 || last.Rollout != muster.RolloutFailed || last.Reason == "" {
			t.Errorf("version 4 runs %q as version %d did, after version 3 was %s because %q", j.Run.Spec.Affinity, j.Standing.Reverts, last.Rollout, last.Reason)
		}
		untouched := 0
		w.Latest().JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
			if a.Live() && a.Version == 2 {
				untouched++
			}
			return true
		})
		if untouched != 8 {
			t.Errorf("%d members were never touched by the version that did not run, want 8", untouched)
		}
	})
}

// A system job follows the nodes, and a service leaves those that drain.
func TestSystemFollowsNodesAndServicesLeaveThem(t *testing.T) {
	run(t, func(w *world) {
		w.do("node n1 cpu=8 memory=16GiB\nnode n2 cpu=8 memory=16GiB\njob agent type=system cpu=0.1\njob web type=service count=4 max_parallel=2 min_healthy=1s")
		live := func(name string, n int) func() bool {
			return func() bool { j := w.job(name); return j.Running == n && j.LiveAllocs == n }
		}
		w.until("both nodes have one", live("agent", 2))
		w.do("node n3 cpu=8 memory=16GiB")
		w.until("the third has one", live("agent", 3))
		w.until("the service runs", live("web", 4))
		w.do("intent n1 drain")
		w.until("the service has left n1", func() bool {
			on := 0
			w.Latest().NodeAllocs("n1", func(a *state.Alloc) bool {
				if !a.Run.System() {
					on++
				}
				return true
			})
			return on == 0 && w.job("web").Running == 4
		})
		if n := w.Latest().Node("n1"); n.Busy() || n.IdleSince == 0 || n.LiveAllocs != 1 {
			t.Errorf("n1 has %d allocations, busy: %v, idle since %d; a member of a system job keeps no node", n.LiveAllocs, n.Busy(), n.IdleSince)
		}
		w.do("gone n1")
		w.until("its member has ended", live("agent", 2))
		if j := w.job("agent"); j.Waiting() != 0 {
			t.Errorf("%d members wait for a node that is gone", j.Waiting())
		}
		w.do("stop agent\nstop web")
		w.until("both have ended", func() bool {
			return w.job("agent").Stage == muster.JobEnded && w.job("web").Stage == muster.JobEnded
		})
	})
}

// While nothing is placed nobody is stopped for a successor, neither by another version nor by a drain.
func TestPausedStopsNobody(t *testing.T) {
	runWith(t, Config{Paused: true}, func(w *world) {
		w.do("node n1 cpu=8 memory=16GiB\njob web type=service count=4 max_parallel=2 min_healthy=1s")
		all := func() bool { j := w.job("web"); return j.Running == 4 && j.LiveAllocs == 4 }
		w.until("the service runs", all)
		w.do("job web type=service count=4 max_parallel=2 min_healthy=1s affinity=v2\nintent n1 drain")
		time.Sleep(5 * time.Minute)
		if !all() {
			t.Errorf("%+v", w.job("web"))
		}
		if j := w.job("web"); j.Version != 2 {
			t.Errorf("version %d: the case is not what it says", j.Version)
		}
	})
}
