package explain

import (
	"fmt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// maxDryRun bounds the members that a dry run places, and the stops that it lists.
const maxDryRun = 10_000

// DryRun says what a submission would do now: the version it would make, where its members would be placed, and which
// allocations a new version would stop. It applies the fact to a copy of the state and asks the packages that decide about
// jobs; nothing is changed. A submission that the state refuses has the reason in Refused.
func DryRun(snap *state.Snapshot, f *state.JobSubmitted, now muster.Time) *api.JobPlan {
	out := &api.JobPlan{Nodes: []api.PlannedNode{}, Ranked: []api.RankedNode{}, Text: []string{}}
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
	// A service or system job is changed by its rollout, which the submission alone does not start.
	var next []state.Stop
	if job.Standing != nil {
		after, job, next = firstTurn(after, job, now)
	}
	// The change is only of a job that was there, and is otherwise than before.
	if before := snap.JobByUID(done.UID); before != nil && !done.Unchanged {
		out.Change = changeOf(snap, after, job, before.Version, next, now)
	}
	// Nothing is placed of a parked job, even where a node would fit.
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

// firstTurn is what the rollout of a job would do first: set the number of a system job's members, and stop some. It returns
// the state after the first.
func firstTurn(snap *state.Snapshot, j *state.Job, now muster.Time) (*state.Snapshot, *state.Job, []state.Stop) {
	v := roll.Plan(snap, j, now)
	if v.Size != nil {
		if sized, _, err := snap.Suppose(v.Size, now); err == nil {
			snap, j = sized, sized.JobByUID(j.UID)
			v = roll.Plan(snap, j, now)
		}
	}
	return snap, j, v.Stops
}

// changeOf is which allocations of the version before would be stopped: at once by the submission itself, and next by the
// rollout.
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
	// What the submission itself tells to stop: the allocations that run before it and stop after it.
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
