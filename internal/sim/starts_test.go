package sim

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkStarts is one job of 5,000 members on 5,000 idle nodes, by the clock of the
// wall: from its submission until all are placed, and until every agent has reported its own as running. The
// log is in memory, and so are the agents, which speak the real protocol over pipes: half of the time is theirs.
func BenchmarkStarts(b *testing.B) {
	const nodes = 5000
	for b.Loop() {
		b.StopTimer()
		r := newStarts(b, nodes)
		began, cpu := time.Now(), processor()
		b.StartTimer()
		r.submit(b, nodes)
		r.log.Until(b.Context(), func(s *state.Snapshot) bool { return s.LiveAllocCount() == nodes })
		placed := time.Since(began)
		r.log.Until(b.Context(), func(s *state.Snapshot) bool { return s.JobByUID("ua").Running == nodes })
		running := time.Since(began)
		b.StopTimer()
		b.ReportMetric(nodes/placed.Seconds(), "placed/s")
		b.ReportMetric(nodes/running.Seconds(), "running/s")
		b.ReportMetric(float64((processor()-cpu).Microseconds())/nodes, "cpu-µs/start")
		r.stop()
		b.StartTimer()
	}
}

type starts struct {
	log    *linktest.Ledger
	nodes  map[muster.NodeID]*linktest.Node
	cancel context.CancelFunc
	loops  sync.WaitGroup
}

func newStarts(t testing.TB, count int) *starts {
	t.Helper()
	log, err := linktest.NewLedger("c1")
	if err != nil {
		t.Fatal(err)
	}
	r := &starts{log: log, nodes: map[muster.NodeID]*linktest.Node{}}
	room := muster.Resources{CPU: 1000, Memory: muster.GiB}
	for i := range count {
		id := muster.NodeID(fmt.Sprintf("n%05d", i))
		r.nodes[id] = linktest.NewNode(linktest.Config{ID: id, Capacity: room, Attributes: map[string]string{"os": "linux"}})
		if err := r.nodes[id].Start(); err != nil {
			t.Fatal(err)
		}
		r.must(t, &state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: muster.Offering{Provider: provider, Name: "o", Capacity: room}})
		r.must(t, &state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)})
	}
	br, err := broker.New(broker.Config{State: log, Proposer: log})
	if err != nil {
		t.Fatal(err)
	}
	ap, err := apply.New(apply.Config{Snapshots: log, Proposer: log, Deliveries: br})
	if err != nil {
		t.Fatal(err)
	}
	sc, err := schedule.New(schedule.Config{State: log, Queue: br, Submit: ap})
	if err != nil {
		t.Fatal(err)
	}
	li, err := link.New(link.Config{State: log, Proposer: log, Blobs: &linktest.Blobs{},
		Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) { return r.nodes[n.ID].Dial(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	for _, run := range []func(context.Context) error{br.Run, ap.Run, sc.Run, li.Run} {
		r.loops.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	serving := func(s *state.Snapshot) bool {
		all := li.Stats().Up == count
		s.LiveNodes(func(n *state.Node) bool { all = all && n.Schedulable(); return all })
		return all
	}
	for !serving(log.Latest()) {
		runtime.Gosched()
		time.Sleep(10 * time.Millisecond)
	}
	runtime.GC()
	return r
}

func (r *starts) must(t testing.TB, f state.Fact) {
	t.Helper()
	if _, _, err := r.log.Propose(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

func (r *starts) submit(t testing.TB, count int) {
	t.Helper()
	spec := &api.JobSpec{Name: "a", Count: count, Template: api.Template{Command: []string{"hang"}, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}}
	spec.Defaults()
	r.must(t, &state.JobSubmitted{Key: jobKey("a"), UID: "ua", Spec: spec})
}

func (r *starts) stop() {
	r.cancel()
	r.loops.Wait()
	for _, n := range r.nodes {
		n.Destroy()
	}
}

// processor is the processor time that the process has had.
func processor() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSixtyFour is how long 64 instances take, by the clock of the wall, from a cloud that answers at
// once, with the settings of a pool that says nothing: until all are asked for, and until all serve.
func BenchmarkSixtyFour(b *testing.B) {
	for b.Loop() {
		c, err := New(Config{Seed: 1, Workers: 1, Offerings: []muster.Offering{{Provider: provider, Name: "small", Available: true, Market: muster.OnDemand,
			Price: 1, Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}}},
			Pools: []state.Pool{{Name: "p", Provider: provider, Max: 64, MaxLaunching: 64, IdleTimeout: 300e6, BootTimeout: 300e6, Grace: 60e6}}})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		spec := &api.JobSpec{Name: "a", Count: 64, Template: api.Template{Command: []string{"hang"}, Resources: api.ResourcesSpec{CPU: 2, Memory: 1 << 20}}}
		spec.Defaults()
		began := time.Now()
		if err := c.propose(&state.JobSubmitted{Key: jobKey("a"), UID: "ua", Spec: spec}); err != nil {
			b.Fatal(err)
		}
		c.Log.Until(b.Context(), func(s *state.Snapshot) bool { return s.LiveNodeCount() == 64 })
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-asked")
		c.Log.Until(b.Context(), func(s *state.Snapshot) bool { return s.JobByUID("ua").Running == 64 })
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-running")
		c.Close()
	}
}
