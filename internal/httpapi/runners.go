package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/door"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/problem"
	"github.com/musterhq/muster/internal/state"
)

// runnerHandlers handle claims and runners.
type runnerHandlers struct{ *API }

func (a runnerHandlers) routes() {
	claim := operation(http.MethodPost, "/v1/claims", "claim-runner", tagRunners, "Claim a runner",
		"The answer has the runner's id, and the secret by which it is used. With an Idempotency-Key a repeated request gets the same claim and the same secret. 503 with code none-warm: none is warm, and the claim does not wait or has waited long enough.")
	claim.DefaultStatus = http.StatusCreated
	claim.Errors = append(claim.Errors, http.StatusNotFound, http.StatusConflict, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.ClaimRequest](a.API, &claim, true)
	register(a.API, claim, a.claim)
	register(a.API, operation(http.MethodGet, "/v1/claims", "list-claims", tagRunners, "List claims", "By id, those included that have ended lately."), a.listClaims)
	one := operation(http.MethodGet, "/v1/claims/{claim}", "get-claim", tagRunners, "Show a claim", "")
	one.Errors = append(one.Errors, http.StatusNotFound)
	register(a.API, one, a.getClaim)

	register(a.API, operation(http.MethodGet, "/v1/runners", "list-runners", tagRunners, "List runners", "Of every environment, or of one; those that are gone only if asked for."), a.listRunners)
	show := operation(http.MethodGet, "/v1/runners/{id}", "get-runner", tagRunners, "Show a runner", "In whatever state.")
	show.Errors = append(show.Errors, http.StatusNotFound)
	register(a.API, show, a.getRunner)
	release := operation(http.MethodDelete, "/v1/runners/{id}", "release-runner", tagRunners, "Give a runner back", "Its claim ends, and it is destroyed. May be repeated. 410 if it was not claimed, or its claim ended otherwise.")
	release.DefaultStatus = http.StatusNoContent
	release.Errors = append(release.Errors, http.StatusGone, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	register(a.API, release, a.releaseRunner)
	extend := operation(http.MethodPost, "/v1/runners/{id}/extend", "extend-claim", tagRunners, "Extend a runner's claim", "Sets its deadline, from now on, or its idle time. Counts as use.")
	extend.Errors = append(extend.Errors, http.StatusGone, http.StatusServiceUnavailable, http.StatusInsufficientStorage)
	jsonBody[api.ClaimExtension](a.API, &extend, true)
	register(a.API, extend, a.extendClaim)
}

type claimIn struct {
	Key string `header:"Idempotency-Key" maxLength:"128" doc:"A text that is unique to each intended claim. A repeated request with it gets the first one's claim; a different request with it is rejected with 409."`
	RequestBody
}

type claimOut struct{ Body api.Claim }

func (a runnerHandlers) claim(ctx context.Context, in *claimIn) (*claimOut, error) {
	var q api.ClaimRequest
	if p := door.Decode(in.JSON, &q); p != nil {
		return nil, p
	}
	c, err := a.cfg.Claims.Claim(ctx, &q, in.Key)
	if p := (*problem.Problem)(nil); errors.As(err, &p) && p.Code == api.CodeNoneWarm && q.Wait == 0 {
		p.Detail += "; claim with a wait, or keep more runners warm"
	}
	if err != nil {
		return nil, err
	}
	out := &claimOut{present.Claim(a.cfg.State.Latest(), c)}
	out.Body.Secret = a.cfg.Claims.Secret(c.ID).Reveal()
	return out, nil
}

type listClaimsIn struct {
	State string `query:"state" enum:"held,released,expired,lost" doc:"Only in this state. Default: all."`
	Page
}

type claimListOut struct{ Body api.ClaimList }

func (a runnerHandlers) listClaims(_ context.Context, in *listClaimsIn) (*claimListOut, error) {
	snap := a.cfg.State.Latest()
	out := &claimListOut{api.ClaimList{Claims: []api.Claim{}, Index: snap.Index()}}
	snap.Claims(muster.ClaimID(in.After), func(c *state.Claim) bool {
		switch {
		case in.State != "" && string(c.State) != in.State:
			return true
		case len(out.Body.Claims) == in.Limit:
			out.Body.Next = out.Body.Claims[in.Limit-1].ID
			return false
		}
		out.Body.Claims = append(out.Body.Claims, present.Claim(snap, c))
		return true
	})
	return out, nil
}

type claimPath struct {
	Claim string `path:"claim" maxLength:"200" doc:"Id of the claim."`
}

func (a runnerHandlers) getClaim(_ context.Context, in *claimPath) (*claimOut, error) {
	snap := a.cfg.State.Latest()
	if c := snap.Claim(muster.ClaimID(in.Claim)); c != nil {
		return &claimOut{present.Claim(snap, c)}, nil
	}
	return nil, problem.NotFound("claim %s: not found", problem.Clip(in.Claim))
}

type listRunnersIn struct {
	Environment string `query:"environment" maxLength:"200" doc:"Only this environment."`
	Namespace   string `query:"namespace" maxLength:"200" doc:"Namespace of the environment, or of all runners. Default: default, or all."`
	State       string `query:"state" enum:"starting,warm,claimed,gone" doc:"Only in this state. Default: all but gone."`
	Page
}

type runnerListOut struct{ Body api.RunnerList }

func (a runnerHandlers) listRunners(_ context.Context, in *listRunnersIn) (*runnerListOut, error) {
	snap := a.cfg.State.Latest()
	only := muster.JobUID("")
	if in.Environment != "" {
		in.Namespace = cmp.Or(in.Namespace, string(muster.DefaultNamespace))
		j, err := (&EnvironmentPath{in.Namespace, in.Environment}).find(snap)
		if err != nil {
			return nil, err
		}
		only = j.UID
	}
	out := &runnerListOut{api.RunnerList{Runners: []api.Runner{}, Index: snap.Index()}}
	full := false
	add := func(al *state.Alloc) bool {
		switch {
		case al.Runner == "", in.State == "" && al.Runner == muster.RunnerGone, in.State != "" && string(al.Runner) != in.State,
			in.Namespace != "" && string(al.Run.Key.Namespace) != in.Namespace:
			return true
		case len(out.Body.Runners) == in.Limit:
			out.Body.Next, full = out.Body.Runners[in.Limit-1].ID, true
			return false
		}
		out.Body.Runners = append(out.Body.Runners, present.Runner(snap, al))
		return true
	}
	after, from, attempt, err := muster.AllocID(in.After).Parse()
	if err != nil && in.After != "" {
		return nil, problem.Invalid("query.after", "is %q; pass next of the page before, the id of a runner", problem.Clip(in.After))
	}
	snap.Environments(func(j *state.Job) bool {
		if only != "" && j.UID != only || j.UID < after {
			return true
		}
		first := 0
		if j.UID == after {
			first = from
		}
		snap.JobAllocs(j.UID, first, func(al *state.Alloc) bool {
			return j.UID == after && al.Index == from && al.Attempt <= attempt || add(al)
		})
		return !full
	})
	return out, nil
}

type runnerOut struct{ Body api.Runner }

func (a runnerHandlers) getRunner(_ context.Context, in *AllocPath) (*runnerOut, error) {
	snap := a.cfg.State.Latest()
	al := snap.Alloc(muster.AllocID(in.ID))
	if al == nil || al.Runner == "" {
		return nil, problem.NotFound("runner %s: not found", problem.Clip(in.ID))
	}
	return &runnerOut{present.Runner(snap, al)}, nil
}

func (a runnerHandlers) releaseRunner(ctx context.Context, in *AllocPath) (*struct{}, error) {
	return nil, a.cfg.Claims.Release(ctx, in.ID)
}

type extendIn struct {
	AllocPath
	RequestBody
}

func (a runnerHandlers) extendClaim(ctx context.Context, in *extendIn) (*claimOut, error) {
	var q api.ClaimExtension
	if p := door.Decode(in.JSON, &q); p != nil {
		return nil, p
	}
	c, err := a.cfg.Claims.Extend(ctx, in.ID, &q)
	if err != nil {
		return nil, err
	}
	return &claimOut{present.Claim(a.cfg.State.Latest(), c)}, nil
}
