package broker

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

const full = `
node c1 cpu=2 memory=4GiB zone=c1
node c2 cpu=2 memory=4GiB zone=c2
job fill1 count=2 needs zone = c1
job fill2 count=2 needs zone = c2
`

func TestUnusableCapacityDoesNotWake(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do(full)
		r.workAll(9)
		r.do("job a needs zone = c2")
		w := r.next(1)
		tried := r.log.Latest().Index()
		r.do("end fill1 0 succeeded")
		r.ok(r.block(w, tried))
		r.is("blocked 1")
		r.do("end fill1 1 succeeded")
		r.is("blocked 1")
		// Room on the right node, but not enough.
		r.do("job b cpu=2 needs zone = c2")
		r.work(r.next(1))
		r.do("end fill2 0 succeeded")
		if got := r.workAll(9); got != "a[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 1")
	})
}

func TestNoWakeUpIsMissed(t *testing.T) {
	for _, change := range []string{"end fill2 0 succeeded", "node c3 cpu=1 memory=1GiB zone=c2", "rejoin c1 cpu=3 memory=4GiB zone=c1 says.new=yes"} {
		inBubble(t, Config{}, func(r *rig) {
			r.do(full)
			r.workAll(9)
			r.do("job a")
			w := r.next(1)
			tried := r.log.Latest().Index()
			r.do(change)
			r.ok(r.block(w, tried))
			r.is("ready 1")
			if got := r.workAll(1); got != "a[0]" {
				t.Errorf("%s: placed %s", change, got)
			}
			r.is("")
		})
	}
}

func TestOpenedNodesWake(t *testing.T) {
	for _, change := range []string{"health n1 good", "intent n1 run"} {
		inBubble(t, Config{}, func(r *rig) {
			r.do("node n1 cpu=2 memory=2GiB")
			if strings.HasPrefix(change, "health") {
				r.do("health n1 lost")
			} else {
				r.do("intent n1 hold")
			}
			r.do("job a")
			r.workAll(1)
			r.is("blocked 1")
			r.do(change)
			if got := r.workAll(1); got != "a[0]" {
				t.Errorf("%s: placed %s", change, got)
			}
		})
	}
}

func TestAsManyWakeAsFit(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=4 memory=16GiB\njob fill count=4")
		r.workAll(9)
		for i := range 1000 {
			r.log.Must(r.t, newJob(t, fmt.Sprintf("j%03d", i), fmt.Sprintf("priority=%d", i%100)))
		}
		r.settle()
		r.workAll(64)
		r.is("blocked 1000")
		if s := r.Stats(); s.Shapes != 1 {
			t.Errorf("%d shapes", s.Shapes)
		}
		before := r.Stats().Delivered
		r.do("end fill 0 succeeded")
		r.is("ready 1, blocked 999")
		r.do("end fill 1 succeeded\nend fill 2 succeeded")
		r.is("ready 3, blocked 997")
		if got := r.workAll(9); got != "j099[0] j199[0] j299[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 997")
		if n := r.Stats().Delivered - before; n != 3 {
			t.Errorf("%d were looked at for 3 places", n)
		}
	})
}

// Who was woken and has no use for the room passes it on.
func TestUnusedCapacityWakesTheNext(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=1 memory=1GiB\njob fill")
		r.workAll(9)
		r.do("job a priority=30\njob b priority=20\njob c priority=10 cpu=0.5")
		r.workAll(9)
		r.is("blocked 3")
		r.do("end fill 0 succeeded")
		r.is("ready 1, blocked 2")
		r.do("stop a")
		r.is("ready 1, blocked 1")
		w := r.next(1)
		if w.Jobs[0] != "b" {
			t.Fatalf("got %v", w.Jobs)
		}
		r.ok(r.Nack(w.Token, "why", "b")) // it is held back, but nobody else is
		r.is("ready 1, delayed 1")
		if got := r.workAll(1); got != "c[0]" {
			t.Errorf("placed %s", got)
		}
	})
}

// Several shapes compete for the room by priority and age, not by shape.
func TestShapesCompeteByPriorityAndAge(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=4 memory=4GiB\njob fill cpu=4")
		r.workAll(9)
		r.do("job big cpu=3 priority=40\njob old cpu=2 priority=50\njob mid cpu=1 priority=50\njob small cpu=0.5 count=9 priority=10")
		r.workAll(9)
		r.is("blocked 4")
		r.do("end fill 0 succeeded")
		r.is("ready 3, blocked 1") // 2 + 1 + 2 × 0.5
		if got := r.workAll(9); got != "old[0] mid[0] small[0] small[1]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 2")
	})
}

func TestBlockedTwiceIsCountedOnce(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=1 memory=1GiB\njob a cpu=2")
		first := r.next(1)
		r.ok(r.block(first, r.log.Latest().Index()))
		r.is("blocked 1")
		r.do("replace a cpu=3")
		r.is("ready 1")
		r.ok(r.block(r.next(1), r.log.Latest().Index()))
		r.fails(r.block(first, r.log.Latest().Index()))
		r.is("blocked 1")
		if s := r.Stats(); s.Shapes != 1 {
			t.Errorf("%d shapes", s.Shapes)
		}
		r.do("node n2 cpu=2 memory=4GiB") // enough for the old one
		r.is("blocked 1")
		r.do("node n3 cpu=3 memory=4GiB")
		r.is("ready 1")
	})
}

// A shape that was found to fit nowhere is not looked at again for a new job.
func TestEqualShapesAreDecidedOnce(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=1 memory=1GiB\njob fill\njob a")
		r.workAll(9)
		before := r.Stats().Delivered
		for i := range 100 {
			r.do(fmt.Sprintf("job j%d priority=%d", i, i))
		}
		r.is("blocked 101")
		if n := r.Stats().Delivered - before; n != 0 {
			t.Errorf("%d were looked at", n)
		}
		r.do("job other cpu=0.5")
		r.is("ready 1, blocked 101")
		r.workAll(1)
		r.do("end fill 0 succeeded")
		r.is("ready 1, blocked 101")
		r.do("job late priority=100") // room grew since, so it is looked at
		r.is("ready 2, blocked 101")
		if got := r.workAll(1); got != "late[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 102")
	})
}

// A member that avoids the only node with room does not keep the others of its
// shape, nor a later member, from it.
func TestBlockedByFailedNodesOnly(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=2 memory=2GiB\njob a count=2")
		r.workAll(1)
		r.do("end a 0 node-fault")
		r.workAll(1)
		r.is("blocked 1")
		r.do("job b") // the same shape has room
		r.is("ready 1, blocked 1")
		if got := r.workAll(1); got != "b[0]" {
			t.Errorf("placed %s", got)
		}
		r.do("end a 1 outside") // due in a second, and may use n1
		r.workAll(1)
		r.is("blocked 1")
		time.Sleep(time.Second)
		r.is("ready 1")
		if got := r.workAll(1); got != "a[1]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 1")
		r.do("node n2 cpu=1 memory=1GiB")
		if got := r.workAll(1); got != "a[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("")
	})
}

// Room on a node where each of a job's waiting members has failed wakes nobody
// of them, but those behind them.
func TestCapacityWhereAllFailedDoesNotWake(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=3 memory=8GiB\njob fill\njob a priority=90 count=2")
		r.workAll(9)
		r.do("end a 0 node-fault\nend a 1 node-fault")
		r.workAll(1)
		r.do("job big cpu=3")
		r.workAll(1)
		r.is("blocked 2")
		before := r.Stats().Delivered
		r.do("end fill 0 succeeded")
		r.is("ready 1, blocked 1")
		if got := r.workAll(1); got != "big[0]" || r.Stats().Delivered != before+1 {
			t.Errorf("placed %s, %d looked at", got, r.Stats().Delivered-before)
		}
		r.do("node n2 cpu=1 memory=1GiB")
		if got := r.workAll(1); got != "a[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 1")
	})
}

// The same while no node had room at all: a further member that is due may use
// what the others may not.
func TestFurtherMemberMayUseTheCapacity(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=3 memory=8GiB\njob a count=3")
		r.workAll(1)
		r.do("job pad count=2 priority=95")
		r.workAll(1)
		r.do("end a 0 node-fault\nend a 1 node-fault")
		if got := r.workAll(1); got != "pad[0] pad[1]" {
			t.Fatalf("placed %s", got)
		}
		r.is("blocked 1")
		r.do("end pad 0 succeeded")
		r.is("blocked 1")
		r.do("end a 2 outside")
		time.Sleep(time.Second)
		r.settle()
		if got := r.workAll(1); got != "a[2]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 1")
	})
}

// Waking 10,000 while many others call, in less than 100 ms.
func TestWakingManyAtOnceIsFast(t *testing.T) {
	log := memlog.New(t, 1<<16)
	b, err := New(Config{State: log, Proposer: log})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, b)
	const n = 10_000
	log.Must(t, newNode(1, 1, false))
	log.Fill(t, newJobs(t, n, "cpu=1"))
	within(t, func() bool { return b.Stats().Ready == n })
	for b.Stats().Ready > 0 {
		w, err := b.Dequeue(t.Context(), 1024)
		if err != nil {
			t.Fatal(err)
		}
		d := place.Plan(log.Latest(), w.Jobs, 1, place.Limits{Placements: 1, Looks: 1 << 20})
		if err := b.Block(w.Token, d.Index, d.Blocked); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.Stats(); s.Blocked != n || s.Shapes != 1 {
		t.Fatalf("%+v", s)
	}
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 144 {
		wg.Go(func() {
			for k := range 70 {
				b.Over(uint64(k), nil)
			}
			id := muster.NodeID(fmt.Sprintf("m%03d", i))
			for _, f := range []state.Fact{
				&state.NodeLaunching{ID: id, Pool: "p"}, &state.NodeLaunched{ID: id},
				&state.NodeJoined{ID: id, Capacity: muster.Resources{CPU: 70_000, Memory: 70 * muster.GiB}},
			} {
				if _, _, err := log.Propose(t.Context(), f); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	proposed := time.Since(began)
	within(t, func() bool { return b.Stats().Blocked == 0 })
	took := time.Since(began)
	t.Logf("facts took %s, everybody was out after %s", proposed, took)
	if took > time.Second { // 100 ms; the bound is for a busy machine with the race detector on
		t.Errorf("took %s", took)
	}
	stop()
}

// Nothing is ever missed: whatever happens, however late the feed,
// evaluations are conserved, and when all have come to rest, planning every job
// anew finds nothing to do.
func TestNoEvaluationIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, rt)
		for range rapid.IntRange(5, 60).Draw(rt, "steps") {
			m.act()
			if err := m.check(); err != nil {
				rt.Fatal(err)
			}
			m.conserved()
		}
		m.rest()
	})
}

// model drives a broker by hand: the feed is read when it says so, two workers
// are interleaved step by step, and the log's clock, by which the broker goes when it
// is ahead of the wall's, stands still but for what the model waits.
type model struct {
	*Broker
	t       *testing.T
	rt      *rapid.T
	log     *memlog.Log
	at      state.Position
	workers [2]worker
	jobs    int
	nodes   int
	now     time.Time
}

type worker struct {
	window place.Window
	open   []muster.JobUID
	plan   *place.Decision
}

func newModel(t *testing.T, rt *rapid.T) *model {
	log := memlog.New(t, 1<<12)
	m := &model{t: t, rt: rt, log: log, at: state.AfterIndex(0), now: time.Now().Add(24 * time.Hour)}
	log.Clock = func() time.Time { return m.now }
	m.Broker = driven(t, Config{DeliveryTimeout: 10 * time.Second, NackDelay: time.Second, DeliveryLimit: 100}, log)
	m.wait(0)
	return m
}

// wait moves the clock on.
func (m *model) wait(d time.Duration) {
	m.now = m.now.Add(d)
	m.log.Must(m.t, &state.PoolsSet{})
	m.mu.Lock()
	m.fireLocked()
	m.mu.Unlock()
}

func (m *model) fact(line string) {
	facts(m.t, m.log, line, func(f state.Fact) {
		_, _, _ = m.log.Propose(m.t.Context(), f) // may be refused
	})
}

func (m *model) act() {
	rt := m.rt
	switch rapid.IntRange(0, 9).Draw(rt, "act") {
	case 0:
		m.jobs++
		m.fact(fmt.Sprintf("job j%d count=%d cpu=%d priority=%d attempts=2", m.jobs, rapid.IntRange(1, 3).Draw(rt, "count"),
			rapid.IntRange(1, 3).Draw(rt, "cpu"), rapid.IntRange(0, 2).Draw(rt, "priority")))
	case 1:
		m.nodes++
		m.fact(fmt.Sprintf("node n%d cpu=%d memory=16GiB", m.nodes, rapid.IntRange(1, 4).Draw(rt, "cpu")))
	case 2:
		m.fact(fmt.Sprintf("%s n%d %s", "health", rapid.IntRange(0, m.nodes).Draw(rt, "node"), rapid.SampledFrom([]string{"lost", "good"}).Draw(rt, "health")))
	case 3:
		m.fact(fmt.Sprintf(rapid.SampledFrom([]string{"stop j%d", "replace j%d count=2", "replace j%d cpu=2", "gone n%d"}).Draw(rt, "change"),
			rapid.IntRange(0, m.jobs).Draw(rt, "which")))
	case 4:
		var live []*state.Alloc
		m.log.Latest().LiveAllocs(func(a *state.Alloc) bool {
			live = append(live, a)
			return true
		})
		if len(live) > 0 {
			a := rapid.SampledFrom(live).Draw(rt, "alloc")
			u := state.AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: rapid.SampledFrom([]muster.Outcome{muster.OutcomeSucceeded, muster.OutcomeStopped, muster.OutcomeFailed}).Draw(rt, "outcome")}
			_, _, _ = m.log.Propose(m.t.Context(), &state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{u}})
		}
	case 5, 6:
		m.feed(rapid.IntRange(1, 8).Draw(rt, "changes"))
	case 7, 8:
		m.step(&m.workers[rapid.IntRange(0, 1).Draw(rt, "worker")], rapid.IntRange(0, 9).Draw(rt, "nack") == 0)
	case 9:
		m.wait(time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds")) * time.Second)
	}
}

func (m *model) feed(limit int) bool {
	changes, last, err := m.log.Feed().After(m.at, limit)
	if err != nil {
		m.rt.Fatal(err)
	}
	m.Broker.step(changes)
	if len(changes) == limit {
		m.at = changes[limit-1].Position()
		return true
	}
	m.at = state.AfterIndex(last)
	return len(changes) > 0
}

// step is one step of a worker: take a window, plan, commit, answer.
func (m *model) step(w *worker, nack bool) {
	snap := m.log.Latest()
	switch {
	case w.open == nil:
		m.mu.Lock()
		if m.ready.Len() > 0 {
			w.window = m.deliverLocked(rapid.IntRange(1, 3).Draw(m.rt, "limit"))
			w.open = w.window.Jobs
		}
		m.mu.Unlock()
	case w.plan == nil:
		d := place.Plan(snap, w.open, wallOr(snap), place.Limits{Placements: rapid.IntRange(1, 4).Draw(m.rt, "limit"), Looks: 100})
		w.plan = &d
	default:
		d := w.plan
		w.plan = nil
		if len(m.Over(w.window.Token, w.open)) > 0 {
			w.open = nil // timed out
			return
		}
		v := verify.On(snap).Plan(d.Placements)
		if len(v.Placements) > 0 {
			_, res, err := m.log.Propose(m.t.Context(), &state.PlanCommitted{Placements: v.Placements})
			if err != nil || len(res.(*state.PlanResult).Refused) > 0 {
				m.rt.Fatalf("%+v, %v", res, err)
			}
		}
		switch {
		case nack:
			m.must(m.Nack(w.window.Token, "why", w.open...))
		case len(v.Refused) > 0:
			return // plans again, on the newest
		default:
			m.must(m.Ack(w.window.Token, append(d.Done, d.Left...)...))
			m.must(m.Block(w.window.Token, d.Index, d.Blocked))
		}
		w.open = nil
	}
}

func (m *model) must(err error) {
	if err != nil && !strings.Contains(err.Error(), "is over") {
		m.rt.Fatal(err)
	}
}

// conserved: everything that came in is somewhere, or was dropped because its job wants nothing.
func (m *model) conserved() {
	s := m.Stats()
	if n := s.Ready + s.Out + s.Delayed + s.Blocked + s.Parked; n != len(m.entries) {
		m.rt.Fatalf("%d entries, %+v", len(m.entries), s)
	}
}

// rest lets everything come to rest, and looks at what is left.
func (m *model) rest() {
	for n := 0; ; n++ {
		if n > 10_000 {
			m.rt.Fatalf("no rest: %+v", m.Stats())
		}
		moved := m.feed(100)
		for i := range m.workers {
			if m.workers[i].open != nil || m.Stats().Ready > 0 {
				m.step(&m.workers[i], false)
				moved = true
			}
		}
		if !moved && m.Stats().Delayed == 0 {
			break
		}
		if !moved {
			m.wait(time.Second)
		}
	}
	if err := m.check(); err != nil {
		m.rt.Fatal(err)
	}
	snap := m.log.Latest()
	var all []muster.JobUID
	waiting := 0
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		all = append(all, j.UID)
		if j.Waiting() > 0 {
			waiting++
		}
		return true
	})
	d := place.Plan(snap, all, wallOr(snap), place.Limits{Placements: 1000, Looks: 1000})
	if len(d.Placements) > 0 {
		m.rt.Fatalf("at rest, and this was missed:\n%s%+v", fittest.Placements(snap, d.Placements), m.Stats())
	}
	if s := m.Stats(); s.Blocked != waiting || s.Blocked != len(d.Blocked) || len(m.entries) != waiting {
		m.rt.Fatalf("%d jobs wait, %+v", waiting, s)
	}
	if len(m.promised) > 0 {
		m.rt.Fatalf("promises are left: %v", m.promised)
	}
}

// What changed while a worker was busy with an older picture is not forgotten
// when it comes back saying that nothing fits.
func TestChangesDuringPlanningAreNotMissed(t *testing.T) {
	t.Run("another version", func(t *testing.T) {
		inBubble(t, Config{}, func(r *rig) {
			r.do("node n1 cpu=1 memory=1GiB\njob a cpu=2")
			w := r.next(1)
			d := place.Plan(r.log.Latest(), w.Jobs, 1, place.Limits{Placements: 9, Looks: 9})
			r.do("replace a cpu=1")
			r.ok(r.Block(w.Token, d.Index, d.Blocked))
			if got := r.workAll(1); got != "a[0]" {
				t.Errorf("placed %s", got)
			}
		})
	})
	t.Run("another member", func(t *testing.T) {
		inBubble(t, Config{}, func(r *rig) {
			// a[0] failed on n1, the only node with room; a[1] runs on n2, which then is gone.
			r.do("node n1 cpu=1 memory=1GiB\nnode n2 cpu=1 memory=1GiB\njob a count=2")
			r.workAll(1)
			r.do("end a 0 node-fault")
			w := r.next(1)
			d := place.Plan(r.log.Latest(), w.Jobs, wallOr(r.log.Latest()), place.Limits{Placements: 9, Looks: 9})
			if len(d.Blocked) != 1 || d.Blocked[0].Full {
				t.Fatalf("%+v", d)
			}
			r.do("gone n2")
			r.ok(r.Block(w.Token, d.Index, d.Blocked))
			if got := r.workAll(1); got != "a[1]" {
				t.Errorf("placed %s", got)
			}
		})
	})
}

// A job that a limit blocks is woken by that limit alone: by work of its namespace that ends, or by
// the limit itself; never by room.
func TestBlockedByALimitWakesByThatLimit(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=8 memory=8GiB\nlimit default allocs=1\njob a count=1\njob b count=1\njob other/c count=1")
		if got := r.workAll(9); got != "a[0] other.c[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 1")
		r.do("node n2 cpu=8 memory=8GiB")
		r.is("blocked 1")
		r.do("end other/c 0 succeeded")
		r.is("blocked 1")
		r.do("end a 0 succeeded")
		if got := r.workAll(9); got != "b[0]" {
			t.Errorf("placed %s", got)
		}
		r.do("job d count=1\njob e count=1 priority=60")
		r.workAll(9)
		r.is("blocked 2")
		// One may go on: the first in order.
		r.do("limit default allocs=2")
		r.is("ready 1, blocked 1")
		if got := r.workAll(9); got != "e[0]" {
			t.Errorf("placed %s", got)
		}
		r.do("limit default")
		if got := r.workAll(9); got != "d[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("")
	})
}

// A limit that leaves room between "tried" and "blocked" is not missed, and of two limits that
// which binds counts.
func TestNoLimitIsMissed(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=8 memory=8GiB\nlimit default allocs=1\nlimit * allocs=2\njob a count=1")
		r.workAll(9)
		r.do("job b count=1")
		w := r.next(9)
		tried := r.log.Latest().Index()
		r.do("end a 0 succeeded")
		bound := place.Blocked{UID: w.Jobs[0], Waiting: 1, Bound: fit.Bound{Namespace: "default", Why: "why"}}
		r.ok(r.Block(w.Token, tried, []place.Blocked{bound}))
		r.is("ready 1")
		if got := r.workAll(9); got != "b[0]" {
			t.Errorf("placed %s", got)
		}
		r.do("job other/c count=1")
		r.workAll(9)
		r.do("job other/d count=1")
		r.workAll(9)
		r.is("blocked 1") // by the limit of all
		r.do("limit other allocs=1\nlimit *")
		r.is("blocked 1") // by that of its own namespace now
		r.do("end b 0 succeeded")
		r.is("blocked 1")
		r.do("end other/c 0 succeeded")
		if got := r.workAll(9); got != "other.d[0]" {
			t.Errorf("placed %s", got)
		}
	})
}

// D1: room is reserved for a job that a limit of its namespace then blocks. An allocation that ended on that node took the server down.
func TestReservedRoomOfAJobThatALimitBlocks(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=8 memory=8GiB\nlimit default allocs=1\njob a count=1\njob b count=1\njob other/c count=1")
		r.workAll(9)
		r.is("blocked 1")
		b := r.log.Latest().Job(muster.JobKey{Namespace: "default", Name: "b"})
		r.log.Must(t, &state.RoomReserved{Node: "n1", UID: b.UID, Version: b.Version})
		r.settle()
		r.do("end other/c 0 succeeded")
		r.is("blocked 1")
		time.Sleep(time.Minute)
		r.settle()
		if n := r.log.Latest().Node("n1"); n.Reserved != nil {
			t.Errorf("room is kept for a job that may not use it: %+v", n.Reserved)
		}
		r.do("end a 0 succeeded")
		if got := r.workAll(9); got != "b[0]" {
			t.Errorf("placed %s", got)
		}
	})
}

// step takes in some changes, oldest first.
func (b *Broker) step(changes []state.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stepLocked(changes)
	b.tellWorkersLocked()
}
