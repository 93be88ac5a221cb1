package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/state"
)

// maxPreview is how many members a preview places, and how many stops it tells.
const maxPreview = 10_000

// planning bounds how many look at once at where members would go: with thousands of nodes and members that is work for a
// processor, and whoever asks for it again and again shall not keep those busy that place and answer.
type planning chan struct{}

func newPlanning() planning { return make(planning, 1) }

func (p planning) begin(ctx context.Context) error {
	select {
	case p <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p planning) end() { <-p }

// planOf is what a submission would do now: the fact is supposed, and what decides about jobs is asked of
// the state that would follow. Nothing is changed.
func planOf(s *api.JobSubmission, snap *state.Snapshot, now muster.Time) *api.JobPlan {
	out := &api.JobPlan{Nodes: []api.PlannedNode{}, Ranked: []api.RankedNode{}, Text: []string{}}
	now = max(now, snap.Meta().Time)
	f := &state.JobSubmitted{
		Key: muster.JobKey{Namespace: muster.Namespace(s.Spec.Namespace), Name: s.Spec.Name},
		UID: newUID(time.Now()), Spec: &s.Spec, IfVersion: s.IfVersion, Replace: s.Replace,
	}
	if f.Key.Name == "" {
		f.Key.Name = "job-" + random(5)
	}
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
	var next []state.Stop
	if job.Standing != nil {
		after, job, next = firstTurn(after, job, now)
	}
	if before := snap.JobByUID(done.UID); before != nil && !done.Unchanged {
		out.Change = changeOf(snap, after, job, before.Version, next, now)
	}
	if job.Parked != "" {
		out.Waiting, out.Why = job.Waiting(), job.Parked
		return out
	}
	p := place.Try(after, job, now, maxPreview)
	out.Nodes, out.Waiting, out.More = plannedOf(p.Choices, maxPreview), p.Waiting, p.More
	out.Considered, out.Ranked, out.Evictions, out.Text = consideredOf(&p), rankedOf(p.Ranked), evictionsOf(p.Evictions), p.Nodes()
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

// firstTurn is what the rollout of a job would do first: how many members a system job is to have, and who ends.
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

// changeOf is what would become of the allocations that a job has.
func changeOf(snap, after *state.Snapshot, j *state.Job, from uint64, next []state.Stop, now muster.Time) *api.JobChange {
	out := &api.JobChange{From: from}
	if j.Standing != nil {
		p := roll.ProgressOf(after, j, now)
		out.AtOnce, out.Members = j.Run.Spec.Update.MaxParallel, p.Wanted-p.Updated-j.Waiting()
	}
	tell := func(a *state.Alloc, why string) {
		if out.Stopped++; len(out.Stops) < maxPreview {
			out.Stops = append(out.Stops, api.PlannedStop{Allocation: string(a.ID), Member: a.Index, Why: why})
		}
	}
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
