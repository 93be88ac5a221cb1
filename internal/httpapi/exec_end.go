package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// What is said of the end of an execution that cannot be seen from inside of its sandbox, and what is counted.

// endings is what this server has seen of executions.
type endings struct {
	mu sync.Mutex
	// killed is how many processes of an allocation the kernel had killed for want of memory when that was last asked.
	killed map[muster.AllocID]int64
	// answered are claims whose runner has put out something.
	answered map[muster.ClaimID]bool
}

// Bounds of what is remembered, and of the question what the kernel did.
const (
	maxEndings = 50_000
	askedFor   = 2 * time.Second
)

// resultOutOfMemory is one of execResults.
const resultOutOfMemory = "out-of-memory"

// ended completes the end of an execution and counts it, as one of execResults.
func (a *API) ended(ctx context.Context, al *state.Alloc, end *api.ExecEnd) (result string) {
	result = "other-exit"
	switch {
	case end.TimedOut:
		result = "time-out"
	case end.Reason != "":
		result = "sandbox-ended"
		if why := a.gone(al); why != "" {
			end.Reason = why
		}
	case end.ExitCode == 128+9 && a.outOfMemory(ctx, al):
		result = resultOutOfMemory
		most := al.Run.Spec.Resources
		end.Reason = fmt.Sprintf("out of memory: the limit is %s", max(most.Memory, most.MemoryMax))
	case end.Signal != "":
		result = "signal"
	case end.ExitCode == 0:
		result = "exit-0"
	}
	a.cfg.Metrics.execution(result)
	return result
}

// gone is why a runner is gone; empty if it is not, or is none.
func (a *API) gone(al *state.Alloc) string {
	if al.Runner == "" {
		return ""
	}
	now := a.cfg.State.Latest().Alloc(al.ID)
	if now == nil || now.Runner != muster.RunnerGone {
		return ""
	}
	var p *problem
	if _, err := a.Claimed(string(al.ID)); errors.As(err, &p) {
		return p.Detail
	}
	return ""
}

// outOfMemory reports whether the kernel has killed something there for want of memory since this was last asked.
func (a *API) outOfMemory(ctx context.Context, al *state.Alloc) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askedFor)
	defer cancel()
	s, err := a.cfg.Sandboxes.AllocStats(ctx, al)
	if err != nil {
		return false
	}
	e := &a.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	more := s.OOMKills > e.killed[al.ID]
	if e.killed == nil || len(e.killed) > maxEndings {
		e.killed = map[muster.AllocID]int64{}
	}
	e.killed[al.ID] = s.OOMKills
	return more
}

// putOut notes that an execution has put out something.
func (a *API) putOut(al *state.Alloc) {
	if al.Runner != muster.RunnerClaimed || a.cfg.Metrics == nil {
		return
	}
	e := &a.endings
	e.mu.Lock()
	again := e.answered[al.Claim]
	if e.answered == nil || len(e.answered) > maxEndings {
		e.answered = map[muster.ClaimID]bool{}
	}
	e.answered[al.Claim] = true
	e.mu.Unlock()
	if c := a.cfg.State.Latest().Claim(al.Claim); !again && c != nil {
		a.cfg.Metrics.firstOutput.Observe(max(muster.At(time.Now()).Sub(c.Made), 0).Seconds())
	}
}

// Ends of executions, as they are counted.
var execResults = strings.Fields("exit-0 other-exit signal time-out out-of-memory sandbox-ended broken")

func executionMetrics() (*prometheus.CounterVec, prometheus.Histogram) {
	results := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_executions_total", Help: "Executions that somebody saw the end of, by how they ended.",
	}, []string{"result"})
	for _, r := range execResults {
		results.WithLabelValues(r)
	}
	return results, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "muster_claim_first_output_seconds", Help: "From a claim to the first output of an execution in its runner.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 5, 30, 120},
	})
}

func (m *Metrics) execution(result string) {
	if m != nil {
		m.executions.WithLabelValues(result).Inc()
	}
}
