package httpapi

import (
	"context"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// environmentHandlers handle what is below /v1/environments. In the state an environment is a job
// with a key of its own.
type environmentHandlers struct{ *API }

func (a environmentHandlers) routes() {
	set := operation(http.MethodPost, "/v1/environments", "set-environment", tagRunners, "Set an environment",
		"Makes an environment, or changes the one of the name. What decides how a runner runs makes a new version: warm runners are then replaced one by one, claimed ones live on. 201 says that it is new, 200 that it was there.")
	set.DefaultStatus = http.StatusCreated
	set.Responses = map[string]*huma.Response{"200": {Description: "It was there.", Content: jsonContent(a.API, reflect.TypeFor[api.EnvironmentSet]())}}
	set.Errors = append(set.Errors, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.EnvironmentSetting](a.API, &set, true)
	register(a.API, set, a.setEnvironment)

	register(a.API, operation(http.MethodGet, "/v1/environments", "list-environments", tagRunners, "List environments", "By namespace and name."), a.listEnvironments)

	one := operation(http.MethodGet, "/v1/environments/{namespace}/{name}", "get-environment", tagRunners, "Show an environment", "With its spec, how many runners it wants warm, and why.")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, a.getEnvironment)

	del := operation(http.MethodDelete, "/v1/environments/{namespace}/{name}", "delete-environment", tagRunners, "Delete an environment", "Unclaimed runners are destroyed at once; claimed ones keep running until they are released or expire.")
	del.DefaultStatus = http.StatusNoContent
	del.Errors = append(del.Errors, http.StatusNotFound, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	register(a.API, del, a.deleteEnvironment)
}

// EnvironmentPath names an environment in the path.
type EnvironmentPath struct {
	Namespace string `path:"namespace" maxLength:"200" doc:"Namespace of the environment; default if it has none."`
	Name      string `path:"name" maxLength:"200" doc:"Name of the environment."`
}

func (p *EnvironmentPath) find(snap *state.Snapshot) (*state.Job, error) {
	if err := problem.Names("path.namespace", p.Namespace); err != nil {
		return nil, err
	}
	if err := problem.Names("path.name", p.Name); err != nil {
		return nil, err
	}
	return environment(snap, p.Namespace, p.Name)
}

func environment(snap *state.Snapshot, namespace, name string) (*state.Job, error) {
	if j := snap.Environment(muster.Namespace(namespace), name); j != nil {
		return j, nil
	}
	return nil, problem.NotFound("environment %s: not found", muster.JobKey{Namespace: muster.Namespace(namespace), Name: name})
}

type setEnvironmentOut struct {
	Status int
	Body   api.EnvironmentSet
}

func (a environmentHandlers) setEnvironment(ctx context.Context, in *struct{ RequestBody }) (*setEnvironmentOut, error) {
	var s api.EnvironmentSetting
	if p := door.Decode(in.JSON, &s); p != nil {
		return nil, p
	}
	done, err := a.cfg.Submit.SetEnvironment(ctx, &s)
	if err != nil {
		return nil, err
	}
	out := &setEnvironmentOut{Status: http.StatusOK, Body: api.EnvironmentSet{
		Namespace: s.Spec.Namespace, Name: s.Spec.Name, UID: string(done.UID), Version: done.Version, Index: done.Index, Unchanged: done.Unchanged,
	}}
	if done.New {
		out.Status = http.StatusCreated
	}
	return out, nil
}

type listEnvironmentsIn struct {
	Namespace string `query:"namespace" maxLength:"200" doc:"Only this namespace. Default: all."`
	Page
}

type environmentListOut struct{ Body api.EnvironmentList }

func (a environmentHandlers) listEnvironments(_ context.Context, in *listEnvironmentsIn) (*environmentListOut, error) {
	if in.Namespace != "" {
		if err := problem.Names("query.namespace", in.Namespace); err != nil {
			return nil, err
		}
	}
	after := muster.JobKey{Namespace: muster.Namespace(in.Namespace)}
	if in.After != "" {
		ns, name, ok := strings.Cut(in.After, "/")
		if !ok || muster.CheckName(ns) != nil || muster.CheckName(name) != nil {
			return nil, problem.Invalid("query.after", "is %q; pass next of the page before, as namespace/name", problem.Clip(in.After))
		}
		after = muster.EnvironmentKey(muster.Namespace(ns), name)
	}
	snap := a.cfg.State.Latest()
	out := &environmentListOut{api.EnvironmentList{Environments: []api.Environment{}, Index: snap.Index()}}
	snap.Jobs(after, func(j *state.Job) bool {
		switch {
		case in.Namespace != "" && string(j.Key.Namespace) != in.Namespace:
			return string(j.Key.Namespace) < in.Namespace
		case j.Env == nil || j.Stage == muster.JobEnded:
			return true
		case len(out.Body.Environments) == in.Limit:
			last := out.Body.Environments[in.Limit-1]
			out.Body.Next = last.Namespace + "/" + last.Name
			return false
		}
		out.Body.Environments = append(out.Body.Environments, present.Environment(snap, j, a.cfg.Claims.Waiting(j.UID)))
		return true
	})
	return out, nil
}

type environmentOut struct{ Body api.Environment }

func (a environmentHandlers) getEnvironment(_ context.Context, in *EnvironmentPath) (*environmentOut, error) {
	snap := a.cfg.State.Latest()
	j, err := in.find(snap)
	if err != nil {
		return nil, err
	}
	out := &environmentOut{present.Environment(snap, j, a.cfg.Claims.Waiting(j.UID))}
	out.Body.Spec = j.Env.Spec
	out.Body.Waits = a.explainer(snap).Waits(j)
	return out, nil
}

type deleteEnvironmentIn struct {
	EnvironmentPath
	Claimed bool `query:"claimed" doc:"End claimed runners as well."`
}

func (a environmentHandlers) deleteEnvironment(ctx context.Context, in *deleteEnvironmentIn) (*struct{}, error) {
	j, err := in.find(a.cfg.State.Latest())
	if err != nil {
		return nil, err
	}
	return nil, a.cfg.Submit.DeleteEnvironment(ctx, j, in.Claimed)
}
