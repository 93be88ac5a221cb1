package explain

import (
	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
	"strings"
)

// words names the job or environment at the beginning of a sentence.
func (e *jobRecord) words() string {
	if name, is := e.job.Key.Environment(); is {
		return "Environment " + muster.JobKey{Namespace: e.job.Key.Namespace, Name: name}.String()
	}
	return "Job " + e.job.Key.String()
}

// stock says how many runners an environment has in each state, and why the last runner that failed
// to start did. It says nothing of other jobs.
func (e *jobRecord) stock() {
	j := e.job
	if j.Env == nil {
		return
	}
	c := j.Runners()
	e.say("%s wants %s warm: %s. %d warm, %d starting, %d claimed.", e.words(), muster.Counted(j.Env.Stock, "runner"), j.Env.Why, c.Warm, c.Starting, c.Claimed)
	if j.Env.Failures > 0 && j.Env.Failure != "" {
		e.say("The last runner that was started failed: %s. The next one is started in %s.", j.Env.Failure, e.in(j.Env.StartAt()))
	}
}

// jobRecord collects the explanation of one job. Each method appends to out on one subject; the
// order of the calls is the order of the sentences. One request owns a jobRecord, so it needs no
// lock.
type jobRecord struct {
	snap      *state.Snapshot
	job       *state.Job
	shape     *fit.Shape
	decisions *size.Decisions
	blocks    []size.Block
	rates     func(muster.ProviderName) []api.CallRate
	now       muster.Time
	paused    string // why nothing is placed at all; "" if the scheduler runs
	unstored  string // why members whose command has ended are not done; "" if there are none
	out       api.JobExplanation
}

// say appends a sentence.
func (e *jobRecord) say(format string, args ...any) {
	sentencef(&e.out.Text, format, args...)
}

// maxAtRisk bounds the failing nodes that an explanation names. When a zone fails, hundreds of
// nodes have the same problem.
const maxAtRisk = 5

// atRisk says how many of the job's live allocations are on nodes that are lost or being destroyed,
// node by node.
func (e *jobRecord) atRisk() {
	nodes := 0
	e.snap.LiveNodes(func(n *state.Node) bool {
		why := present.NodeProblem(n)
		if why == "" || n.LiveAllocs == 0 {
			return true
		}
		k := 0
		e.snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			if a.UID == e.job.UID {
				k++
			}
			return true
		})
		if k == 0 {
			return true
		}
		if nodes++; nodes > maxAtRisk {
			e.say("More of its members are on other nodes that are lost or being destroyed.")
			return false
		}
		e.say("%d of its members may be lost: %s.", k, why)
		return true
	})
}

// pause says that the scheduler is paused. The sentence precedes those about placement, because
// they hold only once the pause ends.
func (e *jobRecord) pause() {
	if e.paused != "" {
		e.say("Nothing is placed now: %s.", e.paused)
	}
}

// storing says that some members are running although their command has ended.
func (e *jobRecord) storing() {
	if e.unstored != "" {
		e.say("%s.", strings.ToUpper(e.unstored[:1])+e.unstored[1:])
	}
}

// explain explains the job. It stops at the first reason that alone keeps members waiting (the job
// has ended, is parked or has reached a limit): any further reason would send the reader after the
// wrong cause.
func (e *jobRecord) explain() {
	j := e.job
	c := e.out.Counts
	switch {
	case j.Stage == muster.JobEnded:
		e.say("%s has ended: %s%s.", e.words(), j.Result, muster.Because(j.Reason))
		return
	case j.Stage == muster.JobStopping:
		e.say("%s is stopping%s; %d of its allocations have not ended.", e.words(), muster.Because(j.Reason), j.LiveAllocs)
		return
	case j.Waiting() == 0 && j.Env != nil:
		// An environment without waiting runners has what it wants. Where another runner would go
		// is of no interest.
		e.stock()
		return
	case j.Waiting() == 0:
		// Past placement decisions are not recorded, so the explanation of a running job compares
		// the nodes as they are now. A member of a system job belongs to its node: it has no
		// alternative to compare.
		e.say("No member of job %s waits: of %s, %d run, %d are placed, %d succeeded, %d failed.", j.Key, muster.Counted(present.Job(j).Count, "member"), c.Running, c.Placed, c.Succeeded, c.Failed)
		e.atRisk()
		e.storing()
		e.rollout()
		if j.LiveAllocs > 0 && !j.Run.System() {
			e.say("The following shows where another member would be placed now; past placement decisions are not recorded.")
			e.placing(place.Explain(j, e.snap, e.now))
		}
		return
	}
	e.stock()
	e.say("%s has priority %d. Of %s, %d wait, %d run, %d succeeded, %d failed. A member needs %s.",
		e.words(), j.Priority(), muster.Counted(present.Job(j).Count, "member"), c.Waiting, c.Running+c.Placed, c.Succeeded, c.Failed, j.Run.Ask)
	e.atRisk()
	e.storing()
	e.rollout()
	e.pause()
	if e.queue() {
		return
	}
	if e.limits() {
		return
	}
	// From here on the explanation is about nodes: those that exist first, then those that could be
	// launched.
	e.placing(place.Explain(j, e.snap, e.now))
	// A member fits and still waits: the scheduler has not yet handled its evaluation. While the
	// scheduler is paused this would be a false promise.
	if e.out.Considered.Fitting > 0 && e.paused == "" {
		e.say("A member may be placed at any moment.")
	}
	if j.Run.System() {
		e.say("A system job has one member on each node that fits; no nodes are launched for it.")
		return
	}
	e.offerings()
	e.coming()
	e.rated()
	e.fleet()
	e.expect()
}

// rollout says how far the rollout of a service or system job is, unless it is done.
func (e *jobRecord) rollout() {
	st := e.job.Standing
	if st == nil || st.Rollout == muster.RolloutDone {
		return
	}
	e.say("The rollout of version %d (%s): %s%s.", st.Version, st.Rollout, roll.ProgressOf(e.snap, e.job, e.now), muster.Because(st.Reason))
}

// queue says what is served before the job's members: a reservation, parking, a retry, other jobs.
// It reports whether that alone keeps them waiting.
func (e *jobRecord) queue() (done bool) {
	j := e.job
	if j.Reserved != "" {
		e.say("It is starved: capacity that becomes free on node %s is reserved for it.", j.Reserved)
	}
	// The scheduler skips a parked job, whatever its place in the queue. The other reasons do not
	// matter until it is unparked.
	if j.Parked != "" {
		e.out.Parked, e.out.ParkedUntil = j.Parked, present.Time(j.ParkedUntil)
		until := "until it is submitted again"
		if j.ParkedUntil != 0 {
			until = "for another " + e.in(j.ParkedUntil)
		}
		e.say("The scheduler has parked it %s: %s.", until, j.Parked)
		return true
	}
	// next is the member that is retried first. Members that were never placed do not wait for it.
	var next *state.Member
	e.snap.Retries(j.UID).Due(1<<62, func(m *state.Member) bool { next = m; return false })
	if next != nil {
		e.out.LastFailure = next.Reason
		if next.RetryAt > e.now {
			e.out.NextAttempt = present.Time(next.RetryAt)
			e.say("Member %d has failed%s; it is retried in %s.", next.Index, muster.Because(next.Reason), e.in(next.RetryAt))
			if j.Untried() == 0 {
				return true
			}
		} else {
			e.say("Member %d has failed%s, and waits for another attempt.", next.Index, muster.Because(next.Reason))
		}
	}
	// Only members that were never placed count: a member that waits for its retry delays no other.
	ahead := &api.QueueAhead{}
	e.snap.Unsettled(func(o *state.Job) bool {
		if o.UID != j.UID && place.Order(o, j) < 0 {
			ahead.Jobs++
			ahead.Members += o.Untried()
		}
		return true
	})
	e.out.Ahead = ahead
	if ahead.Jobs > 0 {
		e.say("Served before it: %s, with %s.", muster.Counted(ahead.Jobs, "waiting job"), muster.Counted(ahead.Members, "member"))
	} else {
		e.say("It is the first in the queue.")
	}
	return false
}

// limits says which limit of a namespace the job has reached. It reports whether the limit keeps
// every waiting member from being placed. If some may still start, the explanation goes on to the
// nodes.
func (e *jobRecord) limits() bool {
	// Both the limits of the namespace and those of all namespaces together apply. bound is the
	// stricter one.
	n, bound := fit.NewAllowance(e.snap).Of(e.job.Key.Namespace, e.job.Run.Ask, e.job.Waiting())
	if bound.Namespace == "" {
		return false
	}
	e.out.Limit = bound.Why
	if n > 0 {
		e.say("Of the members that wait, %d may start before the limit is reached: %s.", n, bound.Why)
		return false
	}
	e.say("It waits for a limit, independent of free capacity: %s. Work that ends frees some of it; `muster namespace set %s` changes it.", bound.Why, bound.Namespace)
	return true
}

// in returns the time from now until t, rounded for sentences.
func (e *jobRecord) in(t muster.Time) string { return shortly(t.Sub(e.now)) }
