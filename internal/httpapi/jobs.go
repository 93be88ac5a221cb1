package httpapi

import (
	"context"
	"math"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/httpapi/schema"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// jobHandlers handle what is below /v1/jobs.
type jobHandlers struct{ *API }

func (a jobHandlers) routes() {
	submit := operation(http.MethodPost, "/v1/jobs", "submit-job", tagJobs, "Submit a job",
		"Makes a job, or a new version of one that has ended. The same spec again changes nothing. 201 says that something new runs, 200 that nothing was done.")
	submit.DefaultStatus = http.StatusCreated
	submit.Responses = map[string]*huma.Response{"200": {
		Description: "Nothing was done: the job is there with the same spec, or the request was repeated.",
		Content:     map[string]*huma.MediaType{"application/json": {Schema: a.schema(reflect.TypeFor[api.JobSubmitted]())}},
	}}
	submit.Errors = append(submit.Errors, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobSubmission](a.API, &submit, true)
	register(a.API, submit, a.submitJob)

	validate := operation(http.MethodPost, "/v1/jobs/validate", "validate-job", tagJobs, "Check a job without submitting it",
		"Says what is wrong with the job, what it is with its defaults, and whether a member fits anywhere. It does not check whether its inputs were uploaded.")
	jsonBody[api.JobSubmission](a.API, &validate, true)
	register(a.API, validate, a.validateJob)

	register(a.API, operation(http.MethodGet, "/v1/jobs", "list-jobs", tagJobs, "List jobs", "By namespace and name, or the newest first."), a.listJobs)

	one := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}", "get-job", tagJobs, "Show a job", "With its spec.")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, a.getJob)

	stop := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/stop", "stop-job", tagJobs, "Stop a job",
		"No member is placed again, and running ones are stopped. Stopping a job that is stopping or has ended changes nothing.")
	stop.Errors = append(stop.Errors, http.StatusNotFound, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobStop](a.API, &stop, false)
	register(a.API, stop, a.stopJob)

	retry := operation(http.MethodPost, "/v1/jobs/{namespace}/{name}/retry", "retry-job", tagJobs, "Retry members of a batch job that did not succeed",
		"They wait again in the same version, each with all attempts of the restart policy. Members that succeeded keep their outputs; those that wait or run are left alone. A job that has ended lives again, and queues behind what was submitted before the retry.")
	retry.Errors = append(retry.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.JobRetry](a.API, &retry, false)
	register(a.API, retry, a.retryJob)

	members := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/members", "list-members", tagJobs, "List the members of a job", "By index.")
	members.Errors = append(members.Errors, http.StatusNotFound)
	register(a.API, members, a.listMembers)

	allocs := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/allocations", "list-job-allocs", tagJobs, "List the allocations of a job", "By index and attempt, of all versions.")
	allocs.Errors = append(allocs.Errors, http.StatusNotFound)
	register(a.API, allocs, a.listJobAllocs)
	a.rollouts()
}

// JobPath names a job in the path. A name is unique among the jobs that the state remembers, so a
// job that has ended still has it.
type JobPath struct {
	Namespace string `path:"namespace" maxLength:"200" doc:"Namespace of the job; default if it has none."`
	Name      string `path:"name" maxLength:"200" doc:"Name of the job."`
}

func (p *JobPath) find(snap *state.Snapshot) (*state.Job, error) {
	if err := problem.Names("path.namespace", p.Namespace); err != nil {
		return nil, err
	}
	if err := problem.Names("path.name", p.Name); err != nil {
		return nil, err
	}
	if j := snap.Job(p.key()); j != nil {
		return j, nil
	}
	return nil, problem.NotFound("job %s: not found", p.key())
}

func (p *JobPath) key() muster.JobKey {
	return muster.JobKey{Namespace: muster.Namespace(p.Namespace), Name: p.Name}
}

// AboutJob is a request about one job that has a body.
type AboutJob struct {
	JobPath
	RequestBody
}

// read decodes the body, unless there is none, and finds the job.
func (in *AboutJob) read(a jobHandlers, body any) (*state.Job, error) {
	if len(in.JSON) > 0 {
		if p := door.Decode(in.JSON, body); p != nil {
			return nil, p
		}
	}
	return in.find(a.cfg.State.Latest())
}

type jobOut struct {
	Note string `header:"Muster-Note" doc:"What was not done, and why."`
	Body api.Job
}

type submitIn struct {
	Key string `header:"Idempotency-Key" maxLength:"128" doc:"A text that is unique to each intended job. A repeated request with it gets the first one's answer; a different request with it is rejected with 409."`
	RequestBody
}

type submitOut struct {
	Status int
	Body   api.JobSubmitted
}

func (a jobHandlers) submitJob(ctx context.Context, in *submitIn) (*submitOut, error) {
	var s api.JobSubmission
	if p := door.Decode(in.JSON, &s); p != nil {
		return nil, p
	}
	return submitted(a.cfg.Submit.Job(ctx, &s, in.Key))
}

func submitted(done *state.Submitted, err error) (*submitOut, error) {
	if err != nil {
		return nil, err
	}
	out := &submitOut{Status: http.StatusCreated, Body: api.JobSubmitted{
		Namespace: string(done.Key.Namespace), Name: done.Key.Name, UID: string(done.UID),
		Version: done.Version, Index: done.Index, Unchanged: done.Unchanged,
	}}
	if done.Unchanged {
		out.Status = http.StatusOK
	}
	return out, nil
}

type validateOut struct{ Body api.JobValidation }

type validateIn struct {
	Plan bool `query:"plan" doc:"Also show where its members would be placed now."`
	RequestBody
}

func (a jobHandlers) validateJob(ctx context.Context, in *validateIn) (*validateOut, error) {
	var s api.JobSubmission
	if p := door.Decode(in.JSON, &s); p != nil {
		return nil, p
	}
	v, err := a.cfg.Submit.Validate(ctx, &s, in.Plan)
	if err != nil {
		return nil, err
	}
	return &validateOut{*v}, nil
}

type listJobsIn struct {
	Namespace string `query:"namespace" maxLength:"200" doc:"Only this namespace. Default: all."`
	Stage     string `query:"stage" enum:"live,stopping,ended" doc:"Only in this stage. Default: all."`
	Status    string `query:"status" enum:"waiting,running,stopping,succeeded,failed,stopped" doc:"Only with this status. Default: all."`
	Sort      string `query:"sort" enum:"name,newest" default:"name" doc:"name: by namespace and name. newest: by submission, the newest first."`
	Waits     bool   `query:"waits" doc:"Also say of the first waiting jobs why they wait: 200, or fewer if there are thousands of nodes."`
	Page
}

type jobListOut struct{ Body api.JobList }

func (a jobHandlers) listJobs(_ context.Context, in *listJobsIn) (*jobListOut, error) {
	if in.Namespace != "" {
		if err := problem.Names("query.namespace", in.Namespace); err != nil {
			return nil, err
		}
	}
	snap := a.cfg.State.Latest()
	page, err := present.Jobs(snap, present.JobSelection{
		Namespace: muster.Namespace(in.Namespace), Stage: muster.JobStage(in.Stage), Status: in.Status, Newest: in.Sort == "newest", After: in.After, Limit: in.Limit,
	})
	if err != nil {
		return nil, problem.Invalid("query.after", "is %q; %v", problem.Clip(in.After), err)
	}
	out := &jobListOut{api.JobList{Jobs: []api.Job{}, Next: page.Next, More: page.Left, Index: snap.Index()}}
	for _, j := range page.Rows {
		out.Body.Jobs = append(out.Body.Jobs, present.JobInList(j))
	}
	if in.Waits {
		a.explainer(snap).WaitsInList(page.Rows, out.Body.Jobs)
	}
	return out, nil
}

func (a jobHandlers) getJob(_ context.Context, in *JobPath) (*jobOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.find(snap)
	if err != nil {
		return nil, err
	}
	out := &jobOut{Body: present.JobWithSpec(j)}
	out.Body.Waits = a.explainer(snap).Waits(j)
	out.Body.Rollout = present.Rollout(snap, j, a.cfg.Clock.Now())
	return out, nil
}

func (a jobHandlers) stopJob(ctx context.Context, in *AboutJob) (*jobOut, error) {
	var s api.JobStop
	j, err := in.read(a, &s)
	if err != nil {
		return nil, err
	}
	j, note, err := a.cfg.Submit.Stop(ctx, j, s.Reason)
	if err != nil {
		return nil, err
	}
	return &jobOut{Note: note, Body: present.JobWithSpec(j)}, nil
}

type retryIn struct {
	Key string `header:"Idempotency-Key" maxLength:"128" doc:"A text that is unique to each intended retry. A repeated request with it gets the first one's answer; a different request with it is rejected with 409."`
	AboutJob
}

func (a jobHandlers) retryJob(ctx context.Context, in *retryIn) (*struct{ Body *api.JobRetried }, error) {
	var q api.JobRetry
	if _, err := in.read(a, &q); err != nil && problem.Of(err).Status != http.StatusNotFound {
		return nil, err // of a job that is not there the service knows more
	}
	done, err := a.cfg.Submit.Retry(ctx, in.key(), &q, in.Key)
	return &struct{ Body *api.JobRetried }{done}, err
}

type listMembersIn struct {
	JobPath
	Status string `query:"status" enum:"waiting,placed,succeeded,failed,stopped" doc:"Only in this status. Default: all."`
	Page
}

type memberListOut struct{ Body api.MemberList }

func (a jobHandlers) listMembers(_ context.Context, in *listMembersIn) (*memberListOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.find(snap)
	if err != nil {
		return nil, err
	}
	from := 0
	if in.After != "" {
		n, err := strconv.Atoi(in.After)
		if err != nil || n < 0 {
			return nil, problem.Invalid("query.after", "is %q; pass next of the page before, an index", problem.Clip(in.After))
		}
		from = min(n, math.MaxInt-1) + 1 // not bounded by the count: a service that has fewer now has members beyond it
	}
	out := &memberListOut{api.MemberList{Members: []api.Member{}, Index: snap.Index()}}
	present.Members(snap, j, from, func(m api.Member) bool {
		if in.Status != "" && m.Status != in.Status {
			return true
		}
		if len(out.Body.Members) == in.Limit {
			out.Body.Next = strconv.Itoa(out.Body.Members[in.Limit-1].Index)
			return false
		}
		out.Body.Members = append(out.Body.Members, m)
		return true
	})
	return out, nil
}

type listJobAllocsIn struct {
	JobPath
	Index schema.Optional[int] `query:"index" minimum:"0" doc:"Only the member with this index."`
	Page
}

func (a jobHandlers) listJobAllocs(_ context.Context, in *listJobAllocsIn) (*allocListOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.find(snap)
	if err != nil {
		return nil, err
	}
	from, afterAttempt := 0, 0
	if in.Index.Given {
		from = in.Index.Value
	}
	if in.After != "" {
		uid, index, attempt, err := muster.AllocID(in.After).Parse()
		if err != nil || uid != j.UID {
			return nil, problem.Invalid("query.after", "is %q; pass next of the page before, an allocation of this job", problem.Clip(in.After))
		}
		if index >= from {
			from, afterAttempt = index, attempt
		}
	}
	out := &allocListOut{api.AllocList{Allocs: []api.Alloc{}, Index: snap.Index()}}
	snap.JobAllocs(j.UID, from, func(al *state.Alloc) bool {
		switch {
		case al.Index == from && al.Attempt <= afterAttempt:
			return true
		case in.Index.Given && al.Index != in.Index.Value:
			return false
		}
		return out.add(snap, al, in.Limit)
	})
	return out, nil
}

// The description needs the type of every body that huma does not see.
var _ huma.Resolver = (*RequestBody)(nil)
