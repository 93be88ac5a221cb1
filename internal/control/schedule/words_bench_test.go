package schedule

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// What users ask for beside room, against asking for nothing, on the same nodes: 25 racks, and one node in a hundred
// that has what is rare. Jobs of one member, and one job of all.
func BenchmarkWords(b *testing.B) {
	const nodes, members = 10_000, 20_000
	named := func(i int, attributes map[string]string) {
		attributes["rack"] = strconv.Itoa(i % 25)
		if i%100 == 0 {
			attributes["rare"] = "yes"
		}
	}
	for _, c := range []struct{ name, words string }{
		{"nothing", ""},
		{"spread over racks", "spread rack"},
		{"affinity to a rack", "likes rack = 7 50"},
		{"a constraint of one in a hundred", "needs rare = yes"},
	} {
		words := append([]string{"cpu=1", "memory=64MiB"}, strings.Fields(c.words)...)
		b.Run(c.name+"/jobs of one", func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := durable(b)
				w.addNamed(b, nodes, 400_000, named)
				w.submit(b, members, words...)
				drain(b, w, members)
			}
		})
		b.Run(c.name+"/one job", func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				w := durable(b)
				w.addNamed(b, nodes, 400_000, named)
				w.must(b, job(b, "big", append([]string{fmt.Sprintf("count=%d", members)}, words...)...))
				drain(b, w, members)
			}
		})
	}
	// A small job, by loops that know the nodes already: from its submission to its last placement.
	b.Run("spread over racks/jobs of 300", func(b *testing.B) {
		const jobs, each = 50, 300
		for range b.N {
			b.StopTimer()
			w := durable(b)
			w.addNamed(b, nodes, 400_000, named)
			l := start(b, w, Config{})
			w.must(b, job(b, "first", "cpu=1", "memory=64MiB"))
			await(b, w, 1)
			cpu := cpuSeconds(b)
			var took []time.Duration
			b.StartTimer()
			for i := range jobs {
				began := time.Now()
				w.must(b, job(b, fmt.Sprint("small", i), "count=300", "cpu=1", "memory=64MiB", "spread", "rack"))
				await(b, w, 1+each*(i+1))
				took = append(took, time.Since(began))
			}
			b.StopTimer()
			cpu = cpuSeconds(b) - cpu
			l.stop(b)
			w.end()
			slices.Sort(took)
			b.ReportMetric(each/took[jobs/2].Seconds(), "placed/s")
			b.ReportMetric(float64(took[jobs/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(cpu*1e6/(jobs*each), "cpu-µs/placed")
		}
	})
}

// A job of 1,000,000 on 10,000 nodes that have room for 20 each, from its submission to its end: what is placed starts and
// ends at once, so that the loops never wait for work. The nodes are facts alone: agents are measured elsewhere.
func BenchmarkMillion(b *testing.B) {
	const nodes, members = 10_000, 1_000_000
	for range b.N {
		b.StopTimer()
		w := durable(b)
		w.addNodes(b, nodes, 20_000)
		l := start(b, w, Config{})
		cpu := cpuSeconds(b)
		b.StartTimer()
		began := time.Now()
		w.must(b, job(b, "big", fmt.Sprintf("count=%d", members), "cpu=1", "memory=64MiB"))
		w.playNodes(b, "big")
		took := time.Since(began)
		b.StopTimer()
		cpu = cpuSeconds(b) - cpu
		l.stop(b)
		w.end()
		b.ReportMetric(members/took.Seconds(), "done/s")
		b.ReportMetric(cpu*1e6/members, "cpu-µs/done")
		b.ReportMetric(peakMemory(b), "peak-MiB")
	}
}

// playNodes starts and ends whatever is placed, until the job is over.
func (w *world) playNodes(b *testing.B, name string) {
	b.Helper()
	const atOnce = 64
	for {
		snap := w.Latest()
		if j := snap.JobByUID(muster.JobUID(name)); j.Succeeded+j.Failed+j.Stopped == j.Count() {
			if j.Succeeded != j.Count() {
				b.Fatalf("%+v", j)
			}
			return
		}
		placed := map[muster.NodeID][]state.AllocUpdate{}
		snap.LiveAllocs(func(a *state.Alloc) bool {
			placed[a.Node] = append(placed[a.Node], state.AllocUpdate{ID: a.ID, Status: muster.AllocRunning, Started: 1})
			return true
		})
		var g errgroup.Group
		g.SetLimit(atOnce)
		for id, updates := range placed {
			g.Go(func() error {
				if _, _, err := w.Propose(context.Background(), &state.AllocsReported{Node: id, Allocs: updates}); err != nil {
					return err
				}
				ends := make([]state.AllocUpdate, len(updates))
				for i, u := range updates {
					ends[i] = state.AllocUpdate{ID: u.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Started: 1, Ended: 2}
				}
				_, _, err := w.Propose(context.Background(), &state.AllocsReported{Node: id, Allocs: ends})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		if len(placed) == 0 {
			if err := w.Feed().Wait(context.Background(), snap.Index()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// peakMemory is the most that this process ever had, in MiB.
func peakMemory(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return n / 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
