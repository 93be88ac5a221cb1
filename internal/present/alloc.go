package present

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Alloc shows an allocation by its own row alone, as events do. Cores, ports and devices are shown
// only for an allocation that asked for any of them.
func Alloc(a *state.Alloc) api.Alloc {
	out := api.Alloc{
		ID: string(a.ID), Namespace: string(a.Run.Key.Namespace), Job: a.Run.Key.Name, JobUID: string(a.UID),
		Version: a.Version, Index: a.Index, Attempt: a.Attempt, Node: string(a.Node),
		Desired: string(a.Desired), Status: string(a.Status), Outcome: string(a.Outcome), Signal: a.Signal, StopCause: a.StopCause,
		Detail: a.Detail, Image: a.Image,
		Placed: a.Placed.Std(), Started: Time(a.Started), Ended: Time(a.Ended), Output: output(&a.Output),
	}
	if names := a.Run.Names; names != nil {
		out.Cores, out.Ports = a.Grant.Cores, names.Ports
		// The grant lists device numbers in the order of the requests. A request without a count is
		// for one device.
		rest := a.Grant.Devices
		for _, ask := range names.Devices {
			n := min(max(ask.Count, 1), len(rest))
			for _, d := range rest[:n] {
				out.Devices = append(out.Devices, fmt.Sprintf("%s %d", ask.Kind, d))
			}
			rest = rest[n:]
		}
	}
	if a.Failure != nil {
		out.Failure = &api.Failure{Class: string(a.Failure.Class), Reason: string(a.Failure.Reason), Message: a.Failure.Message}
	}
	if exited(a) {
		code := a.ExitCode
		out.ExitCode = &code
	}
	return out
}

// AllocOnNode shows an allocation together with the state of its node: whether the node is
// unreachable, and why the allocation may be lost with it. An allocation that has ended does not
// depend on its node any more.
func AllocOnNode(snap *state.Snapshot, a *state.Alloc) api.Alloc {
	out := Alloc(a)
	if a.Live() {
		n := snap.Node(a.Node)
		out.Unreachable = n != nil && n.Health == muster.NodeLost
		out.NodeProblem = NodeProblem(n)
	}
	return out
}

// exited reports whether the command ran and exited by itself. Otherwise the exit code is 0 in the
// row without a meaning, and showing it would look like success.
func exited(a *state.Alloc) bool {
	switch {
	case a.Live() || a.Signal != "":
		return false
	case a.ExitCode != 0 || a.Outcome == muster.OutcomeSucceeded:
		return true
	case a.Failure == nil:
		return false
	}
	// The command exited with 0, and the allocation failed later, when its outputs were stored.
	return a.Failure.Reason == muster.ReasonOutputMissing || a.Failure.Reason == muster.ReasonOutputNotStored
}

// output shows how far the output of an allocation is stored. Dropped counts the bytes that both
// streams lost at their beginning, to the job's output_limit.
func output(o *state.Output) api.OutputState {
	return api.OutputState{
		State: OutputStage(o), Why: o.Why, StdoutBytes: o.Stdout.Size, StderrBytes: o.Stderr.Size,
		Dropped: o.Stdout.Start + o.Stderr.Start, Files: len(o.Files),
	}
}

// OutputStage names how far the output of an allocation is stored. The row leaves the name of the
// first stage, "open", empty.
func OutputStage(o *state.Output) string {
	if o.Stage == state.OutputOpen {
		return "open"
	}
	return string(o.Stage)
}
