package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// BenchmarkJudgeTenThousand judges 10,000 nodes in contact, of which none has changed.
func BenchmarkJudgeTenThousand(b *testing.B) {
	nodes := make([]*state.Node, 10_000)
	for i := range nodes {
		nodes[i] = &state.Node{ID: muster.NodeID(fmt.Sprint("n", i)), Stage: muster.NodeServing, Health: muster.NodeGood, HealthSince: t0}
	}
	c := Contact{Began: t0, Up: true, Heard: at(time.Second)}
	b.ReportAllocs()
	for b.Loop() {
		for _, n := range nodes {
			if v := Judge(n, time.Minute, c, at(time.Minute)); v.Health != n.Health {
				b.Fatal(v)
			}
		}
	}
}
