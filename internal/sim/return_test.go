package sim

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/fake"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/broker"
	"github.com/musterhq/muster/internal/control/fleet"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/state"
)

// TestNothingIsLeftOfTenThousandNodes: ten thousand nodes come, are given work with affinity keys, and go, in waves; some are
// lost, some are flaky, some lose their machine. Goroutines, every index, the state's image and the heap are then as before.
func TestNothingIsLeftOfTenThousandNodes(t *testing.T) {
	// In the first waves rings, pools and maps get their size.
	const first = 4
	waves, size := 20, 500
	if testing.Short() {
		waves, size = 8, 100
	}
	synctest.Test(t, func(t *testing.T) {
		r := newReturning(t, size)
		for i := range first {
			r.wave(i, size)
		}
		before := r.measure()
		middle := before
		for i := first; i < waves; i++ {
			if i == (first+waves)/2 {
				middle = r.measure()
			}
			r.wave(i, size)
		}
		after := r.measure()
		t.Logf("before %+v", before)
		t.Logf("after  %+v", after)
		heap, image := after.heap-before.heap, after.image-before.image
		came := (waves - first) * size
		// What is kept for each node makes both halves grow. A queue or a map that a busy machine made
		// larger than before grows once.
		most := int64(came * 100)
		if halves := min(middle.heap-before.heap, heap-(middle.heap-before.heap)); (halves > most/2 || heap > 2*most) && !testing.Short() {
			t.Errorf("the heap has grown by %d bytes, %d of them in each half, with %d nodes that came and went", heap, halves, came)
		}
		before.heap, after.heap, before.image, after.image = 0, 0, 0, 0
		if before != after {
			t.Errorf("not as before")
		}
		// What jobs have cost is kept when they are forgotten.
		if most := (waves - first) * jobsOfWave * 100; image > most {
			t.Errorf("the state's image has grown by %d bytes, with %d nodes that came and went", image, came)
		}
		r.stop()
	})
}

const jobsOfWave = 10

// left is what there is between waves.
type left struct {
	goroutines                                                       int
	nodes, gone, jobs, ended, allocs, live, warm, unsettled, serving int
	image                                                            int
	heap                                                             int64
}

type returning struct {
	t     *testing.T
	log   *linktest.Ledger
	cloud *fake.Cloud

	mu       sync.Mutex
	machines map[muster.InstanceID]*linktest.Node

	cancel context.CancelFunc
	loops  sync.WaitGroup
}

func newReturning(t *testing.T, size int) *returning {
	t.Helper()
	r := &returning{t: t, machines: map[muster.InstanceID]*linktest.Node{}}
	var err error
	if r.log, err = linktest.NewLedger(owner); err != nil {
		t.Fatal(err)
	}
	room := muster.Resources{CPU: 1000, Memory: muster.GiB}
	offerings := []muster.Offering{{Provider: provider, Name: "o", Market: muster.OnDemand, Price: 1, Capacity: room, Available: true}}
	r.cloud = fake.New(fake.Config{Offerings: offerings, Created: func(in cloud.Instance) {
		n := linktest.NewNode(linktest.Config{ID: in.Tags.Node, Capacity: room, Attributes: map[string]string{"os": "linux"}})
		r.mu.Lock()
		r.machines[in.ID] = n
		r.mu.Unlock()
		_ = n.Start()
	}, Destroyed: func(in cloud.Instance) {
		r.mu.Lock()
		n := r.machines[in.ID]
		delete(r.machines, in.ID)
		r.mu.Unlock()
		if n != nil {
			n.Destroy()
		}
	}})
	machine := func(n *state.Node) (*linktest.Node, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m := r.machines[n.Instance]; m != nil {
			return m, nil
		}
		return nil, muster.Faultf(muster.FaultNotFound, "instance %s: not found", n.Instance)
	}
	r.must(&state.PoolsSet{Pools: []state.Pool{{Name: "p", Provider: provider, Max: size, MaxLaunching: size, IdleTimeout: 1e6, BootTimeout: 300e6, Grace: 60e6}}})
	b, err := broker.New(broker.Config{State: r.log, Proposer: r.log})
	must(t, err)
	a, err := apply.New(apply.Config{Snapshots: r.log, Proposer: r.log, Deliveries: b})
	must(t, err)
	s, err := schedule.New(schedule.Config{State: r.log, Queue: b, Submit: a})
	must(t, err)
	f, err := fleet.New(fleet.Config{State: r.log, Proposer: r.log, Providers: map[muster.ProviderName]cloud.Provider{provider: r.cloud.Owner(owner)}})
	must(t, err)
	l, err := link.New(link.Config{State: r.log, Proposer: r.log, Blobs: &linktest.Blobs{},
		Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) {
			m, err := machine(n)
			if err != nil {
				return nil, err
			}
			return m.Dial(ctx)
		},
		StartAgent: func(_ context.Context, n *state.Node) error {
			m, err := machine(n)
			if err != nil {
				return err
			}
			return m.Start()
		}})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	for _, run := range []func(context.Context) error{b.Run, a.Run, s.Run, f.Run, l.Run} {
		r.loops.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *returning) must(f state.Fact) {
	r.t.Helper()
	if _, _, err := r.log.Propose(context.Background(), f); err != nil {
		r.t.Fatalf("%T: %v", f, err)
	}
}

func (r *returning) stop() {
	r.cancel()
	r.loops.Wait()
}

func (r *returning) until(what string, ok func(*state.Snapshot) bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	if !r.log.Until(ctx, ok) {
		r.t.Fatalf("never: %s", what)
	}
}

// wave has so many nodes come, work and go.
func (r *returning) wave(number, size int) {
	r.t.Helper()
	const jobs = jobsOfWave
	var uids []muster.JobUID
	for i := range jobs {
		name := fmt.Sprintf("w%d-%d", number, i)
		spec := &api.JobSpec{Name: name, Count: size / jobs, Template: api.Template{Command: []string{"sleep", "3s"}, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}, Affinity: fmt.Sprintf("key-%d-%d", number%2, i)}
		spec.Defaults()
		uids = append(uids, muster.JobUID("u"+name))
		r.must(&state.JobSubmitted{Key: jobKey(name), UID: muster.JobUID("u" + name), Spec: spec})
	}
	r.until("all nodes work", func(s *state.Snapshot) bool {
		k := 0
		for _, uid := range uids {
			k += s.JobByUID(uid).Running
		}
		return k == size
	})
	// Not all go as they should.
	var ids []muster.NodeID
	r.log.Latest().LiveNodes(func(n *state.Node) bool { ids = append(ids, n.ID); return len(ids) < 6 })
	for i, id := range ids {
		instance := r.log.Latest().Node(id).Instance
		switch i {
		case 0:
			r.cloud.Vanish(instance)
		case 1:
			r.mu.Lock()
			m := r.machines[instance]
			r.mu.Unlock()
			m.Cut(true)
		case 2:
			r.must(&state.NodeIntentSet{ID: id, Intent: muster.NodeDrain, Until: muster.At(time.Now().Add(time.Second))})
		case 3:
			for range state.FlakyFailures {
				r.must(&state.NodeFailed{ID: id, Reason: "no loop device"})
			}
		}
	}
	r.until("all jobs have ended", func(s *state.Snapshot) bool { return s.EndedJobCount() == jobs })
	r.until("all nodes are gone", func(s *state.Snapshot) bool { return s.LiveNodeCount() == 0 })
	for _, uid := range uids {
		if j := r.log.Latest().JobByUID(uid); j.Result != muster.JobSucceeded {
			r.t.Errorf("job %s %s: %s", j.Key, j.Result, j.Reason)
		}
	}
	purge := &state.NodesPurged{}
	r.log.Latest().GoneNodes(func(n *state.Node) bool { purge.IDs = append(purge.IDs, n.ID); return true })
	if len(purge.IDs) < size {
		r.t.Errorf("only %d nodes came", len(purge.IDs))
	}
	r.must(purge)
	r.must(&state.JobsPurged{UIDs: uids})
	time.Sleep(20 * time.Minute) // windows, back-offs and idle connections are over
	synctest.Wait()
}

// goroutines are those of the bubbles. Others are of the tests before, and end when they like.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	for {
		if n := runtime.Stack(stacks, true); n < len(stacks) {
			return bytes.Count(stacks[:n], []byte(", synctest bubble "))
		}
		stacks = make([]byte, 2*len(stacks))
	}
}

func (r *returning) measure() left {
	s := r.log.Latest()
	out := left{
		nodes: s.LiveNodeCount(), gone: s.GoneNodeCount(), jobs: s.JobCount(), ended: s.EndedJobCount(), allocs: s.AllocCount(), live: s.LiveAllocCount(),
		warm: s.WarmCount(), unsettled: s.UnsettledCount(), serving: s.Tally("p").Serving,
	}
	var image bytes.Buffer
	if _, err := r.log.S.Image().WriteTo(&image); err != nil {
		r.t.Fatal(err)
	}
	out.image = image.Len()
	out.goroutines = goroutines()
	// What has a finalizer or lies in a pool goes with a later collection, and on a busy machine later still: they go on for as
	// long as that frees something.
	for round, before := 0, int64(0); round < 3 || out.heap < before; round++ {
		before = out.heap
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		out.heap = int64(m.HeapAlloc)
	}
	return out
}
