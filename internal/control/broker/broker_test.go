package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/testwait"
)

func TestManyChangesMakeOneEvaluation(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("job a\njob other/a")
		w := r.next(1)
		if w.Jobs[0] != "a" {
			t.Fatalf("got %v", w.Jobs)
		}
		for range 10 {
			r.do("replace a count=2")
		}
		r.is("ready 1, out 1")
		if other := r.next(9); len(other.Jobs) != 1 || other.Jobs[0] != "other.a" {
			t.Fatalf("the same name in another namespace: %v", other.Jobs)
		}
		r.nothing()
		r.ok(r.Ack(w.Token, "a"))
		again := r.next(9)
		if again.Jobs[0] != "a" || again.Index < r.log.Latest().Index() {
			t.Fatalf("got %v at %d, state is at %d", again.Jobs, again.Index, r.log.Latest().Index())
		}
		r.do("node n1 cpu=8 memory=8GiB\nplace a 0 1 n1")
		r.ok(r.Ack(again.Token, "a"))
		r.is("out 1")
	})
}

func TestPriorityThenAge(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("job p10 priority=10\njob p30 priority=30\njob p20 priority=20")
		if got := r.order(); got != "p30 p20 p10" {
			t.Errorf("got %s", got)
		}
		var want []string
		for i := range 100 {
			r.do(fmt.Sprintf("job j%02d priority=%d", i, 40))
			want = append(want, fmt.Sprintf("j%02d", i))
		}
		r.do("replace j00 priority=40 count=2") // a new version is the youngest
		if got := r.order(); got != strings.Join(append(want[1:], "j00"), " ") {
			t.Errorf("got %s", got)
		}
	})
}

func TestAWindowIsOneBand(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("job a priority=20\njob b priority=30\njob c priority=30\njob d priority=30\njob e priority=20")
		for _, want := range []string{"[b c]", "[d]", "[a e]"} {
			if got := fmt.Sprint(r.next(2).Jobs); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		r.nothing()
	})
}

// Who stands by is given what is of a higher priority than all that is out, and nothing else: it waits for that.
func TestStandbyWorkerGetsHigherPriorityOnly(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		got := make(chan place.Window, 1)
		ask := func() {
			go func() {
				if w, err := r.DequeueAhead(context.Background(), 1); err != nil {
					t.Error(err)
				} else {
					got <- w
				}
			}()
		}
		is := func(want string) place.Window {
			t.Helper()
			r.settle()
			select {
			case w := <-got:
				if fmt.Sprint(w.Jobs) != want {
					t.Errorf("got %v, want %s", w.Jobs, want)
				}
				return w
			default:
				if want != "nothing" {
					t.Fatalf("nothing came out, want %s", want)
				}
				return place.Window{}
			}
		}
		ask()
		r.do("job a priority=20\njob b priority=20\njob c priority=10")
		is("nothing") // nobody is busy with anything less
		low := r.next(1)
		is("nothing") // b is no more urgent than a
		r.do("job d priority=30\njob e priority=30")
		mid := is("[d]")
		ask()
		is("nothing") // e is no more urgent than d
		r.do("job g priority=40")
		high := is("[g]")
		ask()
		is("nothing")
		r.ok(r.Ack(high.Token, "g")) // it wants a node still, and comes out again
		again := is("[g]")
		ask()
		r.ok(r.block(again, r.log.Latest().Index()))
		is("nothing")
		r.ok(r.block(mid, r.log.Latest().Index()))
		next := is("[e]")
		ask()
		r.do("job h priority=25 cpu=0.5")
		is("nothing")
		r.ok(r.block(next, r.log.Latest().Index()))
		is("[h]")
		r.fails(r.Ack(low.Token, "b"))
		r.ok(r.Ack(low.Token, "a"))
	})
}

func TestDeliveryTimeout(t *testing.T) {
	inBubble(t, Config{DeliveryTimeout: time.Minute, NackDelay: 5 * time.Second}, func(r *rig) {
		r.do("job a")
		first := r.next(1)
		time.Sleep(59 * time.Second)
		r.is("out 1")
		time.Sleep(2 * time.Second)
		r.is("delayed 1")
		r.fails(r.Ack(first.Token, "a"))
		time.Sleep(5 * time.Second)
		second := r.next(1)
		resume, err := r.Pause(second.Token)
		r.ok(err)
		time.Sleep(time.Hour)
		r.is("out 1")
		r.ok(resume())
		time.Sleep(59 * time.Second)
		r.is("out 1")
		time.Sleep(2 * time.Second)
		r.is("delayed 1")
		if err := resume(); err == nil {
			t.Error("an old delivery's time was resumed")
		}
		if _, err := r.Pause(first.Token); err == nil {
			t.Error("an old delivery was paused")
		}
		if s := r.Stats(); s.TimedOut != 2 || s.Nacked != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestOldTokensAreRefused(t *testing.T) {
	inBubble(t, Config{DeliveryTimeout: time.Minute}, func(r *rig) {
		r.do("job a\njob b")
		old := r.next(2)
		time.Sleep(2 * time.Minute)
		now := r.next(1)
		if now.Token == old.Token {
			t.Fatal("a token came twice")
		}
		r.is("ready 1, out 1")
		for _, token := range []uint64{old.Token, 0, now.Token + 1} {
			r.fails(r.Ack(token, "a"))
			r.fails(r.Nack(token, "why", "a"))
			r.fails(r.block(place.Window{Token: token, Jobs: old.Jobs}, r.log.Latest().Index()))
			if over := r.Over(token, []muster.JobUID{"a", "b"}); len(over) != 2 {
				t.Errorf("over: %v", over)
			}
		}
		// A job that is not of the delivery spoils the whole answer.
		r.fails(r.Ack(now.Token, "a", "b"))
		r.is("ready 1, out 1")
		if over := r.Over(now.Token, []muster.JobUID{"a", "b"}); len(over) != 1 || over[0] != "b" {
			t.Errorf("over: %v", over)
		}
	})
}

func TestNackedThenParked(t *testing.T) {
	inBubble(t, Config{NackDelay: time.Second, ParkFor: time.Hour}, func(r *rig) {
		r.do("job bad\njob good")
		start := time.Now()
		var at []time.Duration
		for n := range 3 {
			w := r.next(9)
			at = append(at, time.Since(start).Truncate(time.Second))
			if n > 0 && len(w.Jobs) != 1 {
				t.Fatalf("who was nacked comes alone: %v", w.Jobs)
			}
			r.ok(r.Nack(w.Token, "no idea", "bad"))
			if n == 0 { // held up by nobody
				r.ok(r.Ack(w.Token, "good"))
				r.is("ready 1, delayed 1")
				if g := r.next(9); g.Jobs[0] != "good" || len(g.Jobs) != 1 {
					t.Fatalf("got %v", g.Jobs)
				}
			}
			if n < 2 {
				r.is("out 1, delayed 1")
				time.Sleep(5 * time.Second)
			}
		}
		if fmt.Sprint(at) != "[0s 5s 10s]" {
			t.Errorf("delivered at %v", at)
		}
		r.is("out 1, parked 1")
		j := r.log.Latest().JobByUID("bad")
		if j.Parked != "given up after 3 tries: no idea" || time.Until(j.ParkedUntil.Std()) > time.Hour {
			t.Fatalf("parked %q until %v", j.Parked, j.ParkedUntil.Std())
		}
		time.Sleep(time.Minute)
		r.is("ready 1, parked 1") // good's delivery timed out
		// A restart alone does not try again.
		r.end()
		r.start()
		r.is("ready 1, parked 1")
		// A new version does.
		r.do("replace bad count=2")
		r.is("ready 2")
	})
}

func TestParkedIsRetriedAfterAChangeOrItsDelay(t *testing.T) {
	inBubble(t, Config{NackDelay: time.Second, ParkFor: time.Hour, DeliveryLimit: 1}, func(r *rig) {
		r.do("node n1 cpu=4 memory=4GiB\njob a count=3\nplace a 0 1 n1")
		w := r.next(1)
		r.ok(r.Nack(w.Token, "no idea", "a"))
		r.is("parked 1")
		r.do("end a 0 succeeded")
		r.is("ready 1")
		if j := r.log.Latest().JobByUID("a"); j.Parked != "" {
			t.Fatalf("still parked: %s", j.Parked)
		}
		w = r.next(1)
		r.ok(r.Nack(w.Token, "still no idea", "a"))
		r.is("parked 1")
		time.Sleep(59 * time.Minute)
		r.is("parked 1")
		time.Sleep(2 * time.Minute)
		r.is("ready 1")
	})
}

func TestNackDelaysGrow(t *testing.T) {
	inBubble(t, Config{NackDelay: time.Second, DeliveryLimit: 4}, func(r *rig) {
		r.do("job a")
		for _, want := range []time.Duration{time.Second, 4 * time.Second, 16 * time.Second} {
			r.ok(r.Nack(r.next(1).Token, "why", "a"))
			time.Sleep(want - time.Millisecond)
			r.is("delayed 1")
			time.Sleep(2 * time.Millisecond)
			r.is("ready 1")
		}
		// An answer that is no nack makes it forget.
		r.ok(r.Ack(r.next(1).Token, "a"))
		r.ok(r.Nack(r.next(1).Token, "why", "a"))
		time.Sleep(time.Second)
		r.is("ready 1")
	})
}

// The log may refuse the fact that parks a job; it is tried again, and the job is
// nobody's meanwhile.
func TestParkingIsRetried(t *testing.T) {
	inBubble(t, Config{DeliveryLimit: 1}, func(r *rig) {
		fail := 2
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.JobParked); ok && fail > 0 {
				fail--
				return errors.New("the disk is busy")
			}
			return nil
		}
		r.do("job a\njob b")
		r.ok(r.Nack(r.next(1).Token, "why", "a"))
		r.is("ready 1, parked 1")
		if r.log.Latest().JobByUID("a").Parked != "" {
			t.Fatal("parked already")
		}
		time.Sleep(3 * time.Second)
		r.is("ready 1, parked 1")
		if r.log.Latest().JobByUID("a").Parked == "" {
			t.Fatal("never parked")
		}
		// A job that ends while it is being parked is dropped.
		fail = 2
		r.ok(r.Nack(r.next(1).Token, "why", "b"))
		r.do("stop b")
		r.is("parked 1")
	})
}

func TestChangeDuringPlanningIsPlannedNext(t *testing.T) {
	inBubble(t, Config{NackDelay: time.Second}, func(r *rig) {
		r.do("node n1 cpu=4 memory=4GiB\njob a count=1")
		w := r.next(1)
		r.do("place a 0 n1\nend a 0 outside\nwait 1s") // tried again in a second
		r.ok(r.Ack(w.Token, "a"))
		r.is("delayed 1")
		time.Sleep(time.Second)
		w = r.next(1)
		r.do("replace a count=2")
		r.ok(r.Ack(w.Token, "a"))
		r.is("ready 1")
		w = r.next(1)
		r.do("replace a count=3")
		r.ok(r.Nack(w.Token, "why", "a"))
		r.is("ready 1") // another version than the one that was nacked
		w = r.next(1)
		r.do("place a 0 n1\nend a 0 node-fault")
		r.ok(r.Nack(w.Token, "why", "a"))
		r.is("delayed 1") // only the original, and not before its time
		r.do("place a 1 n1\nend a 1 node-fault")
		r.is("delayed 1")
		time.Sleep(time.Second)
		r.is("ready 1")
	})
}

func TestDelayedComeInOrderOfTime(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=8 memory=8GiB")
		for _, j := range []string{"a 1s", "b 100ms", "c 20ms", "dropped 50ms"} {
			name, backoff, _ := strings.Cut(j, " ")
			r.do("job " + name + " attempts=2 backoff=" + backoff + "\nplace " + name + " 0 n1")
		}
		r.workAll(9) // they came before they were placed
		start := time.Now()
		r.do("end a 0 failed\nend b 0 failed\nend c 0 failed\nend dropped 0 failed")
		r.is("delayed 4")
		r.do("stop dropped")
		r.is("delayed 3")
		var got []string
		for range 3 {
			w, err := r.Dequeue(context.Background(), 9)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s after %s", w.Jobs[0], time.Since(start)))
		}
		if strings.Join(got, ", ") != "c after 20ms, b after 100ms, a after 1s" {
			t.Errorf("got %v", got)
		}
		time.Sleep(30 * time.Second)
		r.is("out 3") // and the dropped one never
	})
}

func TestWaitingDequeueGetsTheWholeBatch(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		got := make(chan place.Window)
		go func() {
			w, err := r.Dequeue(context.Background(), 1)
			if err != nil {
				t.Error(err)
			}
			got <- w
		}()
		r.settle()
		// One entry of the log brings the whole batch.
		var facts [][]byte
		for p := 10; p <= 90; p += 10 {
			c := newJob(t, fmt.Sprintf("p%d", p), fmt.Sprintf("priority=%d", p))
			b, err := r.log.Encode(c)
			if err != nil {
				t.Fatal(err)
			}
			facts = append(facts, b)
		}
		r.log.Apply(1, 1, time.Now().UnixMicro(), facts)
		if w := <-got; w.Jobs[0] != "p90" {
			t.Errorf("got %v", w.Jobs)
		}
		r.is("ready 8, out 1")
	})
}

func TestNewLeaderRebuildsTheQueue(t *testing.T) {
	inBubble(t, Config{}, func(r *rig) {
		r.do("node n1 cpu=8 memory=8GiB\njob whole count=2\njob back")
		r.workAll(9)
		r.do("end back 0 outside")
		r.do("job half count=2\nplace half 0 n1\njob none\njob over\nstop over\njob parked\npark parked why")
		r.is("ready 2, delayed 1, parked 1")
		old := r.next(9)
		if fmt.Sprint(old.Jobs) != "[half none]" {
			t.Fatalf("out are %v", old.Jobs)
		}
		r.end()
		r.fails(r.Ack(old.Token, "half"))
		if over := r.Over(old.Token, old.Jobs); len(over) != 2 {
			t.Errorf("an old leader's tokens are worth something: %v", over)
		}
		r.log.Must(r.t, &state.TermBegan{Term: 2, Cluster: "c"})
		next := newRig(r.t, Config{}, r.log)
		defer next.end()
		next.is("ready 2, delayed 1")
		w := next.next(9)
		if fmt.Sprint(w.Jobs) != "[half none]" || w.Token <= old.Token {
			t.Errorf("got %v by token %d, the old one is %d", w.Jobs, w.Token, old.Token)
		}
		next.fails(next.Ack(old.Token, "half"))
		next.fails(next.Nack(old.Token, "why", "half"))
		next.is("out 2, delayed 1")
		time.Sleep(time.Second)
		next.is("ready 1, out 2")
	})
}

// Who falls behind the feed builds the queue anew, and misses nothing.
func TestFellBehindTheFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, memlog.New(t, 16))
		defer r.end()
		r.do("node n1 cpu=1 memory=1GiB\njob fill\njob held")
		r.work(r.next(1)) // fill
		w := r.next(1)
		r.do("job stopped cpu=2")
		r.workAll(1)
		r.is("out 1, blocked 1")
		r.mu.Lock() // nobody reads meanwhile
		for i := range 40 {
			r.log.Must(t, newJob(t, fmt.Sprintf("j%02d", i), "cpu=0.5", "memory=1MiB"))
		}
		r.log.Must(t, &state.JobStopped{Key: fittest.Key("stopped")})
		r.log.Must(t, &state.JobStopped{Key: fittest.Key("held")})
		r.mu.Unlock()
		r.is("ready 40, out 1")
		if s := r.Stats(); s.Resyncs != 1 {
			t.Errorf("%+v", s)
		}
		r.ok(r.Ack(w.Token, w.Jobs...))
		r.is("ready 40")
		r.workAll(9)
		r.is("blocked 40")
		// Room that grows while nobody reads.
		r.mu.Lock()
		r.log.Must(t, &state.AllocsReported{Node: "n1", Allocs: []state.AllocUpdate{{ID: muster.NewAllocID("fill", 0, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}}})
		for range 40 {
			r.log.Must(t, &state.PoolsSet{})
		}
		r.mu.Unlock()
		r.settle()
		if got := r.workAll(9); got != "j00[0] j01[0]" {
			t.Errorf("placed %s", got)
		}
		r.is("blocked 38")
	})
}

func TestUrgentEvaluationIsNext(t *testing.T) {
	log := memlog.New(t, 1<<18)
	b, err := New(Config{State: log, Proposer: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- b.Run(ctx) }()
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	log.Fill(t, newJobs(t, n, "priority=10"))
	within(t, func() bool { return b.Stats().Ready == n })
	best := time.Hour // of a few: the machine has other things to do
	for i := range 5 {
		uid := fmt.Sprintf("urgent%d", i)
		log.Must(t, newJob(t, uid, "priority=90"))
		within(t, func() bool { return b.Stats().Ready == n+1 })
		began := time.Now()
		w, err := b.Dequeue(ctx, 1024)
		best = min(best, time.Since(began))
		if err != nil || len(w.Jobs) != 1 || w.Jobs[0] != muster.JobUID(uid) {
			t.Errorf("got %v, %v", w.Jobs, err)
		}
	}
	t.Logf("out after %s with %d waiting", best, n)
	if best > time.Millisecond {
		t.Errorf("took %s", best)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

func within(t *testing.T, fn func() bool) {
	t.Helper()
	testwait.Until(t, "what the test waits for", fn)
}
