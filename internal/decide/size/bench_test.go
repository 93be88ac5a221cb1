package size

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// full is a cluster at its maximum, where every node is full and jobs wait in
// so many shapes and five priorities.
func full(t testing.TB, waiting, nodes, shapes int) *cluster {
	c := newCluster(t)
	c.read(fmt.Sprintf("pool p max=%d month=100000000 hour=1000000\noffer small cpu=4 memory=8GiB price=1\noffer medium cpu=8 memory=16GiB price=2\noffer large cpu=16 memory=64GiB price=5\njob first count=%d cpu=2 memory=1GiB",
		nodes, 2*nodes))
	offers := make([]muster.Offering, 0, 3)
	c.s.Latest().Offerings(func(o *muster.Offering) bool { offers = append(offers, *o); return true })
	for i := range nodes {
		id := muster.NodeID(fmt.Sprintf("n%05d", i))
		// Four cores each, of three kinds, with an agent that says who it is.
		capacity := muster.Resources{CPU: 4000, Memory: 8 * muster.GiB}
		c.do(&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: offers[i%3]})
		c.do(&state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)})
		c.do(&state.NodeJoined{ID: id, Capacity: capacity, Boot: "b", Attributes: map[string]string{"arch": "amd64", "os": "linux", "kernel": "6.1", "hostname": string(id)}})
		c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: "ufirst", Version: 1, Index: 2 * i, Attempt: 1, Node: id}, {UID: "ufirst", Version: 1, Index: 2*i + 1, Attempt: 1, Node: id}}})
	}
	for i := range waiting {
		k := i % shapes
		c.job(fmt.Sprintf("j%05d", i), map[string]string{"cpu": fmt.Sprint(1 + k%4), "memory": fmt.Sprintf("%dMiB", 512+k), "prio": fmt.Sprint(10 * (1 + i%5)), "arch": "amd64"})
	}
	c.advance()
	return c
}

// BenchmarkPass is a pass over waiting jobs × full nodes, with nothing changed
// and with one job ended, which frees half a node.
func BenchmarkPass(b *testing.B) {
	for _, n := range []struct{ waiting, nodes, shapes int }{
		{100, 64, 10}, {1000, 1000, 10}, {10_000, 5000, 10}, {10_000, 5000, 100}, {10_000, 5000, 10_000},
	} {
		name := fmt.Sprintf("waiting=%d,nodes=%d,shapes=%d", n.waiting, n.nodes, n.shapes)
		c := full(b, n.waiting, n.nodes, n.shapes)
		b.Run(name+"/nothing", func(b *testing.B) {
			b.ReportAllocs()
			began := processor()
			for b.Loop() {
				c.advance()
				Plan(c.view, c.blocks, c.now, false)
			}
			b.ReportMetric(float64(processor()-began)/float64(b.N), "cpu-ns/op")
		})
		b.Run(name+"/change", func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				b.StopTimer()
				c.change(i)
				i++
				b.StartTimer()
				c.advance()
				Plan(c.view, c.blocks, c.now, false)
			}
		})
		b.Run(name+"/anew", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Plan(Build(c.s.Latest()), c.blocks, c.now, false)
			}
		})
	}
}

// processor is the processor time that the process has had: others on a busy machine do not count.
func processor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// change ends an allocation of the first job and starts another job's in its
// place, by turns: both come and go, and the cluster stays what it is.
func (c *cluster) change(i int) {
	switch id := muster.JobUID("uchurn"); i % 4 {
	case 0:
		c.job(fmt.Sprintf("churn%d", i/4), map[string]string{"cpu": "2", "memory": "1GiB", "prio": "90"})
	case 1:
		id = muster.JobUID(fmt.Sprintf("uchurn%d", i/4))
		n := c.s.Latest().Node("n00000")
		if 2000 <= n.Free().CPU {
			c.do(&state.PlanCommitted{Placements: []state.Placement{{UID: id, Version: 1, Attempt: 1, Node: n.ID}}})
		}
	case 2:
		c.s.Latest().NodeAllocs("n00000", func(a *state.Alloc) bool {
			c.do(&state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded, Output: &state.Output{Stage: state.OutputComplete}}}})
			return false
		})
	case 3:
		c.now += muster.Time(time.Second / time.Microsecond)
		j := c.s.Latest().JobByUID(muster.JobUID(fmt.Sprintf("uchurn%d", i/4)))
		if j.Stage == muster.JobLive {
			c.do(&state.JobStopped{Key: j.Key})
			c.s.Latest().JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
				c.do(&state.AllocsReported{Node: a.Node, Allocs: []state.AllocUpdate{{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, Output: &state.Output{Stage: state.OutputComplete}}}})
				return true
			})
		}
		c.do(&state.JobsPurged{UIDs: []muster.JobUID{j.UID}})
	}
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// passes plans n times on a cluster in which something changes before each pass,
// and answers with how the heap grew over the later half.
func passes(t testing.TB, n int) int64 {
	c := full(t, 100, 64, 10)
	turn := func(i int) {
		c.change(i)
		c.advance()
		Plan(c.view, c.blocks, c.now, false)
	}
	for i := range n / 2 {
		turn(i)
	}
	before := heap()
	for i := n / 2; i < n; i++ {
		turn(i)
	}
	grown := heap() - before
	runtime.KeepAlive(c)
	return grown
}

// TestHeapStaysFlat: a view that lives long does not grow.
func TestHeapStaysFlat(t *testing.T) {
	if grown := passes(t, 8000); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes in 4000 passes", grown)
	}
}

// BenchmarkHeap is the same over a million passes.
func BenchmarkHeap(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(float64(passes(b, 1_000_000)), "grown-bytes")
	}
}
