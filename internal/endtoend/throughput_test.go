package endtoend

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// submitters is how many clients submit jobs at once.
const submitters = 16

// BenchmarkNoOps runs members that do nothing on the instances that `muster dev`
// makes, from the first submission to the end of the last member: as one job, and as jobs of one member each,
// submitted by 16 clients. A job that came before has brought the instances. Beside the rate, what an
// operation costs: the server, its agents, and the sandboxes (init with the command); then what the restart of the
// server takes with all of it in its log, and its memory. Target: 350 /s at 1,000.
func BenchmarkNoOps(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("one-job/%d", n), func(b *testing.B) {
			noOps(b, n, func(h *host) {
				h.submit(small(n, "true"))
			})
		})
		b.Run(fmt.Sprintf("jobs/%d", n), func(b *testing.B) {
			noOps(b, n, func(h *host) {
				var next atomic.Int64
				g, ctx := errgroup.WithContext(b.Context())
				for range submitters {
					g.Go(func() error {
						for next.Add(1) <= int64(n) {
							if _, err := h.cl.Submit(ctx, api.JobSubmission{Spec: small(1, "true")}, client.NewKey()); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err := g.Wait(); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func noOps(b *testing.B, n int, submit func(*host)) {
	h := newHost(b)
	h.dev()
	h.run(small(100, "true"))
	var took time.Duration
	var used cost
	var entries uint64
	for range b.N {
		first := h.index()
		before := h.cost()
		began := time.Now()
		submit(h)
		h.finish()
		took += time.Since(began)
		used = h.cost().sub(before)
		entries = h.index() - first
	}
	b.StopTimer()
	h.allSucceeded()
	b.ReportMetric(float64(entries)/float64(n), "entries/op") // of the log: that many fsyncs
	b.ReportMetric(float64(n*b.N)/took.Seconds(), "per-s")
	used.per(b, n)
	b.ReportMetric(resident(b, h.cmd.Process.Pid), "server-MiB")
	h.stop()
	b.ReportMetric(float64(h.dev().Milliseconds()), "restart-ms")
	b.ReportMetric(resident(b, h.cmd.Process.Pid), "restarted-MiB")
}

// index is that of the newest entry of the log.
func (h *host) index() uint64 {
	h.tb.Helper()
	info, err := h.cl.Server(h.tb.Context())
	if err != nil {
		h.tb.Fatal(err)
	}
	return info.Index
}

// allSucceeded fails unless every job has.
func (h *host) allSucceeded() {
	h.tb.Helper()
	for j, err := range h.cl.AllJobs(h.tb.Context(), client.JobQuery{}) {
		if err != nil {
			h.tb.Fatal(err)
		}
		if j.Counts.Succeeded != j.Count {
			h.tb.Fatalf("job %s: %s, %+v", j.Name, j.Reason, j.Counts)
		}
	}
}

// BenchmarkBareProcesses is what there is to compare with on this machine now:
// `true` alone, and a start of muster-init that does nothing, each by a bare fork and exec, by as many at once
// as an agent starts.
func BenchmarkBareProcesses(b *testing.B) {
	needPrograms(b)
	for _, x := range []struct {
		name string
		argv []string
		env  []string
	}{
		{"true", []string{"/bin/true"}, nil},
		{"init", []string{programs.init, "--version"}, []string{"GOMAXPROCS=1", "GOGC=25"}},
	} {
		b.Run(x.name, func(b *testing.B) {
			const n, atOnce = 1000, 4
			attr := &syscall.ProcAttr{Env: x.env}
			used := func() time.Duration {
				var all time.Duration
				for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
					var u syscall.Rusage
					_ = syscall.Getrusage(who, &u)
					all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
				}
				return all
			}
			before, began := used(), time.Now()
			for range b.N {
				var left atomic.Int64
				left.Store(n)
				var wg sync.WaitGroup
				for range atOnce {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if err := forkAndWait(x.argv, attr); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(n*b.N)/time.Since(began).Seconds(), "per-s")
			b.ReportMetric(float64((used()-before).Microseconds())/float64(n*b.N), "cpu-µs/op")
		})
	}
}

func forkAndWait(argv []string, attr *syscall.ProcAttr) error {
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return err
	}
	for {
		if _, err = syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return err
		}
	}
}

// BenchmarkFollowedRun is `muster run --count 1000 -- true`: the same through the
// CLI, which follows a thousand members and asks for the output of each.
func BenchmarkFollowedRun(b *testing.B) {
	const n = 1000
	h := newHost(b)
	h.dev()
	h.run(small(100, "true"))
	var took, used time.Duration
	var system cost
	for range b.N {
		before := h.cost()
		began := time.Now()
		u := h.cli("run", "--count", fmt.Sprint(n), "--cpu", "0.05", "--memory", "16MiB", "--", "true")
		took += time.Since(began)
		system = h.cost().sub(before)
		used += u
	}
	b.ReportMetric(float64(n*b.N)/took.Seconds(), "per-s")
	system.client = used / time.Duration(b.N)
	system.per(b, n)
}
