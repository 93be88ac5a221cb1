package initbox

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/contract"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// InitWords is what we log when init wrote something that is not for us: it crashed, or nearly.
const InitWords = "init has last words"

// conclude turns what init wrote, and what is seen from outside, into the
// result. It is called when init is gone; afterwards nothing of the sandbox runs.
func (s *sandbox) conclude() {
	words, err := Read(s.dir)
	if err != nil {
		words = &initwire.Record{}
	}
	if words.Result == nil || words.Result.Leftovers || walled(s.record) {
		if err := KillAll(context.Background(), s.dir); err != nil {
			s.k.log.Error("leftovers of a sandbox do not end", "alloc", s.record.Alloc, "error", err)
		}
	}
	if words.Rest != "" {
		s.k.log.Warn(InitWords, "alloc", s.record.Alloc, "text", firstLine(words.Rest))
	}
	switch {
	case s.wasFlooded():
		s.died(words)
	case words.Result != nil:
		s.ended(words.Result)
	case words.Failed != nil:
		s.result = contract.Result{Failure: startFailure(words.Failed), Started: s.started, Ended: s.started}
	default:
		s.died(words)
	}
}

// ended names an end that init saw.
func (s *sandbox) ended(w *initwire.Result) {
	s.mu.Lock()
	cpu := max(s.cpu, w.CPU)
	s.mu.Unlock()
	s.usage = contract.Usage{CPU: cpu, Memory: muster.Bytes(max(w.Memory, 0))}
	if walled(s.record) {
		s.measured()
	}
	s.result = contract.Result{
		ExitCode: w.Exit, Signal: signalName(w.Signal), Stopped: w.Stopped,
		Started: s.within(w.Started), Ended: s.within(w.Ended), OutputLost: max(w.Lost, 0),
	}
	if w.Exit == 0 && w.Signal == 0 && !w.TimedOut {
		return
	}
	how := fmt.Sprintf("exited with code %d", w.Exit)
	if w.Signal != 0 {
		how = "was ended by " + s.result.Signal
	}
	kills, own := cgroup.OutOfMemory(s.record.Cgroups)
	// 137 is what a shell says of a child that was killed.
	killed := w.Signal == int(unix.SIGKILL) || w.Exit == 128+int(unix.SIGKILL)
	s.result.Failure = s.failure(w, how, kills, own, killed)
}

// measured is what a walled sandbox has used: by its cgroup if that still is there, whatever init says.
func (s *sandbox) measured() {
	now, peak := s.measure()
	if now.CPU > 0 {
		s.mu.Lock()
		s.usage.CPU = max(s.cpu, now.CPU)
		s.mu.Unlock()
	}
	if peak > 0 {
		s.usage.Memory = min(s.usage.Memory, peak)
	}
}

// within is a time that init tells, as far as it can be true.
func (s *sandbox) within(at int64) time.Time {
	if walled(s.record) {
		at = min(max(at, s.record.At), time.Now().UnixNano())
	}
	return time.Unix(0, at)
}

func (s *sandbox) failure(w *initwire.Result, how string, kills int64, own, killed bool) *muster.Failure {
	limit := muster.Bytes(s.record.Memory)
	switch {
	case w.TimedOut:
		return UserFault(muster.ReasonTimeout, "over its time limit of %s; %s after %s", s.record.Timeout, how,
			time.Duration(w.Ended-w.Started).Round(time.Millisecond))
	case kills > 0 && own && killed && !w.Stopped:
		return UserFault(muster.ReasonOutOfMemory, "over its memory limit of %s; %s", limit, how)
	case kills > 0 && !own && killed && !w.Stopped:
		return NodeFault("the node ran out of memory and its kernel chose this sandbox; the command %s", how)
	case w.Stopped:
		return UserFault(muster.ReasonStopped, "stopped; the command %s", how)
	}
	if kills > 0 && own {
		how += fmt.Sprintf(", and %d of its processes were killed for going over the memory limit of %s", kills, limit)
	}
	if walled(s.record) && (w.Signal == int(unix.SIGSYS) || w.Exit == 128+int(unix.SIGSYS)) {
		how += ": it is a program of 32 bits, or of another kind whose system calls are not taken here"
	}
	if w.Signal != 0 {
		return UserFault(muster.ReasonSignal, "the command %s", how)
	}
	return UserFault(muster.ReasonExit, "the command %s", how)
}

func (s *sandbox) wasFlooded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flooded != ""
}

// died names an end that init did not live to see.
func (s *sandbox) died(words *initwire.Record) {
	s.mu.Lock()
	stopped, due, flooded := s.stopped, s.due, s.flooded
	s.mu.Unlock()
	now := time.Now()
	s.result = contract.Result{Signal: signalName(int(unix.SIGKILL)), Stopped: stopped, Started: s.started, Ended: now}
	late := s.record.Timeout > 0 && s.age() > s.record.Timeout && !due.IsZero()
	kills, own := cgroup.OutOfMemory(s.record.Cgroups)
	switch {
	case flooded != "":
		s.result.Failure = UserFault(muster.ReasonSandboxDied, "%s; everything was killed", flooded)
	case s.record.Boot != s.k.boot:
		s.result.Failure = sandboxDied("the node was restarted while it ran")
	case kills > 0 && own:
		s.result.Failure = UserFault(muster.ReasonOutOfMemory, "over its memory limit of %s; all of the sandbox was killed", muster.Bytes(s.record.Memory))
	case stopped:
		s.result.Failure = UserFault(muster.ReasonStopped, "stopped; its init did not do so in time, everything was killed")
	case late:
		s.result.Failure = UserFault(muster.ReasonTimeout, "over its time limit of %s; its init did not end it, everything was killed", s.record.Timeout)
	case cgroup.PidsLimitHit(s.record.Cgroups):
		// Init needs a thread now and then. Whoever is inside, or holds a claim, can leave it none.
		s.result.Failure = UserFault(muster.ReasonSandboxDied, "it reached its limit of processes and threads (resources.pids), and its init ended because it could not start a thread; everything was killed")
	case words.Rest != "":
		s.result.Failure = sandboxDied("its init is gone without a result: " + firstLine(words.Rest))
	default:
		s.result.Failure = sandboxDied("its init is gone without a result")
	}
}

func sandboxDied(how string) *muster.Failure {
	return &muster.Failure{Class: muster.FailureNode, Reason: muster.ReasonSandboxDied, Message: "the sandbox died: " + how}
}

// startFailure is init's word why a command did not start, as far as it is one that we know.
func startFailure(f *initwire.Failed) *muster.Failure {
	message := strings.ToValidUTF8(f.Message, "?")
	if f.Class == initwire.ClassUser {
		switch reason := muster.Reason(f.Reason); reason {
		case muster.ReasonCommandNotFound, muster.ReasonNotExecutable, muster.ReasonNoWorkdir, muster.ReasonSpec:
			return UserFault(reason, "%s", message)
		}
	}
	return NodeFault("%s", message)
}

// signalName is "SIGKILL" for 9, empty for 0.
func signalName(n int) string {
	if n == 0 {
		return ""
	}
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", n)
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 200 {
		s = s[:200]
	}
	return strings.ToValidUTF8(s, "?")
}
