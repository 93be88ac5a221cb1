package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// follow gives every report of an allocation to f until f returns false.
func (n *node) follow(b *testing.B, ready chan<- struct{}, f func(wire.AllocReport) bool) {
	first := true
	for report, err := range n.client.Reports(b.Context()) {
		if err != nil {
			if b.Context().Err() == nil {
				b.Error(err)
			}
			return
		}
		if first {
			close(ready)
			first = false
		}
		for _, al := range report.Allocs {
			if !f(al) {
				return
			}
		}
	}
}

// BenchmarkNoOps runs b.N commands that do nothing, sent in sets of up to
// 1,000, through one agent with real processes, and forgets them.
func BenchmarkNoOps(b *testing.B) {
	n := newNode(b)
	n.start(nodeProgram)
	ready, done := make(chan struct{}), make(chan struct{})
	var forget []muster.AllocID
	go func() {
		defer close(done)
		ended := 0
		n.follow(b, ready, func(al wire.AllocReport) bool {
			if al.Status != muster.AllocEnded {
				return true
			}
			if al.Outcome != muster.OutcomeSucceeded {
				b.Errorf("%+v %v", al, al.Failure)
			}
			ended++
			if forget = append(forget, al.ID); len(forget) == 100 {
				n.send(wire.Desired{Forget: forget})
				forget = nil
			}
			return ended < b.N
		})
	}()
	<-ready
	b.ResetTimer()
	began := time.Now()
	for i := 0; i < b.N; i += 1000 {
		var d wire.Desired
		for j := i; j < min(i+1000, b.N); j++ {
			al := shell(muster.NewAllocID("u", j, 1), "")
			al.Spec.Command = []string{"true"}
			d.Allocs = append(d.Allocs, al)
		}
		n.send(d)
	}
	<-done
	b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "allocs/s")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	var peak float64
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(kib, &peak)
		}
	}
	b.ReportMetric(peak/1024, "peak-MiB")
	n.kill()
	// Of the agent, and of the inits and commands that it has reaped.
	usage := n.cmd.ProcessState
	b.ReportMetric(float64((usage.UserTime()+usage.SystemTime()).Microseconds())/float64(b.N), "cpu-µs/alloc")
}

// BenchmarkStart measures from sending an allocation to an idle agent until it
// is told to run.
func BenchmarkStart(b *testing.B) {
	n := newNode(b)
	n.start(nodeProgram)
	ready, running, ended := make(chan struct{}), make(chan time.Time, 10), make(chan muster.AllocID, 10)
	last := muster.AllocID("")
	go n.follow(b, ready, func(al wire.AllocReport) bool {
		switch al.Status {
		case muster.AllocRunning:
			if al.ID != last { // not once more with its usage
				last = al.ID
				running <- time.Now()
			}
		case muster.AllocEnded:
			ended <- al.ID
		}
		return true
	})
	<-ready
	var took []time.Duration
	for i := range b.N {
		al := shell(muster.NewAllocID("u", i, 1), "")
		al.Spec.Command = []string{"sleep", "60"} // one that ends by itself could end before it is told to run
		al.Spec.KillGraceMillis = 0
		began := time.Now()
		n.send(wire.Desired{Allocs: []wire.DesiredAlloc{al}})
		took = append(took, (<-running).Sub(began))
		al.Desired = muster.AllocStop
		n.send(wire.Desired{Allocs: []wire.DesiredAlloc{al}})
		n.send(wire.Desired{Forget: []muster.AllocID{<-ended}})
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
