package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

func TestSubmitToPlaced(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("job a count=3")
		r.is("")
		r.do("node n1 cpu=2 memory=4GiB")
		r.is("n1: a[0] a[1]")
		if s := r.broker.Stats(); s.Blocked != 1 {
			t.Errorf("%+v", s)
		}
		r.do("end a 0 succeeded")
		r.is("n1: a[1] a[2]")
		r.do("end a 1 succeeded\nend a 2 succeeded")
		r.do("job b priority=10")
		r.do("job c priority=90 count=2")
		r.is("n1: b[0] c[0]") // b came when there was room; strictness is within what waits
		r.do("end b 0 node-fault")
		r.is("n1: c[0] c[1]")
		r.do("node n2 cpu=1 memory=1GiB")
		r.is("n1: c[0] c[1]; n2: b[0]#2")
	})
}

// What is urgent does not wait for the plan before it, not even while the log is busy with that; there is one worker.
func TestUrgentJobDoesNotWaitForAPlan(t *testing.T) {
	inBubble(t, Config{Workers: 1}, func(r *rig) {
		busy, free := make(chan struct{}), make(chan struct{})
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if p, ok := f.(*state.PlanCommitted); ok && p.Placements[0].UID == "low" {
				close(busy)
				<-free
			}
			return nil
		}
		r.do("node n1 cpu=4 memory=4GiB")
		r.do("job low priority=20 count=2")
		<-busy
		r.do("job high priority=80")
		r.is("n1: high[0]")
		r.do("job same priority=20")
		r.is("n1: high[0]") // its turn is after low's
		close(free)
		synctest.Wait()
		r.is("n1: high[0] low[0] low[1] same[0]")
	})
}

// S3, B3 through all loops: room that is freed bit by bit goes to those who
// wait by priority and age.
func TestFreedCapacityGoesByPriorityAndAge(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=2 memory=4GiB\njob fill count=2")
		for i := range 6 {
			r.do(fmt.Sprintf("job j%d priority=%d", i, 50+10*(i%2)))
		}
		r.do("end fill 0 succeeded\nend fill 1 succeeded")
		r.is("n1: j1[0] j3[0]")
		r.do("end j1 0 succeeded")
		r.is("n1: j3[0] j5[0]")
		r.do("end j3 0 succeeded")
		r.do("end j5 0 succeeded")
		r.is("n1: j0[0] j2[0]")
	})
}

// Partial commits go on with the rest on the newer state.
func TestPartialCommitGoesOnWithTheRest(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		once := true
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if p, ok := f.(*state.PlanCommitted); ok && once && len(p.Placements) == 6 {
				once = false
				do(r.t, r.log, "intent n1 hold") // between verified and applied
			}
			return nil
		}
		r.do("node n1 cpu=4 memory=16GiB\nnode n2 cpu=4 memory=16GiB\nnode n3 cpu=4 memory=16GiB")
		r.do("job a count=6")
		r.is("n2: a[0] a[1] a[4] a[5]; n3: a[2] a[3]")
		idle(t, r.log.Latest())
	})
}

func TestWorkerDiesAtAnyPoint(t *testing.T) {
	// The log holds a plan, its worker is gone; the delivery comes again under
	// the next leadership, and then the old plan is committed after all.
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New(t, 1<<12)
		do(t, log, "node n1 cpu=8 memory=16GiB")
		var held atomic.Pointer[state.PlanCommitted]
		log.Before = func(ctx context.Context, f state.Fact) error {
			if p, ok := f.(*state.PlanCommitted); ok && held.CompareAndSwap(nil, p) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		first := start(t, log, Config{})
		do(t, log, "job a count=4\njob b count=2")
		synctest.Wait()
		first.stop(t)
		second := start(t, log, Config{})
		synctest.Wait()
		if n := log.Latest().LiveAllocCount(); n != 6 {
			t.Errorf("%d allocations", n)
		}
		log.Must(t, held.Load())
		synctest.Wait()
		if n := log.Latest().LiveAllocCount(); n != 6 {
			t.Errorf("%d allocations", n)
		}
		if who := twice(log.Latest()); who != "" {
			t.Errorf("%s is placed twice", who)
		}
		second.stop(t)
	})
}

func TestErrorsOfTheLogBackOff(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		var fail atomic.Bool
		tries := make(chan time.Time, 100)
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				tries <- time.Now()
				if fail.Load() {
					return errors.New("the disk is busy")
				}
			}
			return nil
		}
		tried := func(since time.Time) string {
			var at []time.Duration
			for len(tries) > 0 {
				at = append(at, (<-tries).Sub(since))
			}
			return fmt.Sprint(at)
		}
		fail.Store(true)
		start := time.Now()
		r.do("node n1 cpu=4 memory=16GiB\njob a")
		time.Sleep(time.Second)
		fail.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		r.is("n1: a[0]")
		if got := tried(start); got != "[0s 50ms 150ms 350ms 750ms 1.55s]" {
			t.Errorf("tried at %s", got)
		}
		if s := r.broker.Stats(); s.Nacked != 0 {
			t.Errorf("jobs are blamed for the log: %+v", s)
		}
		// It resets: the next error begins anew.
		fail.Store(true)
		start = time.Now()
		r.do("job b")
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if got := tried(start); got != "[0s 50ms]" {
			t.Errorf("tried at %s", got)
		}
	})
}

// refuser answers every plan for some jobs with a refusal.
type refuser struct {
	Submitter
	refuse    map[muster.JobUID]bool
	nodeFault bool
}

func (f *refuser) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	var refused []state.PlanRefusal
	var rest []state.Placement
	for _, p := range s.Placements {
		if f.refuse[p.UID] {
			refused = append(refused, state.PlanRefusal{Placement: p, Reason: "no", NodeFault: f.nodeFault})
		} else {
			rest = append(rest, p)
		}
	}
	s.Placements = rest
	v, err := f.Submitter.Submit(ctx, s)
	v.Refused = append(v.Refused, refused...)
	return v, err
}

// A job that is refused for its own sake again and again is nacked and in
// the end parked with the reason; those who shared its window are not.
func TestRefusedAgainAndAgainIsParked(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		bad := &refuser{Submitter: r.applier, refuse: map[muster.JobUID]bool{"bad": true}}
		r.scheduler.cfg.Submit = bad
		r.do("job bad\njob good\njob wide count=3")
		r.do("node n1 cpu=5 memory=16GiB")
		r.is("n1: good[0] wide[0] wide[1] wide[2]")
		time.Sleep(time.Minute)
		synctest.Wait()
		if j := r.log.Latest().JobByUID("bad"); j.Parked != "given up after 3 tries: no" {
			t.Errorf("parked: %q", j.Parked)
		}
		if s := r.scheduler.Stats(); s.GivenBack != 3 || s.Refusals != 3*maxRounds {
			t.Errorf("%+v", s)
		}
		bad.refuse = nil
		r.do("end wide 0 succeeded\nreplace bad cpu=0.5")
		r.is("n1: bad[0] good[0] wide[1] wide[2]")
	})
}

// A late worker's answers change nothing, and its plan is refused.
func TestLateWorkerIsRefused(t *testing.T) {
	inBubble(t, Config{Workers: 1}, func(r *rig) {
		r.do("node n1 cpu=8 memory=16GiB")
		// The scheduler's own worker is kept busy with a job that waits for the log.
		gate := make(chan struct{})
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				<-gate
			}
			return nil
		}
		r.do("job busy")
		r.do("job a")
		w, err := r.broker.Dequeue(context.Background(), 1)
		if err != nil {
			t.Fatal(err)
		}
		d := place.Plan(r.log.Latest(), w.Jobs, r.log.Latest().Meta().Time, place.Limits{Placements: 9, Looks: 9})
		time.Sleep(2 * time.Minute) // a long nap
		close(gate)
		synctest.Wait()
		r.is("n1: a[0] busy[0]")
		r.do("end a 0 outside")
		v, err := r.applier.Submit(context.Background(), verify.Submission{Token: w.Token, Placements: d.Placements})
		if err != nil || len(v.Placements) != 0 || len(v.Refused) != 1 || v.Refused[0].Reason != "job with uid a: its delivery is over" {
			t.Errorf("%+v, %v", v, err)
		}
		if err := r.broker.Ack(w.Token, w.Jobs...); !muster.IsKind(err, muster.FaultConflict) {
			t.Errorf("a late ack: %v", err)
		}
		if _, over, err := r.scheduler.commit(context.Background(), w.Token, &d); !over || err != nil {
			t.Errorf("a late worker goes on: %v, %v", over, err)
		}
		if s := r.broker.Stats(); s.Delayed != 1 || s.TimedOut != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// 10,000 members in one job, and 10,000 jobs, through windows and limits.
func TestManyMembersAndManyJobs(t *testing.T) {
	inBubble(t, Config{Window: 64, Limits: place.Limits{Placements: 100}}, func(r *rig) {
		for i := range 50 {
			r.do(fmt.Sprintf("node n%02d cpu=100 memory=100GiB", i))
		}
		r.do("job big count=1000 cpu=1 memory=1MiB")
		for i := range 300 {
			do(t, r.log, fmt.Sprintf("job j%03d cpu=1 memory=1MiB", i))
		}
		synctest.Wait()
		if n := r.log.Latest().LiveAllocCount(); n != 1300 {
			t.Errorf("%d allocations", n)
		}
		if s := r.broker.Stats(); s.Ready+s.Out+s.Blocked+s.Delayed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Four workers, jobs and nodes that come, go and fail: with the race detector.
func TestFourWorkersUnderChurn(t *testing.T) {
	log := memlog.New(t, 1<<14)
	l := start(t, log, Config{Workers: 4, Window: 8, Limits: place.Limits{Placements: 20}})
	var wg sync.WaitGroup
	twelveNodes(t, log)
	for g := range 3 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for i := range 100 {
				submit(t, log, fmt.Sprintf("g%dj%d", g, i), fmt.Sprintf("count=%d", 1+rng.IntN(6)), fmt.Sprintf("cpu=%d", 1+rng.IntN(3)),
					fmt.Sprintf("priority=%d", rng.IntN(3)*10), "attempts=3", "backoff=1ms")
				churn(t, log, rng)
			}
		})
	}
	wg.Wait()
	for i := range 12 {
		_, _, _ = log.Propose(t.Context(), &state.NodeHealthChanged{ID: muster.NodeID(fmt.Sprintf("n%d", i)), Health: muster.NodeGood})
	}
	rng := rand.New(rand.NewPCG(2, 2))
	for deadline := time.Now().Add(time.Minute); ; {
		end(t, log, rng, muster.OutcomeSucceeded)
		live := 0
		log.Latest().Jobs(muster.JobKey{}, func(j *state.Job) bool {
			if j.Stage != muster.JobEnded {
				live++
			}
			return true
		})
		if live == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d jobs never ended: %+v", live, l.broker.Stats())
		}
	}
	l.stop(t)
	t.Logf("%+v\n%+v\n%+v", l.scheduler.Stats(), l.applier.Stats(), l.broker.Stats())
}

func twelveNodes(t testing.TB, log *memlog.Log) {
	for i := range 12 {
		do(t, log, fmt.Sprintf("node n%d cpu=8 memory=64GiB", i))
	}
}

func submit(t testing.TB, log *memlog.Log, name string, words ...string) {
	f, err := fittest.Job(name, words...)
	if err != nil {
		t.Fatal(err)
	}
	log.Must(t, f)
}

// churn ends some allocations somehow, and turns a node's health.
func churn(t testing.TB, log *memlog.Log, rng *rand.Rand) {
	outcomes := []muster.Outcome{muster.OutcomeSucceeded, muster.OutcomeSucceeded, muster.OutcomeFailed, muster.OutcomeStopped}
	end(t, log, rng, outcomes...)
	if why := fittest.Overfull(log.Latest()); why != "" {
		t.Error(why)
	}
	if who := twice(log.Latest()); who != "" {
		t.Errorf("%s is placed twice", who)
	}
	health := []muster.NodeHealth{muster.NodeLost, muster.NodeGood, muster.NodeGood}
	_, _, _ = log.Propose(t.Context(), &state.NodeHealthChanged{ID: muster.NodeID(fmt.Sprintf("n%d", rng.IntN(12))), Health: health[rng.IntN(3)]})
}

func end(t testing.TB, log *memlog.Log, rng *rand.Rand, outcomes ...muster.Outcome) {
	byNode := map[muster.NodeID][]state.AllocUpdate{}
	log.Latest().LiveAllocs(func(a *state.Alloc) bool {
		if rng.IntN(3) == 0 {
			u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: outcomes[rng.IntN(len(outcomes))]}
			if u.Outcome == muster.OutcomeFailed {
				u.Failure = &muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonInput, Message: "registry"}
			}
			byNode[a.Node] = append(byNode[a.Node], u)
		}
		return true
	})
	for id, updates := range byNode {
		log.Must(t, &state.AllocsReported{Node: id, Allocs: updates})
	}
}

// Leaderships come and go at any moment: nothing is placed twice, nothing is
// forgotten, nothing is left running.
func TestCancelAndRestart(t *testing.T) {
	log := memlog.New(t, 1<<14)
	twelveNodes(t, log)
	rng := rand.New(rand.NewPCG(3, 3))
	for term := range 60 {
		log.Must(t, &state.TermBegan{Term: uint64(term + 2)})
		l := start(t, log, Config{Workers: 2, Window: 4})
		for i := range 3 {
			submit(t, log, fmt.Sprintf("t%dj%d", term, i), "count=4", fmt.Sprintf("priority=%d", rng.IntN(3)*10))
		}
		churn(t, log, rng)
		for range rng.IntN(200) {
			log.Latest() // a moment of no fixed length
		}
		l.stop(t)
	}
	l := start(t, log, Config{})
	for deadline := time.Now().Add(time.Minute); ; {
		s := l.broker.Stats()
		if last := log.Latest(); s.Ready+s.Out+s.Delayed == 0 && s.Seen > 0 && unplaced(last) == 0 {
			break
		}
		end(t, log, rng, muster.OutcomeSucceeded)
		if time.Now().After(deadline) {
			t.Fatalf("no rest: %+v", s)
		}
	}
	l.stop(t)
	idle(t, log.Latest())
}

func unplaced(snap *state.Snapshot) (n int) {
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		n += j.Waiting()
		return true
	})
	return n
}

// Room that a refused member was counted for is not forgotten: who fitted nowhere
// because of it is planned again before it is called blocked.
func TestCapacityOfARefusedMemberIsUsed(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		gate := make(chan struct{})
		once := true
		r.log.Before = func(_ context.Context, f state.Fact) error {
			p, ok := f.(*state.PlanCommitted)
			switch {
			case ok && p.Placements[0].UID == "busy":
				<-gate // so that the next two share a window
			case ok && once && p.Placements[0].UID == "first":
				once = false
				do(r.t, r.log, "stop first") // between verified and applied
			}
			return nil
		}
		r.do("node n1 cpu=2 memory=2GiB")
		r.do("job busy")
		r.do("job first")
		r.do("job second")
		close(gate)
		synctest.Wait()
		if once {
			t.Fatal("nothing was stopped")
		}
		r.is("n1: busy[0] second[0]")
	})
}

// Planned again only on a state that is as new as the refusal.
func TestPlansAgainAtTheRefreshIndex(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		ahead := &aheadOf{Submitter: r.applier, log: r.log}
		r.scheduler.cfg.Submit = ahead
		r.do("node n1 cpu=1 memory=1GiB\njob a")
		r.is("")
		if n := ahead.calls.Load(); n != 1 {
			t.Errorf("submitted %d times", n)
		}
		r.do("job b cpu=9") // the state moves on
		r.is("n1: a[0]")
	})
}

// aheadOf refuses the first plan by a state that is not here yet.
type aheadOf struct {
	Submitter
	log   *memlog.Log
	calls atomic.Int64
}

func (f *aheadOf) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	if f.calls.Add(1) > 1 {
		return f.Submitter.Submit(ctx, s)
	}
	return verify.Verdict{Refresh: f.log.Latest().Index() + 1, Refused: []state.PlanRefusal{{Placement: s.Placements[0], Reason: "no", NodeFault: true}}}, nil
}

// What is urgent has nobody stopped for room that a plan under way was about to take from it.
func TestNobodyIsStoppedForCapacityOfAPlanInFlight(t *testing.T) {
	inBubble(t, Config{Workers: 1}, func(r *rig) {
		r.do("node n1 cpu=2 memory=4GiB\njob low priority=20 cpu=1 memory=1MiB")
		r.is("n1: low[0]")
		held := &holding{Submitter: r.applier, release: make(chan struct{})}
		r.scheduler.cfg.Submit = held
		r.do("job also priority=20 cpu=1 memory=1MiB") // planned for the room that is left, and not yet committed
		if !held.held.Load() {
			t.Fatal("its plan is not under way: the case is not what it says")
		}
		r.do("job high priority=80 cpu=1 memory=1MiB")
		close(held.release)
		synctest.Wait()
		r.is("n1: high[0] low[0]")
		if a := r.log.Latest().Alloc("low-0-1"); a.Desired != muster.AllocRun {
			t.Errorf("told to stop: %s", a.StopCause)
		}
	})
}

// holding keeps the first plan back.
type holding struct {
	Submitter
	held    atomic.Bool
	release chan struct{}
}

func (h *holding) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	if h.held.CompareAndSwap(false, true) {
		<-h.release
	}
	return h.Submitter.Submit(ctx, s)
}
