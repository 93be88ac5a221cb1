package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everybody is out, but those named.
type deliveries struct {
	mu   sync.Mutex
	over map[muster.JobUID]bool
	// Who is ahead, and whether they are too many.
	ahead []verify.Need
	many  bool
}

func (d *deliveries) Over(_ uint64, jobs []muster.JobUID) (over []muster.JobUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, uid := range jobs {
		if d.over[uid] {
			over = append(over, uid)
		}
	}
	return over
}

func (d *deliveries) Ahead(_ *state.Snapshot, priority int) (needs []verify.Need, many bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.ahead {
		if n.Priority > priority {
			needs = append(needs, n)
		}
	}
	return needs, d.many
}

type rig struct {
	*Applier
	t    *testing.T
	log  *memlog.Log
	del  *deliveries
	stop context.CancelFunc
	over chan struct{}
}

func inBubble(t *testing.T, cluster string, fn func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, log: memlog.New(t, 1<<12), del: &deliveries{over: map[muster.JobUID]bool{}}}
		a, err := New(Config{Snapshots: r.log, Proposer: r.log, Deliveries: r.del})
		if err != nil {
			t.Fatal(err)
		}
		r.Applier = a
		r.do(cluster)
		ctx, cancel := context.WithCancel(context.Background())
		r.stop, r.over = cancel, make(chan struct{})
		go func() {
			defer close(r.over)
			if err := a.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		fn(r)
		cancel()
		<-r.over
		if why := fittest.Overfull(r.log.Latest()); why != "" {
			t.Error(why)
		}
	})
}

func (r *rig) do(text string) {
	r.t.Helper()
	c := fittest.On(r.t, r.log.State, 0)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		facts, err := c.Facts(line)
		if err != nil {
			r.t.Fatalf("%s: %v", line, err)
		}
		for _, f := range facts {
			r.log.Must(r.t, f)
		}
	}
}

// plan places the members of jobs, first attempts of version 1: "a 0 n1; b 2 n1".
func plan(text string) (out []state.Placement) {
	for part := range strings.SplitSeq(text, ";") {
		p := state.Placement{Version: 1, Attempt: 1}
		var name, node string
		if _, err := fmt.Sscan(part, &name, &p.Index, &node); err != nil {
			panic(err)
		}
		p.UID, p.Node = fittest.UID(name), muster.NodeID(node)
		out = append(out, p)
	}
	return out
}

func (r *rig) submit(text string) (verify.Verdict, error) {
	return r.Submit(context.Background(), verify.Submission{Token: 1, Placements: plan(text)})
}

// plans counts the facts in the log that place something.
func (r *rig) plans() (n int) {
	for _, f := range r.log.Facts() {
		if _, ok := f.(*state.PlanCommitted); ok {
			n++
		}
	}
	return n
}

const twoNodes = "node n1 cpu=2 memory=8GiB\nnode n2 cpu=2 memory=8GiB\njob a count=9\njob b count=9\njob c count=9"

func TestPartOfAPlanIsCommitted(t *testing.T) {
	inBubble(t, twoNodes+"\nplace b 0 1 n2", func(r *rig) {
		before := r.log.Latest().Index()
		v, err := r.submit("a 0 n1; a 1 n2; a 2 n2")
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Placements) != 1 || v.Placements[0].Node != "n1" || len(v.Refused) != 2 {
			t.Fatalf("%+v", v)
		}
		if why := v.Refused[0].Reason; why != "node n2: short of cpu: 1 cpu, 1GiB memory asked, 0 cpu, 6GiB memory free" {
			t.Errorf("refused because %s", why)
		}
		if v.Refresh <= before || v.Refresh > r.log.Latest().Index() {
			t.Errorf("refresh is %d, committed after %d, state at %d", v.Refresh, before, r.log.Latest().Index())
		}
		if s := r.Stats(); s.Partial != 1 || s.Placements != 1 || s.Refusals != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestPlanOfAStoppedJobIsRefused(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		r.do("stop a")
		r.del.over["b"] = true
		before := r.plans()
		v, err := r.submit("a 0 n1; b 0 n1")
		if err != nil || len(v.Placements) != 0 || len(v.Refused) != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
		if r.plans() != before || r.log.Latest().AllocCount() != 0 {
			t.Error("something was created")
		}
		v, err = r.submit("a 0 n1; b 0 n1; c 0 n1")
		if err != nil || len(v.Placements) != 1 || len(v.Refused) != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
		for _, no := range v.Refused {
			t.Log(no.Reason)
			if no.NodeFault {
				t.Errorf("the node is blamed: %s", no.Reason)
			}
		}
	})
}

// The job is stopped after it was verified: the state refuses, and the plan's owner is told.
func TestJobStoppedBetweenVerifyAndApply(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				r.log.Before = nil
				r.do("stop a\nhealth n2 lost")
			}
			return nil
		}
		v, err := r.submit("a 0 n1; b 0 n1; b 1 n2")
		if err != nil || len(v.Placements) != 1 || v.Placements[0].UID != "b" || len(v.Refused) != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
		if v.Refused[0].NodeFault || !v.Refused[1].NodeFault {
			t.Errorf("%+v", v.Refused)
		}
		if v.Refresh != r.log.Latest().Index() {
			t.Errorf("refresh is %d, it was refused at %d", v.Refresh, r.log.Latest().Index())
		}
	})
}

func TestEmptyPlanWritesNothing(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		before := len(r.log.Facts())
		v, err := r.Submit(context.Background(), verify.Submission{Token: 1})
		if err != nil || v.Refresh != r.log.Latest().Index() || len(r.log.Facts()) != before {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// While one fact is on its way, plans that come are verified with it counted
// in, and share the next.
func TestPlansInFlightShareTheNextFact(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		gate := make(chan struct{})
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				<-gate
			}
			return nil
		}
		var wg sync.WaitGroup
		verdicts := make([]verify.Verdict, 20)
		for i := range verdicts {
			r.do(fmt.Sprintf("job j%d cpu=0.25", i))
		}
		for i := range verdicts {
			wg.Go(func() {
				var err error
				if verdicts[i], err = r.submit(fmt.Sprintf("j%d 0 n1", i)); err != nil {
					t.Error(err)
				}
			})
			if i < 2 {
				synctest.Wait() // the first two are on their way, one fact each
			}
		}
		synctest.Wait()
		close(gate)
		wg.Wait()
		placed := 0
		for _, v := range verdicts {
			placed += len(v.Placements)
			if full := r.log.Latest().Node("n1").Modified; len(v.Refused) > 0 && v.Refresh < full {
				t.Errorf("refused by what is at %d, refresh %d", full, v.Refresh)
			}
		}
		if n := r.plans(); n > 4 || placed != 8 {
			t.Errorf("%d facts, %d placed", n, placed)
		}
	})
}

// Refused by what is on its way: the answer waits until that has landed.
func TestRefusalWaitsForWhatIsInFlight(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		gate := make(chan struct{})
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				<-gate
			}
			return nil
		}
		first, second := make(chan verify.Verdict, 1), make(chan verify.Verdict, 1)
		send := func(ch chan verify.Verdict, text string) {
			v, err := r.submit(text)
			if err != nil {
				t.Error(err)
			}
			ch <- v
		}
		go send(first, "a 0 n1; a 1 n1")
		synctest.Wait()
		go send(second, "b 0 n1")
		synctest.Wait()
		if len(second) > 0 {
			t.Error("answered before what refused it has landed")
		}
		close(gate)
		v1, v2 := <-first, <-second
		if len(v1.Placements) != 2 || len(v2.Refused) != 1 || !v2.Refused[0].NodeFault || v2.Refresh < v1.Refresh || v2.Refresh != r.log.Latest().Index() {
			t.Errorf("%+v, %+v", v1, v2)
		}
		if r.plans() != 1 {
			t.Errorf("%d facts", r.plans())
		}
	})
}

// The log fails; nobody knows whether the plan was committed, and a second
// try does no harm.
func TestAmbiguousCommitIsSafeToRetry(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		lost := errors.New("the answer was lost")
		r.log.After = func(_ context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				r.log.After = nil
				return lost
			}
			return nil
		}
		if v, err := r.submit("a 0 n1; b 0 n2"); !errors.Is(err, lost) || len(v.Placements) != 0 {
			t.Fatalf("%+v, %v", v, err)
		}
		v, err := r.submit("a 0 n2; b 0 n1; b 1 n1")
		if err != nil || len(v.Placements) != 1 || len(v.Refused) != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
		if n := r.log.Latest().LiveAllocCount(); n != 3 {
			t.Errorf("%d allocations", n)
		}
		if s := r.Stats(); s.Failed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestStopAnswersWhatWasTaken(t *testing.T) {
	inBubble(t, twoNodes, func(r *rig) {
		r.log.Before = func(ctx context.Context, f state.Fact) error {
			if _, ok := f.(*state.PlanCommitted); ok {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		answers := make(chan error, 3)
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 3 { // two on their way, one waits to be taken
			go func() {
				_, err := r.Submit(ctx, verify.Submission{Token: 1, Placements: plan(fmt.Sprintf("a %d n1", i))})
				answers <- err
			}()
			synctest.Wait()
		}
		r.stop()
		<-r.over
		cancel()
		for range 3 {
			if err := <-answers; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// Many workers with random plans against one applier: never over capacity, never
// a member twice, and what is answered is what is.
func TestManyWorkers(t *testing.T) {
	log := memlog.New(t, 1<<12)
	a, err := New(Config{Snapshots: log, Proposer: log, Deliveries: &deliveries{}, BatchPlacements: 16})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Applier: a, t: t, log: log}
	for i := range 10 {
		r.do(fmt.Sprintf("node n%d cpu=8 memory=64GiB", i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- a.Run(ctx) }()
	var wg sync.WaitGroup
	for w := range 8 {
		r.do(fmt.Sprintf("job w%d count=40", w))
		wg.Go(func() {
			for next := 0; next < 40; {
				n := min(1+(next+w)%5, 40-next)
				node := fmt.Sprintf("n%d", (next*7+w)%10)
				var parts []string
				for k := range n {
					parts = append(parts, fmt.Sprintf("w%d %d %s", w, next+k, node))
				}
				v, err := r.submit(strings.Join(parts, ";"))
				if err != nil {
					t.Error(err)
				}
				for _, p := range v.Placements {
					if m := log.Latest().Member(p.UID, p.Index); m == nil || m.Status != muster.MemberPlaced {
						t.Errorf("%+v is not placed", p)
					}
				}
				if len(v.Placements) != 0 && len(v.Refused) != 0 {
					t.Errorf("a node's part is not whole: %+v", v)
				}
				next += n
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if why := fittest.Overfull(log.Latest()); why != "" {
		t.Error(why)
	}
	if n := log.Latest().LiveAllocCount(); n < 72 || n > 80 || uint64(n) != a.Stats().Placements {
		t.Errorf("%d allocations, %+v", n, a.Stats())
	}
}

// A node that refuses plans again and again although nothing has changed there is told to
// health; plans that came too late, or competed, are how things go and count for nothing.
func TestNodeThatRefusesPlansIsReported(t *testing.T) {
	inBubble(t, "node n1 cpu=2 memory=4GiB\nnode n2 cpu=2 memory=4GiB\njob a count=9 cpu=1 memory=1MiB\njob wide count=9 cpu=3 memory=1MiB", func(r *rig) {
		submit := func(index uint64, uid muster.JobUID, node muster.NodeID) {
			t.Helper()
			v, err := r.Submit(context.Background(), verify.Submission{Token: 1, Index: index, Placements: []state.Placement{{UID: uid, Version: 1, Attempt: 1, Node: node}}})
			if err != nil || len(v.Refused) != 1 {
				t.Fatalf("%+v, %v", v, err)
			}
		}
		told := func() int {
			synctest.Wait()
			if p := r.log.Latest().Node("n1").PlansRefused; p != nil {
				return p.Count
			}
			return 0
		}
		now := func() uint64 { return r.log.Latest().Index() }
		for range 14 {
			submit(now(), "wide", "n1")
			time.Sleep(time.Minute / 2)
		}
		if told() != 0 {
			t.Fatal("told too early")
		}
		// An old snapshot, or none that is known, says nothing of the node; neither do other nodes'.
		for range 20 {
			submit(1, "wide", "n1")
			submit(0, "wide", "n1")
		}
		for range 10 {
			submit(now(), "wide", "n2")
		}
		if told() != 0 {
			t.Fatal("late plans were counted")
		}
		submit(now(), "wide", "n1")
		if told() != 15 || !strings.Contains(r.log.Latest().Node("n1").PlansRefused.Reason, "short of cpu") {
			t.Fatalf("%+v", r.log.Latest().Node("n1").PlansRefused)
		}
		if r.log.Latest().Node("n2").PlansRefused != nil {
			t.Error("n2 as well")
		}
		// The window: fifteen in more than ten minutes are none too many.
		first := r.log.Latest().Node("n1").PlansRefused.Last
		for range 30 {
			submit(now(), "wide", "n1")
			time.Sleep(time.Minute)
		}
		if told(); r.log.Latest().Node("n1").PlansRefused.Last != first {
			t.Error("told of thirty in half an hour")
		}
	})
}
