package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a broker that runs over a log in memory, inside a bubble.
type rig struct {
	*Broker
	t    *testing.T
	log  *memlog.Log
	stop context.CancelFunc
	over chan struct{}
}

// inBubble runs a test with a running broker.
func inBubble(t *testing.T, cfg Config, fn func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cfg, memlog.New(t, 1<<12))
		defer r.end()
		fn(r)
	})
}

func newRig(t *testing.T, cfg Config, log *memlog.Log) *rig {
	t.Helper()
	cfg.State, cfg.Proposer = log, log
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Broker: b, t: t, log: log}
	r.start()
	return r
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.over = cancel, make(chan struct{})
	go func() {
		defer close(r.over)
		if err := r.Run(ctx); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}()
	synctest.Wait()
}

func (r *rig) end() {
	r.stop()
	<-r.over
}

// do applies lines of cluster text, and waits until the broker has seen them.
func (r *rig) do(text string) {
	r.t.Helper()
	facts(r.t, r.log, text, func(f state.Fact) {
		if v, ok := r.log.Must(r.t, f).(*state.PlanResult); ok && len(v.Refused) > 0 {
			r.t.Fatalf("%+v", v.Refused)
		}
	})
	r.settle()
}

// facts hands the facts of lines of cluster text to commit, one after the other: a line may depend on the one before.
func facts(t testing.TB, log *memlog.Log, text string, commit func(state.Fact)) {
	t.Helper()
	c := fittest.On(t, log.State, 0)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		all, err := c.Facts(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, f := range all {
			commit(f)
		}
	}
}

// driven is a broker whose loops do not run: the test reads the feed and fires deadlines when it says so.
func driven(t testing.TB, cfg Config, log *memlog.Log) *Broker {
	t.Helper()
	cfg.State, cfg.Proposer = log, log
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.term = 1
	b.resyncLocked(log.Latest())
	return b
}

// settle waits until nothing moves any more, and checks what must always hold.
func (r *rig) settle() {
	r.t.Helper()
	synctest.Wait()
	if err := r.check(); err != nil {
		r.t.Fatal(err)
	}
}

// next takes a window, or fails if nothing comes within the time.
func (r *rig) next(limit int) place.Window {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	w, err := r.Dequeue(ctx, limit)
	if err != nil {
		r.t.Fatalf("nothing is ready: %+v", r.Stats())
	}
	r.settle()
	return w
}

func (r *rig) nothing() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Microsecond)
	defer cancel()
	if w, err := r.Dequeue(ctx, 1); err == nil {
		r.t.Fatalf("%v came out", w.Jobs)
	}
	r.settle()
}

// order takes everything that is ready, one by one, and acks nothing.
func (r *rig) order() string {
	r.t.Helper()
	var out []string
	for r.Stats().Ready > 0 {
		out = append(out, string(r.next(1).Jobs[0]))
	}
	return strings.Join(out, " ")
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func (r *rig) fails(err error) {
	r.t.Helper()
	if !muster.IsKind(err, muster.FaultConflict) {
		r.t.Fatalf("want a conflict, got %v", err)
	}
	r.settle()
}

// is checks how many evaluations are where, as "ready 1, blocked 2".
func (r *rig) is(want string) {
	r.t.Helper()
	r.settle()
	s := r.Stats()
	var parts []string
	for _, p := range []struct {
		name string
		n    int
	}{{"ready", s.Ready}, {"out", s.Out}, {"delayed", s.Delayed}, {"blocked", s.Blocked}, {"parked", s.Parked}} {
		if p.n != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", p.name, p.n))
		}
	}
	if got := strings.Join(parts, ", "); got != want {
		r.t.Fatalf("got %q, want %q", got, want)
	}
}

// work does with a window what a worker does: plans it, commits, answers.
func (r *rig) work(w place.Window) place.Decision {
	r.t.Helper()
	snap := r.log.Latest()
	d := place.Plan(snap, w.Jobs, wallOr(snap), place.Limits{Placements: 1000, Looks: 1 << 20})
	if len(d.Placements) > 0 {
		if res := r.log.Must(r.t, &state.PlanCommitted{Placements: d.Placements}).(*state.PlanResult); len(res.Refused) > 0 {
			r.t.Fatalf("refused: %+v", res.Refused)
		}
	}
	if done := slices.Concat(d.Done, d.Left); len(done) > 0 {
		r.ok(r.Ack(w.Token, done...))
	}
	if len(d.Blocked) > 0 {
		r.ok(r.Block(w.Token, d.Index, d.Blocked))
	}
	return d
}

// workAll works until nothing is ready, and says which jobs got how many placements, in order.
func (r *rig) workAll(limit int) string {
	r.t.Helper()
	var out []string
	for n := 0; r.Stats().Ready > 0; n++ {
		if n > 1000 {
			r.t.Fatal("never done")
		}
		for _, p := range r.work(r.next(limit)).Placements {
			out = append(out, fmt.Sprintf("%s[%d]", p.UID, p.Index))
		}
	}
	return strings.Join(out, " ")
}

// block answers that the jobs of a window fitted nowhere at an index.
func (r *rig) block(w place.Window, tried uint64) error {
	snap := r.log.Latest()
	var jobs []place.Blocked
	for _, uid := range w.Jobs {
		jobs = append(jobs, place.Blocked{UID: uid, Shape: fit.ShapeOf(snap.JobByUID(uid).Run), Waiting: snap.JobByUID(uid).Waiting(), Full: true})
	}
	return r.Block(w.Token, tried, jobs)
}

func newJob(t testing.TB, name string, words ...string) *state.JobSubmitted {
	t.Helper()
	f, err := fittest.Job(name, words...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// newJobs are submissions of n jobs.
func newJobs(t testing.TB, n int, words ...string) []state.Fact {
	t.Helper()
	facts := make([]state.Fact, n)
	for i := range facts {
		facts[i] = newJob(t, fmt.Sprintf("j%06d", i), words...)
	}
	return facts
}

// run runs a broker outside of a bubble.
func run(t *testing.T, b *Broker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- b.Run(ctx) }()
	return func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func newNode(i int, cpu muster.MilliCPU, _ bool) state.Fact {
	return &state.NodeLaunching{ID: muster.NodeID(fmt.Sprintf("n%d", i)), Offering: muster.Offering{Capacity: muster.Resources{CPU: cpu}}}
}

// check says what is inconsistent.
func (b *Broker) check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var count [stages]int
	promised := map[muster.NodeID]muster.Resources{}
	for uid, e := range b.entries {
		count[e.stage]++
		for _, p := range e.woken {
			promised[p.node] = promised[p.node].Add(p.room)
		}
		_, isReady := b.ready.Get(e)
		_, isTimed := b.timers.Get(e)
		switch {
		case uid != e.uid || e.stage == gone:
			return fmt.Errorf("entry %s under %s in stage %d", e.uid, uid, e.stage)
		case isReady != (e.stage == ready), isTimed != (e.at != 0):
			return fmt.Errorf("entry %s in stage %d: ready %v, timed %v at %d", uid, e.stage, isReady, isTimed, e.at)
		case (e.window != nil) != (e.stage == out), (e.group != nil || e.limitedIn != "") != (e.stage == blocked), e.group != nil && e.limitedIn != "", (e.fact != nil) != (e.stage == parking):
			return fmt.Errorf("entry %s in stage %d has what belongs to another", uid, e.stage)
		case e.stage == delayed && e.at == 0:
			return fmt.Errorf("entry %s is delayed for ever", uid)
		case e.nacks < 0:
			return fmt.Errorf("entry %s has %d nacks", uid, e.nacks)
		}
	}
	members, sum := 0, 0
	b.ready.Scan(func(e *entry) bool { members += e.wants; return true })
	for _, band := range b.bands {
		for _, w := range band {
			sum += w.members
		}
	}
	if members != sum {
		return fmt.Errorf("%d members are ready, the bands have %d", members, sum)
	}
	for st := ready; st < stages; st++ {
		if count[st] != b.stats.count[st] {
			return fmt.Errorf("%d entries in stage %d, counted %d", count[st], st, b.stats.count[st])
		}
	}
	if len(promised) != len(b.promised) {
		return fmt.Errorf("promises to %d nodes, kept of %d", len(promised), len(b.promised))
	}
	for id, r := range promised {
		if kept := b.promised[id].from(0); kept != r {
			return fmt.Errorf("node %s: promised %s, kept %s", id, r, kept)
		}
	}
	return nil
}

// wallOr is the broker's clock in tests, which is the system's.
func wallOr(snap *state.Snapshot) muster.Time { return max(muster.At(time.Now()), snap.Meta().Time) }
