package link

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkNoops: members of a command that ends at once, from placed to ended
// and forgotten, over two nodes in memory, with no log on disk: what the link itself costs.
func BenchmarkNoops(b *testing.B) {
	log, err := linktest.NewLedger("c1")
	if err != nil {
		b.Fatal(err)
	}
	nodes := map[muster.NodeID]*linktest.Node{}
	room := muster.Resources{CPU: 1 << 40, Memory: 1 << 50}
	do := func(f state.Fact) {
		if _, _, err := log.Propose(context.Background(), f); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 2 {
		id := muster.NodeID(fmt.Sprintf("n%d", i))
		nodes[id] = linktest.NewNode(linktest.Config{ID: id, Capacity: room})
		_ = nodes[id].Start()
		defer nodes[id].Destroy()
		do(&state.NodeLaunching{ID: id, Token: muster.Token(id), Pool: "p", Offering: muster.Offering{Provider: "fake", Name: "o", Capacity: room}})
		do(&state.NodeLaunched{ID: id, Instance: muster.InstanceID(id)})
	}
	l, err := New(Config{State: log, Proposer: log, Blobs: &linktest.Blobs{},
		Dial: func(ctx context.Context, n *state.Node) (net.Conn, error) { return nodes[n.ID].Dial(ctx) }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	log.Until(ctx, func(s *state.Snapshot) bool { return serving("n0")(s) && serving("n1")(s) })

	s := spec("true", count(max(b.N, 2)), func(s *api.JobSpec) { s.Resources.CPU = 0.001 })
	s.Name = "a"
	do(&state.JobSubmitted{Key: muster.JobKey{Namespace: "default", Name: "a"}, UID: "ua", Spec: s})
	b.ResetTimer()
	began := time.Now()
	const window = 64
	for i := 0; i < b.N; i += window {
		plan := &state.PlanCommitted{}
		for k := i; k < min(i+window, b.N); k++ {
			plan.Placements = append(plan.Placements, state.Placement{UID: "ua", Version: 1, Index: k, Attempt: 1, Node: muster.NodeID(fmt.Sprintf("n%d", k/32%2))})
		}
		do(plan)
		log.Until(ctx, func(s *state.Snapshot) bool { return s.LiveAllocCount() < 8*window })
	}
	log.Until(ctx, func(s *state.Snapshot) bool { return s.JobByUID("ua").Succeeded == b.N })
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "allocs/s")
	cancel()
	<-done
}
