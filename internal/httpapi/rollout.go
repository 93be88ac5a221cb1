package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster/api"
)

func (a jobHandlers) rollouts() {
	history := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/history", "job-history", tagJobs, "List the versions of a job",
		"The newest first. Of a service or system job up to ten before the present one are remembered, of a batch job none.")
	history.Errors = append(history.Errors, http.StatusNotFound)
	register(a.API, history, a.jobHistory)

	scale := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/scale", "scale-job", tagJobs, "Give a service more or fewer members",
		"This makes a new version, but restarts no member. Members beyond the count are stopped.")
	scale.DefaultStatus = http.StatusCreated
	scale.Errors = append(scale.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobScale](a.API, &scale, true)
	register(a.API, scale, a.scaleJob)

	revert := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/revert", "revert-job", tagJobs, "Go back to an earlier version of a service",
		"Its spec is submitted again as a new version, with the count and the priority that the job has now. Members that still run that version are left alone.")
	revert.DefaultStatus = http.StatusCreated
	revert.Errors = append(revert.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobRevert](a.API, &revert, false)
	register(a.API, revert, a.revertJob)
}

type jobHistoryOut struct{ Body api.JobHistory }

func (a jobHandlers) jobHistory(_ context.Context, in *JobPath) (*jobHistoryOut, error) {
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

func (a jobHandlers) scaleJob(ctx context.Context, in *AboutJob) (*submitOut, error) {
	var s api.JobScale
	j, err := in.read(a, &s)
	if err != nil {
		return nil, err
	}
	return submitted(a.cfg.Submit.Scale(ctx, j, &s))
}

func (a jobHandlers) revertJob(ctx context.Context, in *AboutJob) (*submitOut, error) {
	var r api.JobRevert
	j, err := in.read(a, &r)
	if err != nil {
		return nil, err
	}
	return submitted(a.cfg.Submit.Revert(ctx, j, &r))
}
