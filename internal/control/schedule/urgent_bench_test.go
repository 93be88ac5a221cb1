package schedule

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// An urgent job comes while 100,000 others are being placed: how long it takes from before its submission until it
// is placed, in the middle and at worst of 50, which come all along and at any point of a window. Beside it when, in the
// middle, it was submitted, with a worker, planned and committed, and what a bare proposal takes on the idle log.
// The first, which waits until the loops of a new leader have read the queue of 100,000, is told alone.
func BenchmarkUrgent(b *testing.B) {
	worlds(b, func(b *testing.B, open func(*testing.B) *world) {
		for range b.N {
			b.StopTimer()
			w := open(b)
			w.addNodes(b, 1000, 200_000)
			w.submit(b, 100_000, "cpu=1", "memory=1MiB", "priority=10")
			var bare []time.Duration
			for i := range 50 {
				began := time.Now()
				w.must(b, &state.NodePlansRefused{ID: "n000000", Count: i})
				bare = append(bare, time.Since(began))
			}
			watch := &stages{}
			l := start(b, w, Config{Window: *window, Workers: *workers, Limits: place.Limits{Placements: *placements}}, watch.between)
			b.StartTimer()
			var first time.Duration
			took := map[string][]time.Duration{}
			for i := range 51 {
				await(b, w, i*1800)
				// What is committed wakes us: to begin then would be at the same point of a window each time.
				time.Sleep(time.Duration(i*7%16) * time.Millisecond)
				uid := muster.JobUID(fmt.Sprintf("urgent%d", i))
				f := job(b, string(uid), "cpu=1", "memory=1MiB", "priority=90")
				watch.begin(uid)
				w.must(b, f)
				watch.reached("submitted", uid)
				for {
					snap := w.Latest()
					if snap.JobByUID(uid).Placed == 1 {
						break
					}
					if err := w.Feed().Wait(context.Background(), snap.Index()); err != nil {
						b.Fatal(err)
					}
				}
				watch.reached("placed", uid)
				if i == 0 {
					first = watch.at["placed"]
					continue
				}
				for stage, at := range watch.times() {
					took[stage] = append(took[stage], at)
				}
			}
			b.StopTimer()
			others := w.Latest().LiveAllocCount()
			l.stop(b)
			w.end()
			if others >= 100_000 {
				b.Errorf("all %d were placed before the last urgent one", others)
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			for stage, all := range took {
				slices.Sort(all)
				b.ReportMetric(ms(all[len(all)/2]), stage+"-ms")
			}
			placed := took["placed"]
			slices.Sort(bare)
			b.ReportMetric(ms(placed[len(placed)*9/10]), "p90-ms")
			b.ReportMetric(ms(placed[len(placed)-1]), "worst-ms")
			b.ReportMetric(ms(first), "first-ms")
			b.ReportMetric(ms(bare[len(bare)/2]), "bare-ms")
		}
	})
}

// stages notes how far one job has come, by standing between the workers and what they call.
type stages struct {
	Queue
	Submitter

	mu    sync.Mutex
	uid   muster.JobUID
	began time.Time
	at    map[string]time.Duration
}

func (s *stages) between(cfg *Config) {
	s.Queue, s.Submitter = cfg.Queue, cfg.Submit
	cfg.Queue, cfg.Submit = s, s
}

func (s *stages) begin(uid muster.JobUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uid, s.began, s.at = uid, time.Now(), map[string]time.Duration{}
}

func (s *stages) reached(stage string, uid muster.JobUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if uid == s.uid {
		s.at[stage] = time.Since(s.began)
	}
}

func (s *stages) times() map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *stages) Dequeue(ctx context.Context, limit int) (place.Window, error) {
	return s.took(s.Queue.Dequeue(ctx, limit))
}

func (s *stages) DequeueAhead(ctx context.Context, limit int) (place.Window, error) {
	if *alone {
		<-ctx.Done()
		return place.Window{}, ctx.Err()
	}
	return s.took(s.Queue.DequeueAhead(ctx, limit))
}

func (s *stages) took(w place.Window, err error) (place.Window, error) {
	if err == nil {
		s.reached("dequeued", w.Jobs[0])
	}
	return w, err
}

func (s *stages) Submit(ctx context.Context, plan verify.Submission) (verify.Verdict, error) {
	if len(plan.Placements) > 0 {
		s.reached("planned", plan.Placements[0].UID)
	}
	return s.Submitter.Submit(ctx, plan)
}
