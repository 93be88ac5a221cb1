package endtoend

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// cli runs the CLI with this host's server to its end, and tells its processor time.
func (h *host) cli(args ...string) time.Duration {
	h.tb.Helper()
	cmd := exec.CommandContext(h.tb.Context(), programs.muster, append([]string{"--data-dir", h.data}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir, "XDG_CONFIG_HOME=" + h.dir}
	cmd.WaitDelay = time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		h.tb.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// BenchmarkColdStart is `muster dev` from its exec to the moment when it says that it is
// ready, on a directory that is not there yet; and again on what it left. Target: 500 ms.
func BenchmarkColdStart(b *testing.B) {
	const tries = 15
	var fresh, again []time.Duration
	for range b.N {
		for range tries {
			h := newHost(b)
			fresh = append(fresh, h.dev())
			h.stop()
			again = append(again, h.dev())
			h.clean()
		}
	}
	spread(b, "fresh", fresh)
	spread(b, "again", again)
}

// BenchmarkIdle is the processor time that a server and the agent of a node without work use up, over 20 s.
func BenchmarkIdle(b *testing.B) {
	const length = 20 * time.Second
	h := newHost(b)
	h.serve(fixed(1, 2))
	h.run(small(1, "true"))
	<-time.After(3 * time.Second) // what follows an end is not idleness
	b.ResetTimer()
	for range b.N {
		before := h.cost()
		<-time.After(length)
		used := h.cost().sub(before)
		b.ReportMetric(float64(used.server.Milliseconds())/length.Seconds(), "server-ms/s")
		b.ReportMetric(float64(used.agents.Milliseconds())/length.Seconds(), "agent-ms/s")
	}
	b.ReportMetric(resident(b, h.cmd.Process.Pid), "server-MiB")
	for _, pid := range h.agents() {
		b.ReportMetric(resident(b, pid), "agent-MiB")
	}
}

// BenchmarkFinishedAllocs is the memory that 100,000 allocations take which have ended, and which their jobs still keep: the
// facts that bring them about, applied to a state. Beside it what writing and reading a snapshot of them takes.
func BenchmarkFinishedAllocs(b *testing.B) {
	const total = 100_000
	for _, perJob := range []int{1, 1000} {
		b.Run(fmt.Sprintf("members=%d", perJob), func(b *testing.B) {
			for range b.N {
				before := heap()
				// A feed as short as can be: the changes in it are bounded, and not what grows.
				s, err := state.New(1)
				if err != nil {
					b.Fatal(err)
				}
				l := &facts{tb: b, s: s}
				l.finish(total, perJob)
				b.ReportMetric((heap()-before)/total, "B/alloc")
				b.ReportMetric((heap()-before)/(1<<20), "MiB")
				began := time.Now()
				n, err := s.Image().WriteTo(discard{})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "snapshot-ms")
				b.ReportMetric(float64(n)/total, "snapshot-B/alloc")
				runtime.KeepAlive(s)
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// heap is what lives on it, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// facts applies them one after the other.
type facts struct {
	tb    testing.TB
	s     *state.State
	index uint64
	now   time.Time
}

func (l *facts) must(f state.Fact) any {
	l.tb.Helper()
	b, err := l.s.Encode(f)
	if err != nil {
		l.tb.Fatal(err)
	}
	l.index++
	v := l.s.Apply(l.index, 1, l.now.UnixMicro(), [][]byte{b})[0]
	if err, failed := v.(error); failed {
		l.tb.Fatalf("%T: %v", f, err)
	}
	l.now = l.now.Add(time.Millisecond)
	return v
}

// finish has jobs of so many members each run to their end on one node.
func (l *facts) finish(total, perJob int) {
	l.tb.Helper()
	l.now = time.Unix(1_800_000_000, 0)
	capacity := muster.Resources{CPU: 1 << 30, Memory: 1 << 50}
	l.must(&state.TermBegan{Term: 1, Cluster: "c"})
	l.must(&state.NodeLaunching{ID: "n1", Token: "t1", Pool: "p", Offering: muster.Offering{Provider: "p", Name: "o", Capacity: capacity}})
	l.must(&state.NodeLaunched{ID: "n1", Instance: "i1"})
	l.must(&state.NodeJoined{ID: "n1", Capacity: capacity})
	for k := range total / perJob {
		spec := small(perJob, "true")
		spec.Name = fmt.Sprintf("job-%d", k)
		spec.Defaults()
		uid := muster.JobUID(fmt.Sprintf("u%07d", k))
		l.must(&state.JobSubmitted{Key: muster.JobKey{Namespace: muster.DefaultNamespace, Name: spec.Name}, UID: uid, Spec: &spec, Idempotency: fmt.Sprintf("%032x", k), Digest: fmt.Sprintf("%064x", k)})
		plan := &state.PlanCommitted{}
		ends := &state.AllocsReported{Node: "n1"}
		for i := range perJob {
			plan.Placements = append(plan.Placements, state.Placement{UID: uid, Version: 1, Index: i, Attempt: 1, Node: "n1"})
			at := muster.At(l.now)
			ends.Allocs = append(ends.Allocs, state.AllocUpdate{
				ID: muster.NewAllocID(uid, i, 1), Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Started: at, Ended: at + 500,
				Output: &state.Output{Stage: state.OutputComplete},
			})
		}
		if r := l.must(plan).(*state.PlanResult); r.Placed != perJob {
			l.tb.Fatalf("placed %d of %d: %+v", r.Placed, perJob, r.Refused)
		}
		l.must(ends)
	}
	snap, ended := l.s.Latest(), 0
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if j.Stage != muster.JobEnded || j.Succeeded != perJob {
			l.tb.Fatalf("job %s: %+v", j.Key, j)
		}
		ended += j.Succeeded
		return true
	})
	if ended != total {
		l.tb.Fatalf("%d of %d have ended", ended, total)
	}
}

// TestSmall keeps the parts of the benchmarks true without their length.
func TestSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs")
	}
	h := newHost(t)
	h.dev()
	events := h.watch()
	before := h.cost()
	job := h.submit(small(20, "true"))
	h.next(events, "alloc.ended", job.Name)
	h.finish()
	h.succeeded(job)
	if used := h.cost().sub(before); used.children == 0 {
		t.Errorf("20 sandboxes cost nothing: %+v", used)
	}
	h.cli("run", "--count", "3", "--", "true")
	h.stop()
	h.dev()
	h.allSucceeded()
	s, err := state.New(1)
	if err != nil {
		t.Fatal(err)
	}
	(&facts{tb: t, s: s}).finish(20, 5)
}
