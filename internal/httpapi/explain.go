package httpapi

import (
	"context"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/explain"
	"github.com/musterhq/muster/internal/state"
)

// explainHandlers explain jobs and nodes. The package explain makes the answers; the handlers find
// the rows and bound the work.
type explainHandlers struct{ *API }

func (a explainHandlers) routes() {
	job := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/explain", "explain-job", tagJobs, "Explain what a job waits for",
		"From the queue to the cloud: the work before it; why a member fits or does not fit each class of equal nodes, and which nodes would be chosen and why; what could be launched and what prevents it; launching nodes; and when a member may start. A member that has an allocation is explained as if unplaced: past placement decisions are not recorded.")
	job.Errors = append(job.Errors, http.StatusNotFound)
	register(a.API, job, a.explainJob)

	node := operation(http.MethodGet, "/v1/nodes/{id}/explain", "explain-node", tagNodes, "Explain a node",
		"Its stage, health and intent, who changed them and why, what runs there, what it waits for, and when it will be destroyed, or why not.")
	node.Errors = append(node.Errors, http.StatusNotFound)
	register(a.API, node, a.explainNode)
}

type jobExplanationOut struct{ Body api.JobExplanation }

type explainJobIn struct {
	JobPath
	Member int `query:"member" default:"-1" minimum:"-1" doc:"Index of a member to explain. Default: the job."`
}

func (a explainHandlers) explainJob(ctx context.Context, in *explainJobIn) (*jobExplanationOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.findAny(snap)
	if err != nil {
		return nil, err
	}
	if in.Member >= j.Count() {
		return nil, muster.Faultf(muster.FaultNotFound, "member %d of job %s: not found; it has %s, counted from 0", in.Member, j.Key, muster.Counted(j.Count(), "member"))
	}
	if err := a.cfg.Planning.Take(ctx); err != nil {
		return nil, err
	}
	defer a.cfg.Planning.Leave()
	e := a.explainer(snap)
	if in.Member >= 0 {
		return &jobExplanationOut{e.Member(j, in.Member)}, nil
	}
	return &jobExplanationOut{e.Job(j)}, nil
}

// findAny finds a job, or an environment by the name of its job, which has a form that no other
// job's name has. `muster explain` uses it for both.
func (p *JobPath) findAny(snap *state.Snapshot) (*state.Job, error) {
	if name, is := (muster.JobKey{Name: p.Name}).Environment(); is {
		e := EnvironmentPath{p.Namespace, name}
		return e.find(snap)
	}
	return p.find(snap)
}

type nodeExplanationOut struct{ Body api.NodeExplanation }

func (a explainHandlers) explainNode(_ context.Context, in *NodePath) (*nodeExplanationOut, error) {
	n, err := a.cfg.Operate.Nodes.Get(in.ID)
	if err != nil {
		return nil, err
	}
	return &nodeExplanationOut{a.explainer(a.cfg.State.Latest()).Node(n)}, nil
}

// explainer explains things as they are in a snapshot at this moment.
func (a *API) explainer(snap *state.Snapshot) *explain.Explainer {
	return &explain.Explainer{Snapshot: snap, Now: a.cfg.Clock.Now(), Loops: a.cfg.Loops()}
}
