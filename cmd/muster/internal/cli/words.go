package cli

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func EnvironmentName(namespace, name string) string {
	return muster.JobKey{Namespace: muster.Namespace(namespace), Name: name}.String()
}

// AllocReason says why an allocation did not succeed.
func AllocReason(al *api.Alloc) string {
	switch {
	case al.Failure != nil && al.Failure.Message != "":
		return al.Failure.Message
	case al.Outcome == string(muster.OutcomeStopped) && al.StopCause != "":
		return al.StopCause
	case al.Signal != "":
		return "ended by " + al.Signal
	case al.ExitCode != nil:
		return fmt.Sprintf("exit code %d", *al.ExitCode)
	}
	return al.Outcome
}

// JobKeyOf is the key of a job that the API has shown.
func JobKeyOf(namespace, name string) muster.JobKey {
	return muster.JobKey{Namespace: muster.Namespace(namespace), Name: name}
}

// JobStatus is how a job stands, in one word.
func JobStatus(j *api.Job) string {
	if j.Stage == string(muster.JobEnded) && j.Outcome != "" {
		return j.Outcome
	}
	if j.Stage == string(muster.JobLive) && j.Counts.Running > 0 {
		return "running"
	}
	if j.Stage == string(muster.JobLive) {
		return "waiting"
	}
	return j.Stage
}

// AllocStatus is an allocation's status for people: of one whose node cannot be reached nobody knows.
func AllocStatus(al *api.Alloc) string {
	if al.Unreachable {
		return "unreachable"
	}
	return al.Status
}
