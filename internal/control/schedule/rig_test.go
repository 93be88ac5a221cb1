package schedule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proposer is a log that loops can propose to.
type proposer interface {
	State
	Propose(ctx context.Context, f state.Fact) (uint64, any, error)
}

// loops are the three that schedule, as one leadership.
type loops struct {
	broker    *broker.Broker
	applier   *apply.Applier
	scheduler *Scheduler

	cancel context.CancelFunc
	group  *errgroup.Group
}

// start runs the loops; watch may put itself between the workers and what they call.
func start(t testing.TB, log proposer, cfg Config, watch ...func(*Config)) *loops {
	t.Helper()
	l := &loops{}
	var err error
	if l.broker, err = broker.New(broker.Config{State: log, Proposer: log}); err != nil {
		t.Fatal(err)
	}
	if l.applier, err = apply.New(apply.Config{Snapshots: log, Proposer: log, Deliveries: l.broker}); err != nil {
		t.Fatal(err)
	}
	cfg.State, cfg.Queue, cfg.Submit = log, l.broker, l.applier
	for _, w := range watch {
		w(&cfg)
	}
	if l.scheduler, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.group, ctx = errgroup.WithContext(ctx)
	l.group.Go(func() error { return l.broker.Run(ctx) })
	l.group.Go(func() error { return l.applier.Run(ctx) })
	l.group.Go(func() error { return l.scheduler.Run(ctx) })
	return l
}

func (l *loops) stop(t testing.TB) {
	t.Helper()
	l.cancel()
	if err := l.group.Wait(); err != nil {
		t.Error(err)
	}
}

// rig is the loops over a log in memory, in a bubble.
type rig struct {
	*loops
	t   *testing.T
	log *memlog.Log
}

func inBubble(t *testing.T, cfg Config, fn func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, log: memlog.New(t, 1<<12)}
		r.loops = start(t, r.log, cfg)
		defer func() {
			r.stop(t)
			if why := fittest.Overfull(r.log.Latest()); why != "" {
				t.Error(why)
			}
		}()
		synctest.Wait()
		fn(r)
	})
}

// do applies lines of cluster text and waits until the loops are idle.
func (r *rig) do(text string) {
	r.t.Helper()
	do(r.t, r.log, text)
	synctest.Wait()
}

func do(t testing.TB, log *memlog.Log, text string) {
	t.Helper()
	c := fittest.On(t, log.State, 0)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		facts, err := c.Facts(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, f := range facts {
			log.Must(t, f)
		}
	}
}

// placed says which members are on which node, as in "n1: a[0] a[1]".
func (r *rig) placed() string {
	var out []state.Placement
	r.log.Latest().LiveAllocs(func(a *state.Alloc) bool {
		out = append(out, state.Placement{UID: a.UID, Index: a.Index, Attempt: a.Attempt, Node: a.Node})
		return true
	})
	return strings.ReplaceAll(strings.TrimSpace(fittest.Placements(r.log.Latest(), out)), "\n", "; ")
}

func (r *rig) is(want string) {
	r.t.Helper()
	if got := r.placed(); got != want {
		r.t.Errorf("got %q, want %q", got, want)
	}
}

// idle fails if planning all jobs anew would find anything to do.
func idle(t testing.TB, snap *state.Snapshot) {
	t.Helper()
	var all []muster.JobUID
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		all = append(all, j.UID)
		return true
	})
	d := place.Plan(snap, all, snap.Meta().Time, place.Limits{Placements: 1000, Looks: 1 << 20})
	if len(d.Placements) > 0 {
		t.Errorf("at rest, but this was missed:\n%s", fittest.Placements(snap, d.Placements))
	}
}

// twice says which member has two live allocations, if any has.
func twice(snap *state.Snapshot) string {
	seen := map[string]bool{}
	var out string
	snap.LiveAllocs(func(a *state.Alloc) bool {
		k := fmt.Sprintf("%s[%d] of version %d", a.UID, a.Index, a.Version)
		if seen[k] {
			out = k
		}
		seen[k] = true
		return true
	})
	return out
}
