package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/decide/fit/fittest"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

// What benchmarks that do not say otherwise go by: to compare, in one run, one after the other.
var (
	window     = flag.Int("schedule.window", 0, "how many jobs a pass looks at; 0: the default")
	placements = flag.Int("schedule.placements", 0, "how many placements a pass makes; 0: the default")
	workers    = flag.Int("schedule.workers", 0, "how many workers there are; 0: the default")
)

// alone takes away the worker that stands by.
var alone = flag.Bool("schedule.alone", false, "BenchmarkUrgent without a worker that stands by")

// world is a log with a state over it.
type world struct {
	proposer
	end func()
}

// Both logs of the benchmarks: in memory, where what is measured is ours
// alone, and the real one, where every placement is on the disk when it counts.
func worlds(b *testing.B, fn func(b *testing.B, open func(b *testing.B) *world)) {
	b.Run("memory", func(b *testing.B) { fn(b, memory) })
	b.Run("durable", func(b *testing.B) { fn(b, durable) })
}

func memory(b *testing.B) *world {
	b.Helper()
	return &world{memlog.New(b, 1<<16), func() {}}
}

// disk is the real log under a state.
type disk struct {
	*state.State
	log *raftlog.Log
}

func (d disk) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	p, err := d.Encode(f)
	if err != nil {
		return 0, nil, err
	}
	r, err := d.log.Propose(ctx, p)
	return r.Index, r.Value, err
}

func (d disk) Snapshot() (raftlog.Image, error) { return d.Image(), nil }

func durable(b *testing.B) *world {
	b.Helper()
	s, err := state.New(1 << 16)
	if err != nil {
		b.Fatal(err)
	}
	d := disk{State: s}
	d.log, err = raftlog.Open(raftlog.Config{Dir: b.TempDir(), Machine: d, LowWater: func(uint64) uint64 { return 0 }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	leading := make(chan struct{})
	g.Go(func() error { return d.log.Run(ctx) })
	g.Go(func() error {
		return d.log.Lead(ctx, func(ctx context.Context, _ uint64) error {
			close(leading)
			<-ctx.Done()
			return nil
		})
	})
	<-leading
	w := &world{d, func() {
		cancel()
		if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		if err := d.log.Close(); err != nil {
			b.Error(err)
		}
	}}
	// A leader raises the gate before the loops start.
	w.must(b, &state.FormatRaised{Format: state.FormatFloor, By: "benchmark"})
	return w
}

func (w *world) must(b *testing.B, f state.Fact) any {
	b.Helper()
	_, v, err := w.Propose(context.Background(), f)
	if err != nil {
		b.Fatalf("%T: %v", f, err)
	}
	return v
}

func (w *world) addNodes(b *testing.B, n int, cpu muster.MilliCPU) {
	b.Helper()
	w.addNamed(b, n, cpu, nil)
}

// addNamed adds nodes with attributes of their own beside the usual ones.
func (w *world) addNamed(b *testing.B, n int, cpu muster.MilliCPU, named func(i int, attributes map[string]string)) {
	b.Helper()
	for i := range n {
		id := muster.NodeID(fmt.Sprintf("n%06d", i))
		capacity := muster.Resources{CPU: cpu, Memory: 256 * muster.GiB}
		w.must(b, &state.NodeLaunching{ID: id, Pool: "p", Offering: muster.Offering{Provider: "p", Name: "big", Capacity: capacity}})
		w.must(b, &state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)})
		attributes := map[string]string{"os": "linux", "arch": "amd64"}
		if named != nil {
			named(i, attributes)
		}
		w.must(b, &state.NodeJoined{ID: id, Capacity: capacity, Attributes: attributes})
	}
}

// The figure of the design: from all submitted and durable to the last placement
// applied. CPU microseconds are those of the whole process, the submitting left out.
func BenchmarkOneMemberJobs(b *testing.B) {
	worlds(b, func(b *testing.B, open func(*testing.B) *world) {
		for _, size := range []struct{ jobs, nodes int }{{50_000, 1_000}, {50_000, 10_000}} {
			b.Run(fmt.Sprintf("%d on %d nodes", size.jobs, size.nodes), func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					w := open(b)
					w.addNodes(b, size.nodes, muster.MilliCPU(2*1000*size.jobs/size.nodes))
					w.submit(b, size.jobs, "cpu=1", "memory=64MiB")
					drain(b, w, size.jobs)
				}
			})
		}
	})
}

func BenchmarkOneJob(b *testing.B) {
	worlds(b, func(b *testing.B, open func(*testing.B) *world) {
		for _, size := range []struct{ members, nodes int }{{5_000, 1_000}, {5_000, 5_000}, {100_000, 1_000}} {
			b.Run(fmt.Sprintf("of %d on %d nodes", size.members, size.nodes), func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					w := open(b)
					w.addNodes(b, size.nodes, muster.MilliCPU(1000*max(10, 2*size.members/size.nodes)))
					w.must(b, job(b, "big", fmt.Sprintf("count=%d", size.members), "cpu=1", "memory=64MiB"))
					drain(b, w, size.members)
				}
			})
		}
	})
}

// As many workers on one view: what each has out is counted in for the others.
func BenchmarkWorkers(b *testing.B) {
	for _, workers := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("%d, 50000 jobs on 1000 nodes", workers), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := durable(b)
				w.addNodes(b, 1000, 100_000)
				w.submit(b, 50_000, "cpu=1", "memory=64MiB")
				drainWith(b, w, 50_000, Config{Workers: workers})
			}
		})
	}
}

// Jobs come one by one while the loops run, as users submit them.
func BenchmarkSubmittedOneByOne(b *testing.B) {
	worlds(b, func(b *testing.B, open func(*testing.B) *world) {
		w := open(b)
		w.addNodes(b, 1_000, 1_000_000)
		l := start(b, w, Config{})
		b.ResetTimer()
		w.submit(b, b.N, "cpu=0.1", "memory=1MiB")
		await(b, w, b.N)
		b.StopTimer()
		l.stop(b)
		w.end()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "placed/s")
	})
}

// One allocation ends, and the next job of 10,000 that wait for its room is placed.
func BenchmarkRoomFreedToPlaced(b *testing.B) {
	worlds(b, func(b *testing.B, open func(*testing.B) *world) {
		w := open(b)
		w.addNodes(b, 100, 1000)
		l := start(b, w, Config{})
		w.must(b, job(b, "fill", "count=100", "cpu=1", "memory=1MiB"))
		await(b, w, 100)
		waiting := 10_000 + b.N
		w.submit(b, waiting, "cpu=1", "memory=1MiB")
		for l.broker.Stats().Blocked < waiting {
			time.Sleep(time.Millisecond)
		}
		b.ResetTimer()
		for range b.N {
			var a *state.Alloc
			w.Latest().LiveAllocs(func(x *state.Alloc) bool { a = x; return false })
			w.must(b, &state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded}}})
			await(b, w, 100)
		}
		b.StopTimer()
		l.stop(b)
		w.end()
	})
}

// submit brings jobs of one member, with as many at once as users might.
func (w *world) submit(b *testing.B, n int, words ...string) {
	b.Helper()
	var g errgroup.Group
	for k := range 64 {
		g.Go(func() error {
			for i := k; i < n; i += 64 {
				f, err := fittest.Job(fmt.Sprintf("j%07d", i), words...)
				if err != nil {
					return err
				}
				if _, _, err := w.Propose(context.Background(), f); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

func job(b *testing.B, name string, words ...string) *state.JobSubmitted {
	b.Helper()
	f, err := fittest.Job(name, words...)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// await waits until as many allocations are live, by the feed.
func await(b *testing.B, w *world, live int) {
	b.Helper()
	for {
		snap := w.Latest()
		if snap.LiveAllocCount() >= live {
			return
		}
		if err := w.Feed().Wait(context.Background(), snap.Index()); err != nil {
			b.Fatal(err)
		}
	}
}

// drain runs the loops until all is placed, and reports the rate and its cost.
func drain(b *testing.B, w *world, members int) {
	b.Helper()
	drainWith(b, w, members, Config{Window: *window, Workers: *workers, Limits: place.Limits{Placements: *placements}})
}

func drainWith(b *testing.B, w *world, members int, cfg Config) {
	b.Helper()
	cpu := cpuSeconds(b)
	b.StartTimer()
	began := time.Now()
	l := start(b, w, cfg)
	await(b, w, members)
	took := time.Since(began)
	b.StopTimer()
	cpu = cpuSeconds(b) - cpu
	l.stop(b)
	w.end()
	b.ReportMetric(float64(members)/took.Seconds(), "placed/s")
	b.ReportMetric(cpu*1e6/float64(members), "cpu-µs/placed")
	st, _ := json.Marshal(l.scheduler.Stats())
	b.Logf("%s %+v", st, l.applier.Stats())
}

func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
