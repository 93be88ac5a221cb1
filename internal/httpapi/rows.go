package httpapi

import (
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func at(t muster.Time) *time.Time {
	if t == 0 {
		return nil
	}
	s := t.Std()
	return &s
}

// jobOf shows a job, without its spec.
func jobOf(j *state.Job) api.Job {
	reason := j.Reason
	if reason == "" && j.Stage == muster.JobLive {
		reason = j.Parked
	}
	count, gone := j.Count(), j.Stopped
	if st := j.Standing; st != nil && j.Stage == muster.JobLive {
		if reason == "" && st.Rollout == muster.RolloutFailed {
			reason = fmt.Sprintf("version %d is not rolled out any further: %s", st.Version, st.Reason)
		}
		if j.Run.System() {
			// What nodes had that are gone is of no interest to anybody.
			count, gone = count-gone, 0
		}
	}
	return api.Job{
		Namespace: string(j.Key.Namespace), Name: j.Key.Name, UID: string(j.UID), Version: j.Version,
		Type: j.Run.Spec.Type, Priority: j.Priority(), Count: count,
		Stage: string(j.Stage), Outcome: string(outcomeOf(j)), Reason: reason,
		Counts: api.JobCounts{
			Waiting: j.Waiting(), Placed: j.Placed - j.Running, Running: j.Running,
			Succeeded: j.Succeeded, Failed: j.Failed, Stopped: gone,
		},
		Submitted: j.Submitted.Std(), Ended: at(j.Ended),
	}
}

// outcomeOf is the outcome of a job that has ended: one that is stopping has
// an intended one in its row, which may still change.
func outcomeOf(j *state.Job) muster.JobOutcome {
	if j.Stage != muster.JobEnded {
		return ""
	}
	return j.Result
}

// jobWhole shows a job with its spec.
func jobWhole(j *state.Job) api.Job {
	out := jobOf(j)
	out.Spec = j.Run.Spec
	return out
}

// allocNow shows an allocation as it is with its node.
func allocNow(snap *state.Snapshot, a *state.Alloc) api.Alloc {
	out := allocOf(a)
	if a.Live() {
		n := snap.Node(a.Node)
		out.Unreachable = n != nil && n.Health == muster.NodeLost
		out.NodeProblem = nodeProblem(n)
	}
	return out
}

// nodeProblem is why what runs on a node may not end well; "" if nothing is known against it.
func nodeProblem(n *state.Node) string {
	switch {
	case n == nil:
		return ""
	case n.Stage == muster.NodeTerminating:
		return "node " + string(n.ID) + " is being destroyed" + because(n.StageReason)
	case n.Health == muster.NodeLost:
		return "node " + string(n.ID) + " is lost" + because(n.HealthReason)
	}
	return ""
}

func allocOf(a *state.Alloc) api.Alloc {
	out := api.Alloc{
		ID: string(a.ID), Namespace: string(a.Run.Key.Namespace), Job: a.Run.Key.Name, JobUID: string(a.UID),
		Version: a.Version, Index: a.Index, Attempt: a.Attempt, Node: string(a.Node),
		Desired: string(a.Desired), Status: string(a.Status), Outcome: string(a.Outcome), Signal: a.Signal, StopCause: a.StopCause,
		Detail: a.Detail, Image: a.Image,
		Placed: a.Placed.Std(), Started: at(a.Started), Ended: at(a.Ended), Output: outputOf(&a.Output),
	}
	if names := a.Run.Names; names != nil {
		out.Cores, out.Ports = a.Grant.Cores, names.Ports
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

// exited reports whether the command ran and ended by itself, so that its exit
// code says something.
func exited(a *state.Alloc) bool {
	switch {
	case a.Live() || a.Signal != "":
		return false
	case a.ExitCode != 0 || a.Outcome == muster.OutcomeSucceeded:
		return true
	case a.Failure == nil:
		return false
	}
	// It ended well, and what should come after it did not.
	return a.Failure.Reason == muster.ReasonOutputMissing || a.Failure.Reason == muster.ReasonOutputNotStored
}

func outputOf(o *state.Output) api.OutputState {
	return api.OutputState{
		State: outputState(o), Why: o.Why, StdoutBytes: o.Stdout.Size, StderrBytes: o.Stderr.Size,
		Dropped: o.Stdout.Start + o.Stderr.Start, Files: len(o.Files),
	}
}

func outputState(o *state.Output) string {
	if o.Stage == state.OutputOpen {
		return "open"
	}
	return string(o.Stage)
}

// memberOf shows a member; m is nil for one without a row.
func memberOf(j *state.Job, index int, m *state.Member) api.Member {
	if m == nil {
		out := api.Member{Index: index, Status: string(muster.MemberWaiting), Reason: j.Parked}
		if j.Stage != muster.JobLive {
			out.Status, out.Reason = string(muster.MemberStopped), j.Reason
		}
		return out
	}
	out := api.Member{
		Index: m.Index, Status: string(m.Status), Attempt: max(m.Attempt-j.AttemptBase, 0),
		RetryAt: at(m.RetryAt), Reason: m.Reason,
	}
	if out.Attempt > 0 {
		out.Alloc = string(m.Alloc())
	}
	return out
}

func resourcesOf(r muster.Resources) api.Resources {
	return api.Resources{CPU: float64(r.CPU) / 1000, Memory: int64(r.Memory), Disk: int64(r.Disk)}
}

func nodeOf(n *state.Node) api.Node {
	reason := n.StageReason
	if n.Health != muster.NodeGood && n.HealthReason != "" && n.Stage != muster.NodeGone {
		reason = n.HealthReason
	}
	if reason == "" && n.Intent != muster.NodeRun {
		reason = n.IntentReason
	}
	boot := n.BootError
	if n.Joined != 0 {
		boot = "" // it came into service after all
	}
	return api.Node{
		ID: string(n.ID), Pool: string(n.Pool), Provider: string(n.Offering.Provider), Offering: string(n.Offering.Name),
		Zone: n.Offering.Zone, Market: string(n.Offering.Market), Price: float64(n.Offering.Price) / 1e6,
		Instance: string(n.Instance), Stage: string(n.Stage), Health: string(n.Health), Intent: string(n.Intent),
		Schedulable: n.Schedulable(), Reason: reason,
		Capacity: resourcesOf(n.Capacity), Used: resourcesOf(n.Used), Allocs: n.LiveAllocs, Taken: string(n.Taken),
		AgentVersion: n.Agent, Attributes: n.Attributes,
		StageSince: at(n.StageSince), IntentReason: n.IntentReason, IntentWho: n.IntentWho, IntentSince: at(n.IntentSince), IntentUntil: at(n.IntentUntil),
		BootError: boot, Sidelined: at(n.SidelinedUntil),
		Launched: n.Launched.Std(), Joined: at(n.Joined), Gone: at(n.Gone),
	}
}

// nodeWhole shows a node with its history.
func nodeWhole(n *state.Node, now muster.Time) api.Node {
	out := nodeOf(n)
	for _, d := range n.Devices() {
		out.Devices = append(out.Devices, d.String())
	}
	for _, k := range n.Warm {
		out.Warm = append(out.Warm, string(k))
	}
	if len(n.Warm) > 0 {
		out.WarmAt = at(n.WarmAt)
	}
	for _, f := range n.Recent(now) {
		out.Failures = append(out.Failures, api.NodeFailure{Time: f.At.Std(), What: f.What})
	}
	out.HistoryLost = n.HistoryLost
	for _, e := range n.History {
		out.History = append(out.History, api.NodeEvent{Time: e.At.Std(), Type: string(e.Verb), Reason: e.Reason, Who: e.Who})
	}
	return out
}
