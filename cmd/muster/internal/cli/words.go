package cli

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// EnvironmentName writes an environment's name as users do: without the namespace if that is the
// default.
func EnvironmentName(namespace, name string) string {
	return muster.JobKey{Namespace: muster.Namespace(namespace), Name: name}.String()
}

// AllocReason says why an allocation did not succeed: the first of the server's message, who
// stopped it, the signal, and the exit code that is known.
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

// JobKeyOf is the key of a job that the API has shown. Unlike App.JobKey it checks nothing: the
// server has.
func JobKeyOf(namespace, name string) muster.JobKey {
	return muster.JobKey{Namespace: muster.Namespace(namespace), Name: name}
}

// AllocStatus is an allocation's status for people. Of one whose node cannot be reached the last
// known status is no answer: nobody knows.
func AllocStatus(al *api.Alloc) string {
	if al.Unreachable {
		return "unreachable"
	}
	return al.Status
}
