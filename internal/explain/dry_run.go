package explain

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// maxDryRun bounds the members that a dry run places, and the stops that it lists. Without it, the
// answer for a large job would have an entry for each node of the cluster.
const maxDryRun = 10_000

// DryRun says what a submission would do now: the version it would make, where its members would be
// placed, and which allocations a new version would stop. It applies the fact to a copy of the
// state and asks the packages that decide about jobs. It changes nothing. If the state refuses the
// submission, Refused has the reason and the other fields are empty.
//
// The answer is a forecast, not a promise. The cluster may change before the client submits, and
// other jobs in the queue may take the capacity first.
func DryRun(snap *state.Snapshot, f *state.JobSubmitted, now muster.Time) *api.JobPlan {
	out := &api.JobPlan{Nodes: []api.PlannedNode{}, Ranked: []api.RankedNode{}, Text: []string{}}
	// The clock of this server may lag behind the one that stamped the last entry of the log. A
	// fact must not be older than the state that it is applied to.
	now = max(now, snap.Meta().Time)
	after, v, err := snap.Suppose(f, now)
	if err != nil {
		out.Refused = err.Error()
		return out
	}
	done, ok := v.(*state.Submitted)
	if !ok {
		out.Refused = fmt.Sprintf("the state answered %T", v)
		return out
	}
	out.Version, out.Unchanged = done.Version, done.Unchanged
	job := after.JobByUID(done.UID)
	// The submission alone does not change the members of a service or system job. Their rollout
	// does, so the dry run takes the first step of the rollout as well.
	var next []state.Stop
	if job.Standing != nil {
		after, job, next = firstTurn(after, job, now)
	}
	// There is a change to show only if the job existed and the submission differs from its
	// version.
	if before := snap.JobByUID(done.UID); before != nil && !done.Unchanged {
		out.Change = changeOf(snap, after, job, before.Version, next, now)
	}
	// The scheduler places no member of a parked job, even if a node fits.
	if job.Parked != "" {
		out.Waiting, out.Why = job.Waiting(), job.Parked
		return out
	}
	p := place.Try(after, job, now, maxDryRun)
	out.Nodes, out.Waiting, out.More = plannedOf(p.Choices, maxDryRun), p.Waiting, p.More
	out.Considered, out.Ranked, out.Evictions, out.Text = consideredOf(&p), rankedOf(p.Ranked), evictionsOf(p.Evictions), placementText{&p}.nodes()
	for _, c := range p.Choices {
		out.Placed += c.Members
	}
	for _, v := range p.Evictions {
		for _, id := range v.Allocs {
			out.GiveWay = append(out.GiveWay, string(id))
		}
	}
	if p.Waiting > 0 {
		out.Why = p.Why()
	}
	return out
}

// firstTurn takes the first step of a job's rollout: it sets the number of a system job's members
// and finds which allocations to stop. It returns the state and the job after the number is set,
// and the stops.
func firstTurn(snap *state.Snapshot, j *state.Job, now muster.Time) (*state.Snapshot, *state.Job, []state.Stop) {
	v := roll.Plan(snap, j, now)
	if v.Size != nil {
		if sized, _, err := snap.Suppose(v.Size, now); err == nil {
			snap, j = sized, sized.JobByUID(j.UID)
			// The stops depend on the number of members, so the plan is made again. If the state
			// refuses the number, the stops of the first plan are shown.
			v = roll.Plan(snap, j, now)
		}
	}
	return snap, j, v.Stops
}

// changeOf says which allocations of the version before would be stopped: those that the submission
// itself stops, and then those that the rollout stops first. Stopped counts all of them; Stops
// lists at most maxDryRun.
func changeOf(snap, after *state.Snapshot, j *state.Job, from uint64, next []state.Stop, now muster.Time) *api.JobChange {
	out := &api.JobChange{From: from}
	if j.Standing != nil {
		p := roll.ProgressOf(after, j, now)
		out.AtOnce, out.Members = j.Run.Spec.Update.MaxParallel, p.Wanted-p.Updated-j.Waiting()
	}
	tell := func(a *state.Alloc, why string) {
		if out.Stopped++; len(out.Stops) < maxDryRun {
			out.Stops = append(out.Stops, api.PlannedStop{Allocation: string(a.ID), Member: a.Index, Why: why})
		}
	}
	// The submission itself stops an allocation if the allocation was to run before it and is to
	// stop after it.
	after.JobAllocs(j.UID, 0, func(a *state.Alloc) bool {
		if was := snap.Alloc(a.ID); was != nil && a.Live() && was.Desired == muster.AllocRun && a.Desired == muster.AllocStop {
			tell(a, a.StopCause)
		}
		return true
	})
	for _, st := range next {
		tell(after.Alloc(st.Alloc), st.Why)
	}
	return out
}
