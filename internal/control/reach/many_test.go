package reach

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/control/link"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/remote/remotetest"
	"github.com/musterhq/muster/internal/state"
)

// manyHosts is a provider whose instances are users of one SSH server.
type manyHosts struct {
	cloud.Provider
	ssh *remotetest.Many
}

func (m *manyHosts) Access(_ context.Context, id muster.InstanceID) (cloud.Access, error) {
	return cloud.Access{Address: m.ssh.Address, User: string(id), KeyFile: m.ssh.KeyFile, HostKeys: []string{m.ssh.HostKey}}, nil
}

// BenchmarkNewInstances: jobs of one member on as many instances that are just made, over SSH within this process:
// dialled, looked at, started, joined, and one command ended on each. The memory is of both ends. MUSTER_INSTANCES says how
// many; 1000 is what the design asks for.
func BenchmarkNewInstances(b *testing.B) {
	n := 200
	if k, err := strconv.Atoi(os.Getenv("MUSTER_INSTANCES")); err == nil {
		n = k
	}
	for b.Loop() {
		newInstances(b, n)
	}
}

func newInstances(b *testing.B, n int) {
	nodes := map[string]*linktest.Node{}
	room := muster.Resources{CPU: 1000, Memory: muster.GiB}
	for i := range n {
		id := muster.NodeID(fmt.Sprintf("n%d", i))
		nodes["i-"+string(id)] = linktest.NewNode(linktest.Config{ID: id, Capacity: room})
	}
	ssh := remotetest.NewMany(b, func(host string) error { return nodes[host].Start() },
		func(ctx context.Context, host string) (net.Conn, error) { return nodes[host].Dial(ctx) })
	program := filepath.Join(b.TempDir(), "muster-node-linux-amd64")
	if err := os.WriteFile(program, []byte("stands for it"), 0o755); err != nil {
		b.Fatal(err)
	}
	hosts := &manyHosts{ssh: ssh}
	r, err := New(Config{Provider: func(muster.ProviderName) cloud.Provider { return hosts }, Programs: &Programs{Dirs: []string{filepath.Dir(program)}},
		Cluster: func() string { return "c1" }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	log, err := linktest.NewLedger("c1")
	if err != nil {
		b.Fatal(err)
	}
	l, err := link.New(link.Config{State: log, Proposer: log, Blobs: &linktest.Blobs{}, Dial: r.Dial, DialBulk: r.DialBulk, StartAgent: r.StartAgent,
		StartsItself: r.StartsItself, Enter: r.Enter, Leave: r.Leave, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- r.Run(ctx) }()
	go func() { done <- l.Run(ctx) }()
	do := func(f state.Fact) {
		if _, _, err := log.Propose(ctx, f); err != nil {
			b.Fatal(err)
		}
	}
	priority := 50
	began, cpu := time.Now(), used()
	for i := range n {
		id, name := muster.NodeID(fmt.Sprintf("n%d", i)), fmt.Sprint("j", i)
		do(&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: muster.Offering{Provider: "ssh", Name: "o", Market: muster.OnDemand, Capacity: room}})
		do(&state.NodeLaunched{ID: id, Instance: muster.InstanceID("i-" + id)})
		do(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: name}, UID: muster.JobUID("u" + name), Spec: &api.JobSpec{
			Name: name, Namespace: "default", Type: "batch", Count: 1, Template: api.Template{Priority: &priority, Command: []string{"true"},
				Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}, OutputLimit: 1 << 20, Restart: api.RestartSpec{Attempts: 1},
		}})
	}
	// As a scheduler would: what serves gets its member.
	placed := make([]bool, n)
	for left := n; left > 0; {
		plan := &state.PlanCommitted{}
		log.Until(ctx, func(s *state.Snapshot) bool {
			plan.Placements = nil
			for i := range n {
				id := muster.NodeID(fmt.Sprintf("n%d", i))
				if node := s.Node(id); !placed[i] && node != nil && node.Schedulable() {
					plan.Placements = append(plan.Placements, state.Placement{UID: muster.JobUID(fmt.Sprint("uj", i)), Version: 1, Attempt: 1, Node: id})
				}
			}
			return len(plan.Placements) > 0
		})
		for _, p := range plan.Placements {
			i, _ := strconv.Atoi(string(p.Node[1:]))
			placed[i] = true
		}
		left -= len(plan.Placements)
		do(plan)
	}
	log.Until(ctx, func(s *state.Snapshot) bool {
		for i := range n {
			if j := s.JobByUID(muster.JobUID(fmt.Sprint("uj", i))); j.Stage != muster.JobEnded {
				return false
			}
		}
		return true
	})
	took, spent := time.Since(began), used()-cpu
	b.ReportMetric(float64(n)/took.Seconds(), "starts/s")
	b.ReportMetric(float64(spent.Microseconds())/float64(n)/1000, "cpu-ms/start")
	b.ReportMetric(float64(memory()-before)/float64(n)/1024, "kB/instance")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/instance")
	cancel()
	<-done
	<-done
	for _, node := range nodes {
		node.Destroy()
	}
}

// memory is what the heap and the stacks take, after a collection.
func memory() uint64 {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// used is the processor time of this process.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
