package present

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// Job shows a job without its spec, which may have megabytes. The reason of a live job is that it
// is parked, or else that its rollout failed.
func Job(j *state.Job) api.Job {
	reason := j.Reason
	if reason == "" && j.Stage == muster.JobLive {
		reason = j.Parked
	}
	count, gone := j.Count(), j.Stopped
	// Standing is set for services and system jobs only.
	if st := j.Standing; st != nil && j.Stage == muster.JobLive {
		if reason == "" && st.Rollout == muster.RolloutFailed {
			reason = fmt.Sprintf("the rollout of version %d failed: %s", st.Version, st.Reason)
		}
		if j.Run.System() {
			// A system job counts all members it ever had. Those of nodes that are gone are
			// subtracted: nobody expects them back.
			count, gone = count-gone, 0
		}
	}
	out := api.Job{
		Namespace: string(j.Key.Namespace), Name: j.Key.Name, UID: string(j.UID), Version: j.Version,
		Type: j.Run.Spec.Type, Priority: j.Priority(), Count: count,
		Stage: string(j.Stage), Outcome: string(jobOutcome(j)), Reason: reason,
		Counts: api.JobCounts{
			Waiting: j.Waiting(), Placed: j.Placed - j.Running, Running: j.Running,
			Succeeded: j.Succeeded, Failed: j.Failed, Stopped: gone,
		},
		Submitted: j.Submitted.Std(), Ended: Time(j.Ended),
	}
	out.Status = api.JobStatus(&out)
	return out
}

// jobOutcome is the outcome of a job that has ended. The row of a stopping job has one as well, but
// it may still change and is not shown.
func jobOutcome(j *state.Job) muster.JobOutcome {
	if j.Stage != muster.JobEnded {
		return ""
	}
	return j.Result
}

// JobWithSpec shows a job with its spec. The spec is shared with the row and with every other
// reader: nobody may change it.
func JobWithSpec(j *state.Job) api.Job {
	out := Job(j)
	out.Spec = j.Run.Spec
	return out
}

// Member shows a member. A nil m is a member without a row. It was never placed: it waits, or it
// was stopped with its job. Attempts count from the last submission, so a job that runs again
// starts at 1.
func Member(j *state.Job, index int, m *state.Member) api.Member {
	if m == nil {
		out := api.Member{Index: index, Status: string(muster.MemberWaiting), Reason: j.Parked}
		if j.Stage != muster.JobLive || j.Env == nil && j.Standing == nil && index < j.NextIndex {
			// The second is one that a retry of its job left out.
			out.Status, out.Reason = string(muster.MemberStopped), j.Reason
		}
		return out
	}
	out := api.Member{
		Index: m.Index, Status: string(m.Status), Attempt: max(m.Attempt-j.AttemptBase, 0),
		RetryAt: Time(m.RetryAt), Reason: m.Reason,
	}
	// Attempt 0 means that this version of the job has not placed the member yet. The allocation in
	// the row is then of an earlier version.
	if out.Attempt > 0 {
		out.Alloc = string(m.Alloc())
	}
	return out
}
