package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) rolloutRoutes() {
	history := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/history", "job-history", tagJobs, "List the versions of a job",
		"The newest first. Of a service or system job up to ten before the present one are remembered, of a batch job none.")
	history.Errors = append(history.Errors, http.StatusNotFound)
	register(a, history, a.jobHistory)

	scale := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/scale", "scale-job", tagJobs, "Give a service more or fewer members",
		"That is a new version, which starts no member anew. Those beyond the count are told to stop.")
	scale.DefaultStatus = http.StatusCreated
	scale.Errors = append(scale.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobScale](a, &scale, true)
	register(a, scale, a.scaleJob)

	revert := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/revert", "revert-job", tagJobs, "Go back to an earlier version of a service",
		"Its spec is submitted again as a new version, with the count and the priority that the job has now. Members that still run that version are left alone.")
	revert.DefaultStatus = http.StatusCreated
	revert.Errors = append(revert.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobRevert](a, &revert, false)
	register(a, revert, a.revertJob)
}

// rolloutOf tells how far a standing job is; nil if it is none.
func rolloutOf(snap *state.Snapshot, j *state.Job, now muster.Time) *api.Rollout {
	st := j.Standing
	if st == nil {
		return nil
	}
	p := roll.ProgressOf(snap, j, max(now, snap.Meta().Time))
	return &api.Rollout{
		Stage: string(st.Rollout), Version: st.Version, Began: st.Began.Std(), Ended: present.Time(st.Ended), Reason: st.Reason,
		Stable: st.Stable, Reverts: st.Reverts, Note: st.Note,
		Wanted: p.Wanted, Updated: p.Updated, Healthy: p.Healthy, Available: p.Available,
	}
}

type jobHistoryOut struct{ Body api.JobHistory }

func (a *API) jobHistory(_ context.Context, in *JobPath) (*jobHistoryOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.find(snap)
	if err != nil {
		return nil, err
	}
	now := api.JobVersion{Version: j.Version, Submitted: j.Submitted.Std(), Current: true, Spec: j.Run.Spec}
	out := &jobHistoryOut{api.JobHistory{Index: snap.Index()}}
	if st := j.Standing; st != nil {
		now.Rollout, now.Reason, now.Note = string(st.Rollout), st.Reason, st.Note
		out.Body.Versions = append(out.Body.Versions, now)
		for i := len(st.Past) - 1; i >= 0; i-- {
			p := &st.Past[i]
			out.Body.Versions = append(out.Body.Versions, api.JobVersion{Version: p.Version, Submitted: p.Submitted.Std(),
				Rollout: string(p.Rollout), Reason: p.Reason, Note: p.Note, Spec: p.Spec})
		}
		return out, nil
	}
	out.Body.Versions = []api.JobVersion{now}
	return out, nil
}

// service finds a job that is one, and lives.
func (a *API) service(in *JobPath, what string, system bool) (*state.Job, error) {
	j, err := in.find(a.cfg.State.Latest())
	switch {
	case err != nil:
		return nil, err
	case j.Standing == nil:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is of type %s; only a service can be %s", j.Key, j.Run.Spec.Type, what)
	case j.Run.System() && !system:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is of type system: it has a member on each node that fits, and cannot be %s", j.Key, what)
	case j.Stage != muster.JobLive:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is %s and cannot be %s; submit it again", j.Key, j.Stage, what)
	}
	return j, nil
}

// resubmit has a spec that was accepted before as the next version of its job. The fact holds to the version that the spec was
// read from; what the client demands has to be that one.
func (a *API) resubmit(ctx context.Context, f *state.JobSubmitted, demanded *uint64) (*submitOut, error) {
	if demanded != nil && f.IfVersion != nil && *demanded != *f.IfVersion {
		return nil, muster.Faultf(muster.FaultConflict, "job %s is at version %d, not %d", f.Key, *f.IfVersion, *demanded)
	}
	if problems := a.policy(f.Spec.Namespace).Problems(f.Spec); len(problems) > 0 {
		return nil, problem.Wrong(problems)
	}
	_, done, err := state.Propose(ctx, a.cfg.Proposer, f)
	if err != nil {
		return nil, err
	}
	return submitted(done), nil
}

type scaleIn struct {
	JobPath
	RequestBody
}

func (a *API) scaleJob(ctx context.Context, in *scaleIn) (*submitOut, error) {
	var s api.JobScale
	if p := door.Decode(in.JSON, &s); p != nil {
		return nil, p
	}
	if s.Count < 1 || s.Count > api.MaxCount {
		return nil, problem.Invalid("body.count", "is %d; a service has 1 to %d members; stop it to have none", s.Count, api.MaxCount)
	}
	j, err := a.service(&in.JobPath, "scaled", false)
	if err != nil {
		return nil, err
	}
	spec := j.Run.Spec.Clone()
	spec.Count = s.Count
	version := j.Version
	return a.resubmit(ctx, &state.JobSubmitted{Key: j.Key, UID: j.UID, Spec: spec, IfVersion: &version,
		Note: cmp.Or(s.Reason, fmt.Sprintf("scaled from %d to %d", j.Count(), s.Count))}, s.IfVersion)
}

type revertIn struct {
	JobPath
	RequestBody
}

func (a *API) revertJob(ctx context.Context, in *revertIn) (*submitOut, error) {
	var r api.JobRevert
	if len(in.JSON) > 0 {
		if p := door.Decode(in.JSON, &r); p != nil {
			return nil, p
		}
	}
	j, err := a.service(&in.JobPath, "reverted", true)
	if err != nil {
		return nil, err
	}
	var to *state.PastVersion
	if r.Version == 0 {
		if to = roll.Target(j); to == nil {
			return nil, muster.Faultf(muster.FaultConflict, "job %s: no earlier version that runs otherwise was healthy; name one, as `muster job history %s` lists them", j.Key, j.Key)
		}
	}
	known := ""
	for i := range j.Standing.Past {
		p := &j.Standing.Past[i]
		known += fmt.Sprintf(" %d", p.Version)
		if p.Version == r.Version {
			to = p
		}
	}
	switch {
	case r.Version == j.Version:
		return nil, muster.Faultf(muster.FaultConflict, "job %s is at version %d", j.Key, j.Version)
	case to == nil && known == "":
		return nil, problem.Invalid("body.version", "is %d; no earlier version of job %s is remembered", r.Version, j.Key)
	case to == nil:
		return nil, problem.Invalid("body.version", "is %d; of job %s are remembered:%s", r.Version, j.Key, known)
	}
	return a.resubmit(ctx, roll.Revert(j, to, cmp.Or(r.Reason, fmt.Sprintf("back to version %d", to.Version))), r.IfVersion)
}
