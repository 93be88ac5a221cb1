package inside

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
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

// How executions end, as they are counted.
const (
	ResultSuccess      = "exit-0"
	ResultExit         = "other-exit"
	ResultSignal       = "signal"
	ResultTimeout      = "time-out"
	ResultOutOfMemory  = "out-of-memory"
	ResultSandboxEnded = "sandbox-ended"
	// ResultBroken is the connection's end before the execution's.
	ResultBroken = "broken"
)

// Results are all of them.
func Results() []string {
	return []string{ResultSuccess, ResultExit, ResultSignal, ResultTimeout, ResultOutOfMemory, ResultSandboxEnded, ResultBroken}
}

// Execution is one in an allocation's sandbox, with what its end is judged by.
type Execution struct {
	*initwire.Execution

	of *Executions
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
func (s *Executions) begun(al *state.Alloc, x *initwire.Execution, conn Conn, how manner) *Execution {
	kills, _ := conn.OOMKills() // of an agent that does not tell, all there ever were may be its own
	e := &s.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	before := max(kills-e.blamed[al.ID], 0) // less is told where the agent does not tell, or counts anew
	id := x.Started.ID
	switch at, known := e.detached[al.ID][id]; {
	case how == execDetached:
		e.forget(s.cfg.State.Latest())
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
	return &Execution{Execution: x, of: s, al: al, before: before}
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

// End is the end of an execution as its client is told it, and whether the kernel ended it for want of memory. It is counted.
func (x *Execution) End(ctx context.Context, e *initwire.ExecEnded) (end api.ExecEnd, outOfMemory bool) {
	end = endOf(e)
	al := x.al
	result := ResultExit
	switch {
	case end.TimedOut:
		result = ResultTimeout
	case end.Reason != "":
		result = ResultSandboxEnded
		if why := x.of.gone(al); why != "" {
			end.Reason = why
		}
	case end.ExitCode == 128+9 && x.of.outOfMemory(ctx, x):
		result = ResultOutOfMemory
		most := al.Run.Spec.Resources
		end.Reason = fmt.Sprintf("out of memory: the limit is %s", max(most.Memory, most.MemoryMax))
	case end.Signal != "":
		result = ResultSignal
	case end.ExitCode == 0:
		result = ResultSuccess
	}
	x.of.cfg.Counters.Execution(result)
	return end, result == ResultOutOfMemory
}

// outOfMemory reports whether the kernel has killed something there for want of memory since the execution was started that
// no other execution's end is explained by. Of two that were killed at once each had its own.
func (s *Executions) outOfMemory(ctx context.Context, x *Execution) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askedFor)
	defer cancel()
	stats, err := s.measure(ctx, x.al)
	if err != nil {
		return false
	}
	e := &s.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	if stats.OOMKills-e.blamed[x.al.ID] <= x.before {
		return false
	}
	if now := s.cfg.State.Latest(); len(e.blamed) >= maxEndings {
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

// PutOut notes that an execution has put out something. What counts is the first time for a claim.
func (x *Execution) PutOut() {
	al, s := x.al, x.of
	if al.Runner != muster.RunnerClaimed {
		return
	}
	e := &s.endings
	e.mu.Lock()
	again := e.answered[al.Claim]
	if e.answered == nil || len(e.answered) > maxEndings {
		e.answered = map[muster.ClaimID]bool{}
	}
	e.answered[al.Claim] = true
	e.mu.Unlock()
	if c := s.cfg.State.Latest().Claim(al.Claim); !again && c != nil {
		s.cfg.Counters.FirstOutput(max(s.cfg.Clock.Now().Sub(c.Made), 0))
	}
}

// Broken is what a client is told whose connection into the sandbox broke before the execution ended. It is counted.
func (x *Execution) Broken(ctx context.Context, err error) error {
	x.of.cfg.Counters.Execution(ResultBroken)
	return x.of.broke(ctx, x.al, err)
}
