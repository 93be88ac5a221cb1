package inside

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// This file explains the end of an execution where init cannot: whether the kernel killed it for
// want of memory, and why its runner went away. It also counts how executions end.

// endings is what this server has seen of executions. It is kept in memory only. After a restart,
// or on another server, some ends are explained less well, and none wrongly.
type endings struct {
	mu sync.Mutex
	// blamed counts the executions of an allocation whose end was explained by a kill for want of
	// memory. The kernel's count says how many kills there were, not of whom: each kill may explain
	// one end.
	blamed map[muster.AllocID]int64
	// detached has the executions that may be joined later, by their ids.
	detached map[muster.AllocID]map[string]detached
	// joinable is how many executions detached has, over all allocations.
	joinable int
	// answered has the claims whose runner has put out something: only the first output is timed.
	answered map[muster.ClaimID]bool
}

// detached is an execution whose end may be asked for more than once, by whoever joins it.
type detached struct {
	// before is how many kills there were before it, as in Execution.
	before int64
	// explained says that one of the kills explains its end. It is one for all who ask.
	explained bool
}

const (
	// maxEndings bounds what is remembered, each of the maps by itself.
	maxEndings = 50_000
	// askedFor bounds the question how many processes the kernel has killed. The client waits for
	// the answer.
	askedFor = 2 * time.Second
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

// Results returns all results, for counters that should be there at 0.
func Results() []string {
	return []string{ResultSuccess, ResultExit, ResultSignal, ResultTimeout, ResultOutOfMemory, ResultSandboxEnded, ResultBroken}
}

// Execution is one execution in an allocation's sandbox, with what is needed to explain its end.
// Next, WriteStdin and the others of its connection are init's protocol.
type Execution struct {
	*initwire.Execution

	of *Executions
	al *state.Alloc
	// before is how many processes of the sandbox the kernel had killed for want of memory when the
	// execution was started, without those that explain the end of another execution.
	before int64
}

// manner is how a client came to an execution.
type manner int

const (
	execAttached manner = iota // it ends with its client
	execDetached               // it may be joined
	execJoined                 // it was started before
)

// started notes how many kills there were before an execution that was started or joined through
// conn. The agent counts them before it hands anything to init, so that a kill can never be older
// than the execution that it explains.
func (s *Executions) started(al *state.Alloc, x *initwire.Execution, conn Conn, how manner) *Execution {
	// An agent of an earlier version does not tell: then any kill may explain this execution's end.
	kills, _ := conn.OOMKills()
	e := &s.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	// Fewer kills than were blamed are told by an agent that does not tell or has begun to count
	// anew.
	before := max(kills-e.blamed[al.ID], 0)
	id := x.Started.ID
	switch at, known := e.detached[al.ID][id]; {
	case how == execDetached:
		e.forget(s.cfg.State.Latest())
		if e.detached == nil {
			e.detached = map[muster.AllocID]map[string]detached{}
		}
		if e.detached[al.ID] == nil {
			e.detached[al.ID] = map[string]detached{}
		}
		if !known {
			e.joinable++
		}
		e.detached[al.ID][id] = detached{before: before}
	case how == execJoined && known:
		before = at.before
	}
	return &Execution{Execution: x, of: s, al: al, before: before}
}

// forget drops the executions of allocations that have ended when too many are remembered, and all
// if that is not enough. A client that joins a forgotten execution may not be told that it ran out
// of memory; it is never told anything wrong.
func (e *endings) forget(now *state.Snapshot) {
	if e.joinable < maxEndings {
		return
	}
	maps.DeleteFunc(e.detached, func(id muster.AllocID, of map[string]detached) bool {
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

// End turns the end that init tells into the one that clients are told, reports whether the kernel
// ended the execution for want of memory, and counts it. Each client of an execution passes its end
// here once.
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
	// A command that was killed and did not time out may have run out of memory, or somebody has
	// killed it: only the kernel's count tells.
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

// outOfMemory reports whether the kernel has killed a process of the sandbox for want of memory
// since the execution was started, other than those that explain another execution's end. If two
// executions were killed at once, there were two kills, and each explains one.
func (s *Executions) outOfMemory(ctx context.Context, x *Execution) bool {
	// The answer counts for other executions too, so a client that leaves does not cancel it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askedFor)
	defer cancel()
	stats, err := s.measure(ctx, x.al)
	if err != nil {
		return false
	}
	e := &s.endings
	e.mu.Lock()
	defer e.mu.Unlock()
	joinable, known := e.detached[x.al.ID][x.Started.ID]
	// Another client of the same execution was told so already. Its kill explains no third end.
	if known && joinable.explained {
		return true
	}
	if stats.OOMKills-e.blamed[x.al.ID] <= x.before {
		return false
	}
	if known {
		joinable.explained = true
		e.detached[x.al.ID][x.Started.ID] = joinable
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

// PutOut notes that an execution has put out something. The time from a claim to the first output
// of its runner is what users feel of a claim, so that is measured, once for each claim.
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

// Broken makes a problem of the error by which the connection into the sandbox ended before the
// execution did, and counts it.
func (x *Execution) Broken(ctx context.Context, err error) error {
	x.of.cfg.Counters.Execution(ResultBroken)
	return x.of.problemOf(ctx, x.al, err)
}
