package state

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

// What applying plans costs, apart from everything else: 1,024 placements an
// entry, as the scheduler's windows are. Uids that are drawn without order touch another page of
// each tree with every placement; those that begin with the time do not.
func BenchmarkApplyPlans(b *testing.B) {
	const jobs = 50_000
	for _, nodes := range []int{1_000, 10_000} {
		for _, uids := range []string{"timed", "drawn"} {
			b.Run(fmt.Sprintf("%d jobs of one, %d nodes, uids %s", jobs, nodes, uids), func(b *testing.B) {
				benchPlans(b, nodes, jobs, 1, uids == "drawn", false)
			})
		}
	}
	b.Run("one job of 50000, 1000 nodes", func(b *testing.B) { benchPlans(b, 1_000, 1, jobs, false, false) })
}

// What the ends of as many cost, reported node by node.
func BenchmarkApplyEnds(b *testing.B) {
	b.Run("50000 jobs of one, 1000 nodes", func(b *testing.B) { benchPlans(b, 1_000, 50_000, 1, false, true) })
}

func benchPlans(b *testing.B, nodes, jobs, members int, drawn, ends bool) {
	b.ReportAllocs()
	for range b.N {
		b.StopTimer()
		l := newLog(b)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range nodes {
			l.serve(fmt.Sprintf("n%06d", i), 1_000_000)
		}
		uids := make([]muster.JobUID, jobs)
		for i := range uids {
			uids[i] = muster.JobUID(fmt.Sprintf("%016d", i))
			if drawn {
				uids[i] = muster.JobUID(fmt.Sprintf("%016x", rng.Uint64()))
			}
			l.must(&JobSubmitted{Key: key(fmt.Sprintf("job%d", i)), UID: uids[i], Spec: spec(members)})
		}
		var facts, reports [][]byte
		encode := func(f Fact) []byte {
			p, err := l.s.Encode(f)
			if err != nil {
				b.Fatal(err)
			}
			return p
		}
		at := 0
		for first := 0; first < jobs*members; first += 1024 {
			f, n := &PlanCommitted{}, min(1024, jobs*members-first)
			for k := range n {
				i := first + k
				f.Placements = append(f.Placements, Placement{UID: uids[i/members], Version: 1, Index: i % members, Attempt: 1, Node: muster.NodeID(fmt.Sprintf("n%06d", (at+k/16)%nodes))})
			}
			for k := 0; k < n; k += 16 {
				r := &AllocsReported{Node: f.Placements[k].Node}
				for _, p := range f.Placements[k:min(k+16, n)] {
					r.Allocs = append(r.Allocs, succeeded(muster.NewAllocID(p.UID, p.Index, p.Attempt)))
				}
				reports = append(reports, encode(r))
			}
			at += n / 16
			facts = append(facts, encode(f))
		}
		apply := func(facts [][]byte) {
			for _, f := range facts {
				l.now += 1000
				l.entries = append(l.entries, entry{})
				if err, bad := l.s.Apply(uint64(len(l.entries)), 1, l.now, [][]byte{f})[0].(error); bad {
					b.Fatal(err)
				}
			}
		}
		if ends {
			apply(facts)
			facts = reports
		}
		b.StartTimer()
		cpu := cpuTime(b)
		apply(facts)
		b.StopTimer()
		b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(jobs*members), "cpu-µs/placement")
		if n := l.s.Latest().AllocCount(); n != jobs*members {
			b.Fatalf("%d allocations", n)
		}
	}
}

// cpuTime is that of the whole process, the collector's included.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
