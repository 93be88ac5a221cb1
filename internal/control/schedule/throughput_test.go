package schedule

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/state"
)

// agents end every allocation as soon as it is placed: nodes with no work to do
// but answer.
func agents(ctx context.Context, log *memlog.Log) error {
	at, last := state.AfterIndex(0), uint64(0)
	for {
		changes, seen, err := log.Feed().After(at, 1000)
		if err != nil {
			return err
		}
		ended := map[muster.NodeID][]state.AllocUpdate{}
		for i := range changes {
			if c := &changes[i]; c.Verb == "alloc.placed" {
				ended[c.Alloc.Node] = append(ended[c.Alloc.Node], state.AllocUpdate{ID: c.Alloc.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded})
			}
		}
		for id, updates := range ended {
			if _, _, err := log.Propose(ctx, &state.AllocsReported{Node: id, Allocs: updates}); err != nil {
				return err
			}
		}
		if len(changes) == 1000 {
			at = changes[999].Position()
			continue
		}
		at, last = state.AfterIndex(seen), seen
		if log.Feed().Wait(ctx, last) != nil {
			return nil
		}
	}
}

// Many through few places: the cost of each must not grow with how many wait.
func TestTenThousandThroughSixteenPlaces(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 2_000
	}
	for _, tc := range []struct {
		name    string
		jobs    int
		members int
	}{{"jobs of one", n, 1}, {"one job", 1, n}} {
		t.Run(tc.name, func(t *testing.T) {
			small := through(t, tc.jobs/10+min(tc.jobs%10, 1), max(tc.members/10, 1))
			large := through(t, tc.jobs, tc.members)
			t.Logf("%d took %s, %d took %s", n/10, small, n, large)
			if per := large / 10; per > 4*small+50*time.Millisecond {
				t.Errorf("a tenth of %d took %s, so many alone %s", n, per, small)
			}
		})
	}
}

func through(t *testing.T, jobs, members int) time.Duration {
	t.Helper()
	log := memlog.New(t, 1<<17)
	do(t, log, "node n1 cpu=8 memory=64GiB\nnode n2 cpu=8 memory=64GiB")
	l := start(t, log, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return agents(ctx, log) })
	began := time.Now()
	for i := range jobs {
		f, err := fittest.Job(fmt.Sprintf("j%06d", i), fmt.Sprintf("count=%d", members), "cpu=1", "memory=1MiB")
		if err != nil {
			t.Fatal(err)
		}
		log.Must(t, f)
	}
	ended := 0
	for deadline := time.Now().Add(2 * time.Minute); ended < jobs; {
		snap := log.Latest()
		ended = 0
		snap.EndedJobs(func(*state.Job) bool {
			ended++
			return true
		})
		if ended < jobs && time.Now().After(deadline) {
			t.Fatalf("%d of %d jobs ended: %+v", ended, jobs, l.broker.Stats())
		}
		wait, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		_ = log.Feed().Wait(wait, snap.Index()+50)
		stop()
	}
	took := time.Since(began)
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	l.stop(t)
	return took
}
