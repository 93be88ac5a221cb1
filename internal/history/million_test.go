package history

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkMillionEndedJobs ends a million jobs, or as many as MUSTER_JOBS says, and has the state
// forget each as soon as the history has it. It reports the heap and the size of the file.
func BenchmarkMillionEndedJobs(b *testing.B) {
	n := 1_000_000
	if text := os.Getenv("MUSTER_JOBS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		endMany(b, n)
	}
}

func TestMemoryStaysFlat(t *testing.T) {
	tenth, whole := endMany(t, 3000)
	if whole > tenth+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", tenth, whole)
	}
}

// endMany ends jobs, and returns the heap after a tenth of them and after all.
func endMany(t testing.TB, n int) (tenth, whole uint64) {
	r := newRig(t)
	s := r.store()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	forget := func(all bool) {
		for {
			kept, f := s.Kept(), &state.JobsPurged{}
			r.l.Latest().EndedJobs(func(j *state.Job) bool {
				if j.Modified <= kept {
					f.UIDs = append(f.UIDs, j.UID)
				}
				return len(f.UIDs) < 256
			})
			if len(f.UIDs) > 0 {
				r.must(f)
			}
			// Submitting goes on until a few thousand are waiting for the history.
			if left := r.l.Latest().EndedJobCount(); left == 0 || !all && left < 5000 {
				return
			}
			if len(f.UIDs) == 0 {
				if err := r.l.Feed().Wait(ctx, r.l.Latest().Index()-1); err != nil {
					t.Fatal(err)
				}
				runtime.Gosched()
			}
		}
	}
	empty, began := heap(), time.Now()
	for i := range n {
		r.job(fmt.Sprintf("job-%d", i%1000), i%7)
		if i%500 == 499 {
			forget(false)
		}
		if i == n/10 {
			tenth = heap()
		}
	}
	forget(true)
	took := time.Since(began)
	whole = heap()
	began = time.Now()
	for range 100 {
		if page, err := s.List(&Query{Limit: 100, Name: "job-7"}); err != nil || len(page.Jobs) == 0 {
			t.Fatal(page, err)
		}
	}
	page := time.Since(began) / 100
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	began = time.Now()
	s = r.store()
	if _, err := s.open(); err != nil {
		t.Fatal(err)
	}
	opened := time.Since(began)
	s.close()
	info, err := os.Stat(filepath.Join(r.dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d jobs ended and forgotten at %.0f a second; heap %.1f MiB before, %.1f after a tenth, %.1f after all; file %.1f MiB, %d bytes a job; a page of 100 in %v, opened in %v",
		n, float64(n)/took.Seconds(), mib(empty), mib(tenth), mib(whole), mib(uint64(info.Size())), info.Size()/int64(n), page, opened)
	if jobs := r.l.Latest().EndedJobCount(); jobs != 0 {
		t.Errorf("%d jobs are left in the state", jobs)
	}
	return tenth, whole
}

func mib(n uint64) float64 { return float64(n) / float64(muster.MiB) }
