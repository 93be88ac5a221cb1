package present

import (
	"fmt"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

// claimText is the sentence of a claim's event. The sentence of a claim that has ended names the
// state in which it ended.
func claimText(verb state.Verb, c *state.Claim) string {
	what := fmt.Sprintf("claim %s of runner %s", c.ID, c.Runner)
	switch verb {
	case state.VerbClaimMade:
		return what + " was made"
	case state.VerbClaimExtended:
		return what + " was extended"
	}
	return what + " was " + string(c.State) + muster.Because(c.Reason)
}

// environmentText is the sentence of an event that only environments have. It is empty for events
// that environments share with jobs.
func environmentText(verb state.Verb, j *state.Job) string {
	name, _ := j.Key.Environment()
	what := "environment " + muster.JobKey{Namespace: j.Key.Namespace, Name: name}.String()
	switch verb {
	case state.VerbEnvironmentSet:
		return fmt.Sprintf("%s was set, version %d", what, j.Version)
	case state.VerbEnvironmentDeleted:
		return what + " was deleted"
	case state.VerbEnvironmentAlerted:
		return fmt.Sprintf("%s has %d warm of %d: too few for too long", what, j.Env.Warm, j.Env.Stock)
	case state.VerbEnvironmentRecovered:
		return fmt.Sprintf("%s has %d warm of %d: enough again", what, j.Env.Warm, j.Env.Stock)
	case state.VerbEnvironmentWants:
		return fmt.Sprintf("%s wants %d warm", what, j.Env.Stock) + muster.Because(j.Env.Why)
	case state.VerbJobEnded:
		return what + " is gone"
	}
	return ""
}

// jobText is the sentence of a job's event. An environment is a job in the state, so its events
// come here too.
func jobText(verb state.Verb, j *state.Job) string {
	if j.Env != nil {
		if s := environmentText(verb, j); s != "" {
			return s
		}
	}
	what := "job " + j.Key.String()
	switch verb {
	case state.VerbJobSubmitted:
		return fmt.Sprintf("%s was submitted with %s", what, muster.Counted(j.Count(), "member"))
	case state.VerbJobReplaced:
		return fmt.Sprintf("%s was submitted again as version %d, with %s", what, j.Version, muster.Counted(j.Count(), "member"))
	case state.VerbJobRetried:
		return fmt.Sprintf("%s is retried: of %s %d wait and %d succeeded before", what, muster.Counted(j.Count(), "member"), j.Waiting(), j.Succeeded)
	case state.VerbJobStopping:
		return what + " is stopping" + muster.Because(j.Reason)
	case state.VerbJobEnded:
		return what + " " + string(j.Result) + muster.Because(j.Reason)
	case state.VerbJobUpdated:
		return fmt.Sprintf("%s is at version %d%s", what, j.Version, muster.Because(j.Standing.Note))
	case "job.rollout-done":
		return fmt.Sprintf("%s runs version %d, and each member of it is healthy", what, j.Version)
	case "job.rollout-failed":
		return fmt.Sprintf("the rollout of version %d of %s failed%s", j.Version, what, muster.Because(j.Standing.Reason))
	case state.VerbJobSized:
		return fmt.Sprintf("%s wants %s, one for each node that fits", what, muster.Counted(j.Waiting()+j.Placed, "member"))
	case state.VerbJobParked:
		return what + " waits" + muster.Because(j.Parked)
	case state.VerbJobUnparked:
		return what + " is re-evaluated"
	case state.VerbJobReserved:
		return fmt.Sprintf("%s was starved: capacity is reserved for it on node %s", what, j.Reserved)
	case state.VerbJobReleased:
		return what + " has no capacity reserved for it any more"
	case state.VerbJobOutputPruned:
		return "the stored output of " + what + " was deleted to keep the quota"
	case state.VerbJobPurged:
		return what + " was forgotten"
	}
	// A verb without a sentence of its own. The event still names what changed.
	return what + " changed"
}

// allocText is the sentence of an allocation's event. It names a runner by its id, because that is
// how clients use it, and any other allocation by its member and attempt.
func allocText(verb state.Verb, al *state.Alloc) string {
	what := fmt.Sprintf("member %d of job %s, attempt %d,", al.Index, al.Run.Key, al.Attempt)
	if name, is := al.Run.Key.Environment(); is {
		what = fmt.Sprintf("runner %s of environment %s", al.ID, muster.JobKey{Namespace: al.Run.Key.Namespace, Name: name})
	}
	switch verb {
	case state.VerbAllocClaimed:
		return what + " was claimed"
	case state.VerbAllocPlaced:
		return fmt.Sprintf("%s was placed on node %s", what, al.Node)
	case state.VerbAllocStarting:
		if al.Detail != "" {
			return fmt.Sprintf("%s is starting on node %s: %s", what, al.Node, al.Detail)
		}
		return fmt.Sprintf("%s is starting on node %s", what, al.Node)
	case state.VerbAllocRunning:
		return fmt.Sprintf("%s is running on node %s", what, al.Node)
	case state.VerbAllocStopping:
		return what + " is stopping" + muster.Because(al.StopCause)
	// The failure says more than the reason of the stop, if the row has both.
	case state.VerbAllocEnded:
		how := map[muster.Outcome]string{
			muster.OutcomeSucceeded: "succeeded", muster.OutcomeFailed: "failed",
			muster.OutcomeStopped: "was stopped", muster.OutcomeLost: "was lost",
		}[al.Outcome]
		why := al.StopCause
		if al.Failure != nil {
			why = al.Failure.Message
		}
		return what + " " + how + muster.Because(why)
	case state.VerbAllocOutput:
		if al.Output.Stage == state.OutputComplete {
			return "the output of " + strings.TrimSuffix(what, ",") + " is stored"
		}
		return "the output of " + strings.TrimSuffix(what, ",") + " is " + OutputStage(&al.Output) + muster.Because(al.Output.Why)
	case state.VerbAllocPurged:
		return what + " was forgotten"
	}
	return what + " changed"
}

// nodeText is the sentence of a node's event. The verbs for changes of health and intent end in the
// new value, so the sentence takes the value from the verb.
func nodeText(verb state.Verb, n *state.Node) string {
	what := "node " + string(n.ID)
	switch verb {
	case state.VerbNodeLaunching:
		return fmt.Sprintf("%s is launching in pool %s, offering %s", what, n.Pool, n.Offering.Name) + muster.Because(n.StageReason)
	case state.VerbNodeBooting:
		return fmt.Sprintf("%s is booting, instance %s", what, n.Instance)
	case state.VerbNodeAdopted:
		return what + " was adopted" + muster.Because(n.StageReason)
	case state.VerbNodeServing:
		return what + " is serving"
	case state.VerbNodeRejoined:
		return what + " answers again after a restart of its agent"
	case state.VerbNodeKept:
		return what + " serves again" + muster.Because(n.StageReason)
	case state.VerbNodeDraining, state.VerbNodeStopped, state.VerbNodeStarting, state.VerbNodeTerminating, state.VerbNodeGone:
		return what + " is " + string(n.Stage) + By(n.StageWho) + muster.Because(n.StageReason)
	case state.VerbNodeHealthReason:
		return what + " is still " + string(n.Health) + muster.Because(n.HealthReason)
	case state.VerbNodeEvicted:
		return "what still runs on " + what + " is stopped: the deadline of its drain has passed" + muster.Because(n.IntentReason)
	case state.VerbNodePurged:
		return what + " was forgotten"
	case state.VerbNodeReserved:
		return what + " reserves the capacity that becomes free for a starved job"
	case state.VerbNodeReleased:
		return what + ": reservation released"
	case state.VerbNodePlansRefused:
		return fmt.Sprintf("plans for %s were refused %s", what, muster.Counted(n.PlansRefused.Count, "time")) + muster.Because(n.PlansRefused.Reason)
	}
	if intent, ok := strings.CutPrefix(string(verb), "node.intent-"); ok {
		return what + " is now to " + intent + By(n.IntentWho) + muster.Because(n.IntentReason)
	}
	return what + " is " + strings.TrimPrefix(string(verb), "node.") + muster.Because(n.HealthReason)
}

// breakerText is the sentence of an event of a pool's breaker. A suspect pool has not tripped: its
// nodes fail too often to be quarantined one by one.
func breakerText(verb state.Verb, b *state.Breaker) string {
	what := "the breaker of pool " + string(b.Pool)
	switch verb {
	case state.VerbPoolSuspect:
		return "pool " + string(b.Pool) + " is suspect: more of its nodes fail than may be quarantined" + muster.Because(b.SuspectWhy)
	case state.VerbPoolResumed:
		return "pool " + string(b.Pool) + " was resumed" + By(b.Who)
	}
	return what + " has tripped" + muster.Because(b.Reason) + "; nothing is destroyed for that reason until the pool is resumed"
}

// limitsText is the sentence of a change of a namespace's limits. The namespace * stands for all
// namespaces together.
func limitsText(l *state.NamespaceLimits) string {
	what := "the limits of namespace " + string(l.Name)
	if l.Name == muster.AllNamespaces {
		what = "the limits of all namespaces together"
	}
	if l.Empty() {
		return what + " were lifted" + By(l.Who) + muster.Because(l.Reason)
	}
	return what + " were set" + By(l.Who) + muster.Because(l.Reason)
}

// imageText is the sentence of a change of the images that were loaded on the server.
func imageText(verb state.Verb, im *state.LoadedImage) string {
	if verb == state.VerbImageRemoved {
		return "image " + ImageName(im.Name) + " was removed from the server"
	}
	return "image " + ImageName(im.Name) + " was loaded on the server: " + im.Digest
}
