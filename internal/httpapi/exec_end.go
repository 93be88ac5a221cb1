package httpapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// What is said of the end of an execution that cannot be seen from inside of its sandbox, and what is counted.

// endings is what this server has seen of executions.
type endings struct {
	mu sync.Mutex
	// blamed is how many executions of an allocation were said to have ended for want of memory.
	blamed map[muster.AllocID]int64
	// detached are those that may be joined later, with what was before them.
	detached map[muster.AllocID]map[string]int64
	// joinable is how many those are.
	joinable int
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

// Execution is one in an allocation's sandbox, with what its end is judged by.
type Execution struct {
	*initwire.Execution

	al *state.Alloc
	// before is how many processes there the kernel had killed for want of memory when it was started, but for those that
	// explain the end of another execution.
	before int64
}

// How somebody came to an execution.
type manner int

const (
	execAttached manner = iota // it ends with its client
	execDetached               // it may be joined
	execJoined                 // it was started before
)

// begun notes what was before an execution that conn has brought about.
func (a *API) begun(al *state.Alloc, x *initwire.Execution, conn Conn, how manner) *Execution {
	kills, _ := conn.OOMKills() // of an agent that does not tell, all there ever were may be its own
	e := &a.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	before := max(kills-e.blamed[al.ID], 0) // less is told where the agent does not tell, or counts anew
	id := x.Started.ID
	switch at, known := e.detached[al.ID][id]; {
	case how == execDetached:
		e.forget(a.cfg.State.Latest())
		if e.detached == nil {
			e.detached = map[muster.AllocID]map[string]int64{}
		}
		if e.detached[al.ID] == nil {
			e.detached[al.ID] = map[string]int64{}
		}
		if !known {
			e.joinable++
		}
		e.detached[al.ID][id] = before
	case how == execJoined && known:
		before = at
	}
	return &Execution{Execution: x, al: al, before: before}
}

// forget makes room if there is much. Whoever joins an execution of which nothing is remembered may not
// be told that memory was what it ended for, and is told nothing that is not true.
func (e *endings) forget(now *state.Snapshot) {
	if e.joinable < maxEndings {
		return
	}
	maps.DeleteFunc(e.detached, func(id muster.AllocID, of map[string]int64) bool {
		al := now.Alloc(id)
		if al != nil && al.Live() {
			return false
		}
		e.joinable -= len(of)
		return true
	})
	if e.joinable >= maxEndings {
		e.detached, e.joinable = nil, 0
	}
}

// ended completes the end of an execution and counts it, as one of execResults.
func (a *API) ended(ctx context.Context, x *Execution, end *api.ExecEnd) (result string) {
	al := x.al
	result = "other-exit"
	switch {
	case end.TimedOut:
		result = "time-out"
	case end.Reason != "":
		result = "sandbox-ended"
		if why := a.gone(al); why != "" {
			end.Reason = why
		}
	case end.ExitCode == 128+9 && a.outOfMemory(ctx, x):
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
	var p *problem.Problem
	if _, err := a.cfg.Claims.Claimed(string(al.ID)); errors.As(err, &p) {
		return p.Detail
	}
	return ""
}

// outOfMemory reports whether the kernel has killed something there for want of memory since the execution was started that
// no other execution's end is explained by. Of two that were killed at once each had its own.
func (a *API) outOfMemory(ctx context.Context, x *Execution) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askedFor)
	defer cancel()
	s, err := a.cfg.Sandboxes.AllocStats(ctx, x.al)
	if err != nil {
		return false
	}
	e := &a.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.OOMKills-e.blamed[x.al.ID] <= x.before {
		return false
	}
	if now := a.cfg.State.Latest(); len(e.blamed) >= maxEndings {
		maps.DeleteFunc(e.blamed, func(id muster.AllocID, _ int64) bool {
			al := now.Alloc(id)
			return al == nil || !al.Live()
		})
	}
	if e.blamed == nil {
		e.blamed = map[muster.AllocID]int64{}
	}
	e.blamed[x.al.ID]++
	return true
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
		a.cfg.Metrics.firstOutput.Observe(max(a.cfg.Clock.Now().Sub(c.Made), 0).Seconds())
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
